//! Converts the parser's tree to the engine's tree.

use std::time::{Duration, SystemTime};

use domain::series::{METRIC_NAME, MatchOp, Matcher};
use promql_parser::label as theirs_label;
use promql_parser::parser::{self as theirs, LabelModifier, VectorMatchCardinality, token};

use crate::error::ParseError;
use crate::expr::{
    Aggregate, AggregateOp, At, Binary, BinaryOp, Cardinality, Expr, Grouping, MatchLabels, Matching,
    Selector, Shift, Subquery,
};
use crate::function::Function;

/// Maximum range, offset or sub-query step: 1,000 years, so that sums of times never overflow.
const DURATION_MS_MAX: i64 = 1_000 * 365 * 24 * 3_600_000;

pub(super) fn expression(expr: &theirs::Expr) -> Result<Expr, ParseError> {
    Ok(match expr {
        theirs::Expr::NumberLiteral(literal) => Expr::Number(literal.val),
        theirs::Expr::StringLiteral(literal) => Expr::Text(literal.val.clone()),
        theirs::Expr::Paren(paren) => expression(&paren.expr)?,
        theirs::Expr::Unary(unary) => Expr::Negate(Box::new(expression(&unary.expr)?)),
        theirs::Expr::VectorSelector(selector) => Expr::Select(self::selector(selector)?),
        theirs::Expr::MatrixSelector(matrix) => Expr::Window {
            selector: selector(&matrix.vs)?,
            range_ms: positive_ms(matrix.range)?,
        },
        theirs::Expr::Subquery(inner) => subquery(inner)?,
        theirs::Expr::Call(inner) => call(inner)?,
        theirs::Expr::Aggregate(inner) => aggregate(inner)?,
        theirs::Expr::Binary(inner) => binary(inner)?,
        theirs::Expr::Extension(_) => return Err(ParseError::Unsupported("extensions".to_owned())),
    })
}

fn subquery(inner: &theirs::SubqueryExpr) -> Result<Expr, ParseError> {
    Ok(Expr::Subquery(Box::new(Subquery {
        expr: expression(&inner.expr)?,
        range_ms: positive_ms(inner.range)?,
        step_ms: inner.step.map(positive_ms).transpose()?,
        shift: shift(inner.at.as_ref(), inner.offset.as_ref())?,
    })))
}

fn call(call: &theirs::Call) -> Result<Expr, ParseError> {
    let name = call.func.name;
    let function =
        Function::from_name(name).ok_or_else(|| ParseError::Unsupported(format!("the function {name}()")))?;
    let args = call
        .args
        .args
        .iter()
        .map(|arg| expression(arg))
        .collect::<Result<_, _>>()?;
    Ok(Expr::Call { function, args })
}

// === selectors ===

fn selector(selector: &theirs::VectorSelector) -> Result<Selector, ParseError> {
    if !selector.matchers.or_matchers.is_empty() {
        return Err(ParseError::Unsupported("`or` between matchers".to_owned()));
    }
    let name = selector
        .name
        .iter()
        .map(|name| Matcher::equal(METRIC_NAME, name.as_str()));
    let matchers = name
        .chain(selector.matchers.matchers.iter().map(matcher))
        .collect();
    Ok(Selector {
        matchers,
        shift: shift(selector.at.as_ref(), selector.offset.as_ref())?,
    })
}

fn matcher(matcher: &theirs_label::Matcher) -> Matcher {
    let op = match matcher.op {
        theirs_label::MatchOp::Equal => MatchOp::Equal,
        theirs_label::MatchOp::NotEqual => MatchOp::NotEqual,
        theirs_label::MatchOp::Re(_) => MatchOp::Regex,
        theirs_label::MatchOp::NotRe(_) => MatchOp::NotRegex,
    };
    Matcher {
        name: matcher.name.clone(),
        op,
        value: matcher.value.clone(),
    }
}

fn shift(at: Option<&theirs::AtModifier>, offset: Option<&theirs::Offset>) -> Result<Shift, ParseError> {
    let at = at.map(|at| match at {
        theirs::AtModifier::Start => Ok(At::Start),
        theirs::AtModifier::End => Ok(At::End),
        theirs::AtModifier::At(time) => since_epoch_ms(*time).map(At::Time),
    });
    let offset_ms = match offset {
        None => 0,
        Some(theirs::Offset::Pos(duration)) => millis(*duration)?,
        Some(theirs::Offset::Neg(duration)) => -millis(*duration)?,
    };
    Ok(Shift {
        at: at.transpose()?,
        offset_ms,
    })
}

fn since_epoch_ms(time: SystemTime) -> Result<i64, ParseError> {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => millis(after),
        Err(before) => millis(before.duration()).map(|ms| -ms),
    }
}

fn millis(duration: Duration) -> Result<i64, ParseError> {
    i64::try_from(duration.as_millis())
        .ok()
        .filter(|ms| *ms <= DURATION_MS_MAX)
        .ok_or_else(|| ParseError::Syntax("a duration or time is longer than 1,000 years".to_owned()))
}

fn positive_ms(duration: Duration) -> Result<i64, ParseError> {
    match millis(duration)? {
        0 => Err(ParseError::Syntax("duration must be greater than 0".to_owned())),
        ms => Ok(ms),
    }
}

// === aggregations ===

fn aggregate(aggregate: &theirs::AggregateExpr) -> Result<Expr, ParseError> {
    let grouping = match &aggregate.modifier {
        None => Grouping::By(Vec::new()),
        Some(LabelModifier::Include(labels)) => Grouping::By(labels.labels.clone()),
        Some(LabelModifier::Exclude(labels)) => Grouping::Without(labels.labels.clone()),
    };
    Ok(Expr::Aggregate(Box::new(Aggregate {
        op: aggregate_op(aggregate.op)?,
        grouping,
        param: aggregate
            .param
            .as_ref()
            .map(|param| expression(param))
            .transpose()?,
        expr: expression(&aggregate.expr)?,
    })))
}

fn aggregate_op(op: token::TokenType) -> Result<AggregateOp, ParseError> {
    Ok(match op.id() {
        token::T_SUM => AggregateOp::Sum,
        token::T_AVG => AggregateOp::Avg,
        token::T_MIN => AggregateOp::Min,
        token::T_MAX => AggregateOp::Max,
        token::T_COUNT => AggregateOp::Count,
        token::T_GROUP => AggregateOp::Group,
        token::T_STDDEV => AggregateOp::Stddev,
        token::T_STDVAR => AggregateOp::Stdvar,
        token::T_TOPK => AggregateOp::Topk,
        token::T_BOTTOMK => AggregateOp::Bottomk,
        token::T_LIMITK => AggregateOp::Limitk,
        token::T_LIMIT_RATIO => AggregateOp::LimitRatio,
        token::T_QUANTILE => AggregateOp::Quantile,
        token::T_COUNT_VALUES => AggregateOp::CountValues,
        _ => return Err(ParseError::Unsupported(format!("the aggregation {op}"))),
    })
}

// === binary operators ===

fn binary(binary: &theirs::BinaryExpr) -> Result<Expr, ParseError> {
    Ok(Expr::Binary(Box::new(Binary {
        op: binary_op(binary.op)?,
        returns_bool: binary.return_bool(),
        matching: matching(binary.modifier.as_ref()),
        lhs: expression(&binary.lhs)?,
        rhs: expression(&binary.rhs)?,
    })))
}

fn matching(modifier: Option<&theirs::BinModifier>) -> Matching {
    let labels = match modifier.and_then(|modifier| modifier.matching.as_ref()) {
        None => MatchLabels::Ignoring(Vec::new()),
        Some(LabelModifier::Include(labels)) => MatchLabels::On(labels.labels.clone()),
        Some(LabelModifier::Exclude(labels)) => MatchLabels::Ignoring(labels.labels.clone()),
    };
    let (cardinality, include) = match modifier.map(|modifier| &modifier.card) {
        None | Some(VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany) => {
            (Cardinality::OneToOne, Vec::new())
        }
        Some(VectorMatchCardinality::ManyToOne(include)) => (Cardinality::ManyToOne, include.labels.clone()),
        Some(VectorMatchCardinality::OneToMany(include)) => (Cardinality::OneToMany, include.labels.clone()),
    };
    let fill = modifier.map(|modifier| &modifier.fill_values);
    Matching {
        cardinality,
        labels,
        include,
        fill_left: fill.and_then(|fill| fill.lhs),
        fill_right: fill.and_then(|fill| fill.rhs),
    }
}

fn binary_op(op: token::TokenType) -> Result<BinaryOp, ParseError> {
    Ok(match op.id() {
        token::T_ADD => BinaryOp::Add,
        token::T_SUB => BinaryOp::Sub,
        token::T_MUL => BinaryOp::Mul,
        token::T_DIV => BinaryOp::Div,
        token::T_MOD => BinaryOp::Mod,
        token::T_POW => BinaryOp::Pow,
        token::T_ATAN2 => BinaryOp::Atan2,
        token::T_EQLC => BinaryOp::Equal,
        token::T_NEQ => BinaryOp::NotEqual,
        token::T_LSS => BinaryOp::Less,
        token::T_LTE => BinaryOp::LessEqual,
        token::T_GTR => BinaryOp::Greater,
        token::T_GTE => BinaryOp::GreaterEqual,
        token::T_LAND => BinaryOp::And,
        token::T_LOR => BinaryOp::Or,
        token::T_LUNLESS => BinaryOp::Unless,
        _ => return Err(ParseError::Unsupported(format!("the operator {op}"))),
    })
}
