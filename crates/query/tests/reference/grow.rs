//! Generates random expressions.
//!
//! There are two kinds of expressions: *whole* ones, whose values are integers if the data is, and *any*. Operations that can turn a
//! rounding error into a different result (comparisons, division, counting resets) are applied only to whole expressions.

use std::fmt;

use proptest::prelude::*;
use proptest::sample::select;

use super::evaluate::{Element, Vector};
use super::tree::{At, Binary, Group, Grouping, Names, Over, Selector, Shift, Source, Tree};

const DEPTH: u32 = 3;

/// Functions of a window that return one of its values, or a count.
const WHOLE_OVER: [&str; 11] = [
    "min_over_time",
    "max_over_time",
    "sum_over_time",
    "count_over_time",
    "last_over_time",
    "first_over_time",
    "present_over_time",
    "changes",
    "resets",
    "idelta",
    "last_over_time",
];
/// Functions of a window that need integers and return any numbers.
const LEAPING_OVER: [&str; 11] = [
    "rate",
    "increase",
    "delta",
    "irate",
    "idelta",
    "deriv",
    "predict_linear",
    "ts_of_first_over_time",
    "ts_of_last_over_time",
    "ts_of_max_over_time",
    "ts_of_min_over_time",
];
/// Functions of a window for which a small error stays small.
const SMOOTH_OVER: [&str; 11] = [
    "avg_over_time",
    "sum_over_time",
    "min_over_time",
    "max_over_time",
    "count_over_time",
    "last_over_time",
    "first_over_time",
    "present_over_time",
    "stdvar_over_time",
    "quantile_over_time",
    "mad_over_time",
];
const GROUPINGS: [Grouping; 7] = [
    Grouping::All,
    Grouping::By(&["node"]),
    Grouping::By(&["node", "gpu"]),
    Grouping::By(&["nowhere"]),
    Grouping::Without(&["gpu"]),
    Grouping::Without(&["node", "side"]),
    Grouping::Without(&[]),
];

/// True for `on`, false for `ignoring`; and the labels.
const MATCHINGS: [(bool, &[&str]); 7] = [
    (true, &["gpu", "node"]),
    (true, &["node"]),
    (true, &[]),
    (false, &[]),
    (false, &["side"]),
    (false, &["gpu"]),
    (false, &["gpu", "side"]),
];

pub(crate) fn tree() -> BoxedStrategy<Tree> {
    any_tree(DEPTH)
}

// === aggregations that pick ===

/// `topk` and similar aggregations, always the outermost node.
#[derive(Debug, Clone)]
pub(crate) struct Ranked {
    op: &'static str,
    limit: i32,
    pub(crate) grouping: Grouping,
    pub(crate) inner: Tree,
}

pub(crate) fn ranked() -> impl Strategy<Value = Ranked> {
    (
        select(&["topk", "bottomk", "limitk"][..]),
        -1_i32..4,
        select(&GROUPINGS[..]),
        whole(2),
    )
        .prop_map(|(op, limit, grouping, inner)| Ranked {
            op,
            limit,
            grouping,
            inner,
        })
}

impl Ranked {
    pub(crate) fn limit(&self) -> usize {
        self.limit.max(0) as usize
    }

    pub(crate) fn groups(&self, elements: &Vector) -> Vec<Vector> {
        let mut groups: Vec<(Names, Vector)> = Vec::new();
        for element in elements {
            let key = self.grouping.key(&element.labels);
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, members)) => members.push(element.clone()),
                None => groups.push((key, vec![element.clone()])),
            }
        }
        groups.into_iter().map(|(_, members)| members).collect()
    }

    /// Returns the values that must be selected from a group, in ascending order; `None` if any values are correct.
    pub(crate) fn values(&self, group: &[Element]) -> Option<Vec<f64>> {
        let numbers = || {
            group
                .iter()
                .map(|element| element.value)
                .filter(|value| !value.is_nan())
        };
        let mut values: Vec<f64> = numbers().collect();
        values.sort_by(f64::total_cmp);
        match self.op {
            "topk" => values.reverse(),
            "bottomk" => {}
            _ => return None,
        }
        // NaN is selected last.
        values.resize(group.len(), f64::NAN);
        values.truncate(self.limit());
        values.sort_by(f64::total_cmp);
        Some(values)
    }
}

impl fmt::Display for Ranked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} ({}, {})", self.op, self.grouping, self.limit, self.inner)
    }
}

// === expressions of whole numbers ===

fn whole(depth: u32) -> BoxedStrategy<Tree> {
    let leaf = prop_oneof![
        6 => selector().prop_map(Tree::Select),
        3 => over(&WHOLE_OVER, None).prop_map(Tree::Over),
        1 => (-3_i32..9).prop_map(|number| Tree::Constant(f64::from(number))),
        1 => selector().prop_map(Tree::Absent),
        1 => over(&["absent_over_time"], None).prop_map(Tree::AbsentOver),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let inner = move || whole(depth - 1);
    prop_oneof![
        2 => leaf,
        3 => aggregate(&["sum", "min", "max", "count", "group", "count_values"], inner()),
        2 => over(&WHOLE_OVER, Some(inner())).prop_map(Tree::Over),
        1 => over(&["absent_over_time"], Some(inner())).prop_map(Tree::AbsentOver),
        1 => inner().prop_map(|inner| Tree::Each("abs", Box::new(inner))),
        1 => inner().prop_map(|inner| Tree::Only(Box::new(inner))),
        2 => with_number(&["+", "-", "*", "==", "!=", "<", "<=", ">", ">="], inner()),
        4 => binary(&["+", "-", "*", "==", "!=", "<", "<=", ">", ">="], inner(), inner()),
        3 => sets(inner(), inner()),
    ]
    .boxed()
}

// === expressions of any numbers ===

fn any_tree(depth: u32) -> BoxedStrategy<Tree> {
    let leaf = prop_oneof![
        4 => over(&LEAPING_OVER, None).prop_map(Tree::Over),
        4 => over(&SMOOTH_OVER, None).prop_map(Tree::Over),
        1 => Just(Tree::Time),
        2 => selector().prop_map(|selector| Tree::Each("timestamp", Box::new(Tree::Select(selector)))),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let (whole, inner) = (move || whole(depth - 1), move || any_tree(depth - 1));
    prop_oneof![
        2 => leaf,
        3 => whole(),
        3 => aggregate(&["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile"], inner()),
        2 => over(&LEAPING_OVER, Some(whole())).prop_map(Tree::Over),
        2 => over(&SMOOTH_OVER, Some(inner())).prop_map(Tree::Over),
        1 => (select(&["abs", "-", "timestamp"][..]), inner()).prop_map(|(function, inner)| Tree::Each(function, Box::new(inner))),
        1 => inner().prop_map(|inner| Tree::Only(Box::new(inner))),
        1 => with_number(&["+", "-", "*"], inner()),
        1 => with_number(&["/", "%", "^", "atan2"], whole()),
        2 => binary(&["+", "-", "*"], inner(), inner()),
        2 => binary(&["/", "%", "^", "atan2"], whole(), whole()),
        2 => sets(inner(), inner()),
    ]
    .boxed()
}

// === nodes ===

fn aggregate(ops: &'static [&'static str], inner: BoxedStrategy<Tree>) -> BoxedStrategy<Tree> {
    let quantile = select(&["0.3", "0", "1", "0.99", "-1", "2"][..]);
    (select(ops), quantile, select(&GROUPINGS[..]), inner)
        .prop_map(|(op, quantile, grouping, inner)| {
            let param = match op {
                "quantile" => Some(quantile),
                "count_values" => Some("\"value\""),
                _ => None,
            };
            Tree::Aggregate {
                op,
                param,
                grouping,
                inner: Box::new(inner),
            }
        })
        .boxed()
}

fn over(functions: &'static [&'static str], inner: Option<BoxedStrategy<Tree>>) -> BoxedStrategy<Over> {
    let source = match inner {
        None => selector().prop_map(Source::Samples).boxed(),
        Some(inner) => (inner, select(&[3_000_i64, 5_000, 8_500][..]), shift())
            .prop_map(|(inner, step_ms, shift)| Source::Subquery {
                inner: Box::new(inner),
                step_ms,
                shift,
            })
            .boxed(),
    };
    (
        select(functions),
        source,
        1_i64..40,
        select(&[0.5, 0.0, 1.0, 0.83, -0.1][..]),
        -20_i32..60,
    )
        .prop_map(|(function, of, range_s, quantile, ahead)| {
            let param = match function {
                "quantile_over_time" => Some(quantile),
                "predict_linear" => Some(f64::from(ahead)),
                _ => None,
            };
            Over {
                function,
                param,
                of,
                range_ms: range_s * 1_000,
            }
        })
        .boxed()
}

fn with_number(ops: &'static [&'static str], inner: BoxedStrategy<Tree>) -> BoxedStrategy<Tree> {
    (select(ops), any::<bool>(), inner, -5_i32..30, any::<bool>())
        .prop_map(|(op, is_bool, left, right, is_swapped)| Tree::WithNumber {
            op,
            is_bool: is_bool && compares(op),
            left: Box::new(left),
            right: f64::from(right),
            is_swapped,
        })
        .boxed()
}

fn binary(
    ops: &'static [&'static str],
    left: BoxedStrategy<Tree>,
    right: BoxedStrategy<Tree>,
) -> BoxedStrategy<Tree> {
    let matching = select(&MATCHINGS[..]);
    let group = select(
        &[
            Group::None,
            Group::None,
            Group::Left(&[]),
            Group::Left(&["side"]),
            Group::Right(&[]),
            Group::Right(&["side"]),
        ][..],
    );
    (select(ops), any::<bool>(), matching, group, left, right)
        .prop_map(|(op, is_bool, (is_on, labels), group, left, right)| {
            Tree::Binary(Box::new(Binary {
                op,
                is_bool: is_bool && compares(op),
                is_on,
                labels,
                group,
                left,
                right,
            }))
        })
        .boxed()
}

fn sets(left: BoxedStrategy<Tree>, right: BoxedStrategy<Tree>) -> BoxedStrategy<Tree> {
    let matching = select(&MATCHINGS[..]);
    (select(&["and", "or", "unless"][..]), matching, left, right)
        .prop_map(|(op, (is_on, labels), left, right)| {
            Tree::Binary(Box::new(Binary {
                op,
                is_bool: false,
                is_on,
                labels,
                group: Group::None,
                left,
                right,
            }))
        })
        .boxed()
}

fn compares(op: &str) -> bool {
    ["==", "!=", "<", "<=", ">", ">="].contains(&op)
}

// === selectors ===

fn selector() -> BoxedStrategy<Selector> {
    let matcher = select(
        &[
            None,
            None,
            None,
            Some(("gpu", "=", "0")),
            Some(("node", "!=", "a")),
            Some(("node", "=~", "a|c")),
            Some(("gpu", "!~", "1|2")),
            Some(("side", "=", "")),
        ][..],
    );
    (
        select(&["gauge", "ticks_total", "node_info"][..]),
        matcher,
        shift(),
    )
        .prop_map(|(name, matcher, shift)| Selector { name, matcher, shift })
        .boxed()
}

fn shift() -> BoxedStrategy<Shift> {
    let at = prop_oneof![
        8 => Just(None),
        1 => Just(Some(At::Start)),
        1 => Just(Some(At::End)),
        1 => (-10_i64..80).prop_map(|seconds| Some(At::Time(seconds * 1_000))),
    ];
    let offset = prop_oneof![4 => Just(0_i64), 1 => (-15_i64..15).prop_map(|seconds| seconds * 1_000)];
    (at, offset)
        .prop_map(|(at, offset_ms)| Shift { at, offset_ms })
        .boxed()
}
