//! The least or the greatest value of an expression within each step.
//!
//! ```text
//! x                               ─▶  max_over_time(x[step])
//! x * on (…) group_left (…) info  ─▶  max_over_time(x[step]) * on (…) group_left (…) info
//! anything else                   ─▶  max_over_time((…)[step:1s])
//! ```

use domain::series::{METRIC_NAME, MatchOp};

use crate::expr::{AggregateOp, Binary, BinaryOp, Expr, Kind, Shift, Subquery};
use crate::function::Function;

/// Distance of the evaluations of an expression within a step. Samples arrive once per second.
const FINE_STEP_MS: i64 = 1_000;
/// Ending of the names of metrics that have the value 1, and whose labels are the information.
const INFO_SUFFIX: &str = "_info";

/// Returns the expression for an extreme within the last `step_ms`, and how often it evaluates the given expression per step. `function`
/// says which extreme. `None` if the expression is no vector.
pub(crate) fn over_step(expr: &Expr, function: Function, step_ms: i64) -> Option<(Expr, u64)> {
    if let Some(over_samples) = over_samples(expr, function, step_ms) {
        return Some((over_samples, 1));
    }
    if expr.kind() != Kind::Vector {
        return None;
    }
    let fine = Subquery {
        expr: expr.clone(),
        range_ms: step_ms,
        step_ms: Some(FINE_STEP_MS),
        shift: Shift::default(),
    };
    let over_fine = Expr::Call {
        function,
        args: vec![Expr::Subquery(Box::new(fine))],
    };
    Some((over_fine, (step_ms / FINE_STEP_MS).max(1).unsigned_abs()))
}

/// Returns the expression for an extreme that follows from the samples of one selector.
fn over_samples(expr: &Expr, function: Function, step_ms: i64) -> Option<Expr> {
    match expr {
        Expr::Select(selector) => Some(Expr::Call {
            function,
            args: vec![Expr::Window {
                selector: selector.clone(),
                range_ms: step_ms,
            }],
        }),
        Expr::Binary(binary) => {
            let side = passed_on(binary)?;
            let mut binary = binary.clone();
            let operand = match side {
                Side::Left => &mut binary.lhs,
                Side::Right => &mut binary.rhs,
            };
            *operand = over_samples(operand, function, step_ms)?;
            Some(Expr::Binary(binary))
        }
        _ => None,
    }
}

/// An operand of a binary operator.
enum Side {
    Left,
    Right,
}

/// Returns the operand whose values are those of the result. The other one only selects series and adds labels, which change rarely: it is
/// evaluated once per step.
fn passed_on(binary: &Binary) -> Option<Side> {
    let is_filled = binary.matching.fill_left.is_some() || binary.matching.fill_right.is_some();
    match binary.op {
        BinaryOp::And => Some(Side::Left),
        BinaryOp::Mul if is_filled => None,
        BinaryOp::Mul if is_always_one(&binary.rhs) => Some(Side::Left),
        BinaryOp::Mul if is_always_one(&binary.lhs) => Some(Side::Right),
        _ => None,
    }
}

/// Returns true for an expression that has no value except 1.
fn is_always_one(expr: &Expr) -> bool {
    match expr {
        Expr::Select(selector) => selector.matchers.iter().any(|matcher| {
            matcher.name == METRIC_NAME
                && matcher.op == MatchOp::Equal
                && matcher.value.ends_with(INFO_SUFFIX)
        }),
        Expr::Aggregate(aggregate) => match aggregate.op {
            AggregateOp::Group => true,
            AggregateOp::Min | AggregateOp::Max | AggregateOp::Avg => is_always_one(&aggregate.expr),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use crate::parse;

    #[test]
    fn extremes_follow_from_samples_or_from_an_evaluation_per_second() {
        for (text, expected, evaluations_per_step) in [
            (
                r#"((loss{run=~"a|b", rank!="0"}))"#,
                r#"max_over_time(loss{run=~"a|b", rank!="0"}[6s])"#,
                1,
            ),
            (
                r#"watts * on (gpu) group_left (rank) max by (gpu, rank) (used_info{run="r"})"#,
                r#"max_over_time(watts[6s]) * on (gpu) group_left (rank) max by (gpu, rank) (used_info{run="r"})"#,
                1,
            ),
            (
                "used_info * on (gpu) group_right (rank) watts",
                "used_info * on (gpu) group_right (rank) max_over_time(watts[6s])",
                1,
            ),
            (
                "watts * on (gpu) group by (gpu) (limit) and on (node) up == 1",
                "max_over_time(watts[6s]) * on (gpu) group by (gpu) (limit) and on (node) up == 1",
                1,
            ),
            (
                r#"watts * on (gpu) {__name__=~".*_info"}"#,
                r#"max_over_time((watts * on (gpu) {__name__=~".*_info"})[6s:1s])"#,
                6,
            ),
            (
                "used_info + on (gpu) watts",
                "max_over_time((used_info + on (gpu) watts)[6s:1s])",
                6,
            ),
            ("wait / total", "max_over_time((wait / total)[6s:1s])", 6),
            ("-loss", "max_over_time((-loss)[6s:1s])", 6),
            (
                "avg by (name) (logged)",
                "max_over_time((avg by (name) (logged))[6s:1s])",
                6,
            ),
        ] {
            let extremes = parse(text).unwrap().extremes(6_000).unwrap();
            assert_eq!(extremes.max.expr, parse(expected).unwrap().expr, "{text}");
            let expected = expected.replace("max_over_time", "min_over_time");
            assert_eq!(extremes.min.expr, parse(&expected).unwrap().expr, "{text}");
            assert_eq!(extremes.evaluations_per_step, evaluations_per_step, "{text}");
            assert_eq!(extremes.max.text(), text);
        }
        for text in ["x[5m]", "1", "time()", r#""text""#] {
            assert!(parse(text).unwrap().extremes(6_000).is_none(), "{text}");
        }
    }
}
