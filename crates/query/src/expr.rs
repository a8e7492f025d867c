//! The expression tree that the engine evaluates: small, typed, and independent of the parser's tree.

use domain::series::Matcher;
use domain::time::TimestampMs;

use crate::function::Function;

/// The four types of PromQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar,
    Vector,
    Matrix,
    Text,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expr {
    Number(f64),
    Text(String),
    /// An instant selector: the last sample within the lookback.
    Select(Selector),
    /// A range selector: all samples within `(t - range, t]`.
    Window {
        selector: Selector,
        range_ms: i64,
    },
    Subquery(Box<Subquery>),
    Call {
        function: Function,
        args: Vec<Expr>,
    },
    Aggregate(Box<Aggregate>),
    Binary(Box<Binary>),
    Negate(Box<Expr>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Selector {
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) shift: Shift,
}

/// `@` and `offset`: the time at which a selector or sub-query is evaluated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shift {
    pub(crate) at: Option<At>,
    /// Positive values point to the past.
    pub(crate) offset_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Start of the whole query, also within sub-queries.
    Start,
    /// End of the whole query, also within sub-queries.
    End,
    Time(TimestampMs),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Subquery {
    pub(crate) expr: Expr,
    pub(crate) range_ms: i64,
    /// If `None`, [`crate::plan::SUBQUERY_STEP_DEFAULT_MS`].
    pub(crate) step_ms: Option<i64>,
    pub(crate) shift: Shift,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Aggregate {
    pub(crate) op: AggregateOp,
    pub(crate) grouping: Grouping,
    pub(crate) param: Option<Expr>,
    pub(crate) expr: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregateOp {
    Sum,
    Avg,
    Min,
    Max,
    Count,
    Group,
    Stddev,
    Stdvar,
    Topk,
    Bottomk,
    Limitk,
    LimitRatio,
    Quantile,
    CountValues,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grouping {
    By(Vec<String>),
    Without(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Binary {
    pub(crate) op: BinaryOp,
    /// `bool`: return 0 or 1 instead of filtering.
    pub(crate) returns_bool: bool,
    pub(crate) matching: Matching,
    pub(crate) lhs: Expr,
    pub(crate) rhs: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Atan2,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
    Unless,
}

/// How the series of two vectors are matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matching {
    pub(crate) cardinality: Cardinality,
    pub(crate) labels: MatchLabels,
    /// Labels that `group_left` or `group_right` copies from the one side.
    pub(crate) include: Vec<String>,
    /// Value used for a missing left sample (`fill_left`).
    pub(crate) fill_left: Option<f64>,
    /// Value used for a missing right sample (`fill_right`).
    pub(crate) fill_right: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cardinality {
    OneToOne,
    /// `group_left`
    ManyToOne,
    /// `group_right`
    OneToMany,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MatchLabels {
    On(Vec<String>),
    Ignoring(Vec<String>),
}

impl Expr {
    /// Returns the type of the expression's result.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Number(_) => Kind::Scalar,
            Self::Text(_) => Kind::Text,
            Self::Select(_) | Self::Aggregate(_) => Kind::Vector,
            Self::Window { .. } | Self::Subquery(_) => Kind::Matrix,
            Self::Call { function, .. } if function.is_scalar() => Kind::Scalar,
            Self::Call { .. } => Kind::Vector,
            Self::Binary(binary) => match (binary.lhs.kind(), binary.rhs.kind()) {
                (Kind::Scalar, Kind::Scalar) => Kind::Scalar,
                _ => Kind::Vector,
            },
            Self::Negate(inner) => inner.kind(),
        }
    }
}

impl BinaryOp {
    /// Returns true for operators that use only labels.
    pub(crate) fn is_set(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Unless)
    }

    /// Returns true for comparison operators.
    pub(crate) fn is_comparison(self) -> bool {
        matches!(
            self,
            Self::Equal | Self::NotEqual | Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual
        )
    }
}
