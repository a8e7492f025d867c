//! The expressions that the generator makes, and their text in PromQL.

use std::collections::BTreeMap;
use std::fmt;

/// Labels by name.
pub(crate) type Names = BTreeMap<String, String>;

#[derive(Debug, Clone)]
pub(crate) enum Tree {
    /// `vector(7)`
    Constant(f64),
    /// `vector(time())`
    Time,
    /// `vector(scalar(v))`
    Only(Box<Tree>),
    Select(Selector),
    Absent(Selector),
    AbsentOver(Over),
    Over(Over),
    /// A function of each value: `abs`, `-`, `timestamp`.
    Each(&'static str, Box<Tree>),
    Aggregate {
        op: &'static str,
        /// Parameter of `quantile` and `count_values`.
        param: Option<&'static str>,
        grouping: Grouping,
        inner: Box<Tree>,
    },
    WithNumber {
        op: &'static str,
        is_bool: bool,
        left: Box<Tree>,
        right: f64,
        /// True if the number is the left operand.
        is_swapped: bool,
    },
    Binary(Box<Binary>),
}

#[derive(Debug, Clone)]
pub(crate) struct Selector {
    pub(crate) name: &'static str,
    /// Label, operator, value.
    pub(crate) matcher: Option<(&'static str, &'static str, &'static str)>,
    pub(crate) shift: Shift,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Shift {
    pub(crate) at: Option<At>,
    pub(crate) offset_ms: i64,
}

#[derive(Debug, Clone)]
pub(crate) enum At {
    Start,
    End,
    Time(i64),
}

/// `function(param, range)`
#[derive(Debug, Clone)]
pub(crate) struct Over {
    pub(crate) function: &'static str,
    /// Parameter of `quantile_over_time`, before the range, or of `predict_linear`, after it.
    pub(crate) param: Option<f64>,
    pub(crate) of: Source,
    pub(crate) range_ms: i64,
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Samples(Selector),
    Subquery {
        inner: Box<Tree>,
        step_ms: i64,
        shift: Shift,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Grouping {
    All,
    By(&'static [&'static str]),
    Without(&'static [&'static str]),
}

#[derive(Debug, Clone)]
pub(crate) struct Binary {
    pub(crate) op: &'static str,
    pub(crate) is_bool: bool,
    /// `true` for `on`, `false` for `ignoring`.
    pub(crate) is_on: bool,
    pub(crate) labels: &'static [&'static str],
    pub(crate) group: Group,
    pub(crate) left: Tree,
    pub(crate) right: Tree,
}

/// `group_left` and `group_right` with the labels that they copy from the other side.
#[derive(Debug, Clone)]
pub(crate) enum Group {
    None,
    Left(&'static [&'static str]),
    Right(&'static [&'static str]),
}

impl Tree {
    /// Returns the nesting depth of sub-queries.
    pub(crate) fn subqueries(&self) -> usize {
        match self {
            Self::Constant(_) | Self::Time | Self::Select(_) | Self::Absent(_) => 0,
            Self::AbsentOver(over) | Self::Over(over) => match &over.of {
                Source::Samples(_) => 0,
                Source::Subquery { inner, .. } => 1 + inner.subqueries(),
            },
            Self::Only(inner) | Self::Each(_, inner) | Self::Aggregate { inner, .. } => inner.subqueries(),
            Self::WithNumber { left, .. } => left.subqueries(),
            Self::Binary(binary) => binary.left.subqueries().max(binary.right.subqueries()),
        }
    }
}

impl Grouping {
    /// Returns the labels of the group to which a series belongs.
    pub(crate) fn key(&self, labels: &Names) -> Names {
        let keeps = |name: &str| match self {
            Self::All => false,
            Self::By(names) => names.contains(&name),
            Self::Without(names) => name != "__name__" && !names.contains(&name),
        };
        labels
            .iter()
            .filter(|(name, _)| keeps(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

// === as text ===

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(number) => write!(f, "vector({number})"),
            Self::Time => write!(f, "vector(time())"),
            Self::Only(inner) => write!(f, "vector(scalar({inner}))"),
            Self::Select(selector) => write!(f, "{selector}"),
            Self::Absent(selector) => write!(f, "absent({selector})"),
            Self::AbsentOver(over) | Self::Over(over) => write!(f, "{over}"),
            Self::Each(function, inner) => write!(f, "{function}({inner})"),
            Self::Aggregate {
                op,
                param,
                grouping,
                inner,
            } => {
                let param = param.map(|param| format!("{param}, ")).unwrap_or_default();
                write!(f, "{op}{grouping} ({param}{inner})")
            }
            Self::WithNumber {
                op,
                is_bool,
                left,
                right,
                is_swapped,
            } => {
                let op = if *is_bool {
                    format!("{op} bool")
                } else {
                    (*op).to_owned()
                };
                if *is_swapped {
                    write!(f, "({right}) {op} ({left})")
                } else {
                    write!(f, "({left}) {op} ({right})")
                }
            }
            Self::Binary(binary) => write!(f, "{binary}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl Selector {
    fn write(&self, f: &mut fmt::Formatter<'_>, range: &str) -> fmt::Result {
        match self.matcher {
            None => write!(f, "{}{range}{}", self.name, self.shift),
            Some((name, op, value)) => write!(f, "{}{{{name}{op}{value:?}}}{range}{}", self.name, self.shift),
        }
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            None => {}
            Some(At::Start) => write!(f, " @ start()")?,
            Some(At::End) => write!(f, " @ end()")?,
            Some(At::Time(ms)) => write!(f, " @ {}", ms as f64 / 1_000.0)?,
        }
        match self.offset_ms {
            0 => Ok(()),
            ms if ms < 0 => write!(f, " offset -{}ms", -ms),
            ms => write!(f, " offset {ms}ms"),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_first = self.function == "quantile_over_time";
        write!(f, "{}(", self.function)?;
        if let (true, Some(param)) = (is_first, self.param) {
            write!(f, "{param}, ")?;
        }
        match &self.of {
            Source::Samples(selector) => selector.write(f, &format!("[{}ms]", self.range_ms))?,
            Source::Subquery {
                inner,
                step_ms,
                shift,
            } => write!(f, "({inner})[{}ms:{step_ms}ms]{shift}", self.range_ms)?,
        }
        if let (false, Some(param)) = (is_first, self.param) {
            write!(f, ", {param}")?;
        }
        write!(f, ")")
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::By(names) => write!(f, " by ({})", names.join(", ")),
            Self::Without(names) => write!(f, " without ({})", names.join(", ")),
        }
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_bool = if self.is_bool { " bool" } else { "" };
        let word = if self.is_on { "on" } else { "ignoring" };
        let group = match self.group {
            Group::None => String::new(),
            Group::Left(labels) => format!(" group_left ({})", labels.join(", ")),
            Group::Right(labels) => format!(" group_right ({})", labels.join(", ")),
        };
        write!(
            f,
            "({}) {}{is_bool} {word} ({}){group} ({})",
            self.left,
            self.op,
            self.labels.join(", "),
            self.right
        )
    }
}
