//! Differences from Prometheus 2.42 that random queries meet occasionally. docs/promql.md explains each.

use crate::answer::Answer;
use crate::grammar::Question;

/// How inexact sums of 2.42 may be, relative to the result, for example the variance of times since 1970.
const ROUNDING: f64 = 1e-6;

/// Returns why two answers differ, if the reason is known.
pub(crate) fn explain(question: &Question, ours: &Answer, theirs: &Answer) -> Option<&'static str> {
    let text = &question.text;
    if text.contains("atan2") && ours.equals(&theirs.nameless(), question.is_ordered()) {
        return Some("2.42 keeps the metric's name in the result of atan2");
    }
    if (text.contains("stddev") || text.contains("stdvar")) && ours.is_nan_where_other_than(theirs) {
        return Some(
            "2.42 takes the variance of a single value for 0 also when that is infinite or not a number",
        );
    }
    if ours.is_error_of("same labelset") != theirs.is_error_of("same labelset") {
        return Some(
            "names are dropped at the end here, and at each function in 2.42: label sets meet elsewhere",
        );
    }
    if text.contains(" or ") && text.contains("211ms:") {
        return Some(
            "names are dropped at the end here, and at each function in 2.42: within a sub-query two series stay two",
        );
    }
    let compares = [" < ", " > "].iter().any(|op| text.contains(op));
    if compares && ours.is_error_of("many-to-one matching must be explicit") && !theirs.is_error() {
        return Some("2.42 allows a second match that the comparison filters out");
    }
    if shifts_a_timestamp_twice(text) {
        return Some("Prometheus ignores the offset in timestamp(… @ … offset …)");
    }
    let has_sums = ["stddev", "stdvar", "avg", "sum", "deriv", "delta"]
        .iter()
        .any(|name| text.contains(name));
    if has_sums && ours.is_near(theirs, ROUNDING) {
        return Some("sums are compensated for rounding in 3, and lose digits in 2.42");
    }
    None
}

/// Returns true if a selector directly inside `timestamp()` has both `@` and `offset`.
fn shifts_a_timestamp_twice(text: &str) -> bool {
    let text = text.replace("start()", "start").replace("end()", "end");
    let inner = text
        .split("timestamp(")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    inner
        .into_iter()
        .any(|inner| inner.contains(" @ ") && inner.contains(" offset "))
}
