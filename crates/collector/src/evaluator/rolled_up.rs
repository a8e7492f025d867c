//! What an answer means whose samples have aged into roll-ups: told to the person who asked, and a lookback that finds them.
//!
//! The store gives each function the aggregate that serves it best (the largest of the maxima for `max_over_time`). What that
//! cannot mend is said here, one warning a selector.

use std::fmt::Write;

use domain::series::{METRIC_NAME, MatchOp, Selection};
use domain::time::DisplayDuration;
use query::Params;

/// The most warnings of an answer; a query with more selectors has been told by then.
const WARNINGS_MAX: usize = 10;

/// Selections whose answers come from roll-ups, each with its longest bucket.
pub(super) type RolledUp<'a> = [(&'a Selection, i64)];

/// How far instant selectors must look back to find a bucket's end, when that is further than they do: they would see
/// nothing for most of each hour.
pub(super) fn lookback_ms(rolled_up: &RolledUp<'_>, params: &Params) -> Option<i64> {
    let instant = rolled_up
        .iter()
        .filter(|(selection, _)| selection.function.is_none());
    let longest = instant.map(|(_, resolution_ms)| *resolution_ms).max()?;
    (longest > params.lookback_ms).then_some(longest)
}

/// What to know about each, in words.
pub(super) fn warnings(rolled_up: &RolledUp<'_>, params: &Params) -> Vec<String> {
    let mut warnings = Vec::new();
    for (selection, resolution_ms) in rolled_up {
        let warning = warning(selection, *resolution_ms, params);
        if warnings.len() < WARNINGS_MAX && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings
}

fn warning(selection: &Selection, resolution_ms: i64, params: &Params) -> String {
    let bucket = DisplayDuration(resolution_ms);
    let function = selection.function.as_deref();
    let mut text = format!(
        "samples of {} have aged into one bucket per {bucket}: {}",
        name(selection),
        meaning(function, resolution_ms)
    );
    if let Some(window_ms) = function.and_then(|_| window_ms(selection, params)) {
        let buckets = if function.is_some_and(compares) { 2 } else { 1 };
        if window_ms < buckets * resolution_ms {
            let (window, enough) = (
                DisplayDuration(window_ms),
                DisplayDuration(buckets * resolution_ms),
            );
            let _never_fails = write!(
                text,
                "; a window of {window} can be too short to hold {}, ask for [{enough}] or more",
                if buckets == 2 { "two" } else { "one" }
            );
        }
    }
    text
}

/// What the aggregates that are kept make of a function.
fn meaning(function: Option<&str>, resolution_ms: i64) -> String {
    let bucket = DisplayDuration(resolution_ms);
    let Some(function) = function else {
        return format!("each value is the last of its bucket, up to {bucket} old");
    };
    let says = match function {
        "min_over_time" => "is the least of the buckets' minima, exact for windows of whole buckets",
        "max_over_time" => "is the largest of the buckets' maxima, exact for windows of whole buckets",
        "sum_over_time" => "is the sum of the buckets' sums, exact for windows of whole buckets",
        "avg_over_time" => {
            "is the mean of the buckets' means, where a bucket with few samples counts as much as one with many"
        }
        "count_over_time" => "counts buckets, not samples",
        "rate" | "increase" => {
            "goes from the end of one bucket to the end of another; resets in between are counted"
        }
        "resets" => "sees one reset per bucket at most",
        "changes" => "sees changes from bucket to bucket only",
        "irate" | "idelta" => "is between the ends of the last two buckets",
        "delta" | "deriv" | "predict_linear" | "double_exponential_smoothing" | "holt_winters" => {
            "goes by the last value of each bucket"
        }
        "stddev_over_time" | "stdvar_over_time" | "quantile_over_time" | "mad_over_time" => {
            "is of the last value of each bucket; what happened within one is lost"
        }
        "ts_of_min_over_time" | "ts_of_max_over_time" | "ts_of_first_over_time" | "ts_of_last_over_time" => {
            "finds the ends of buckets, by their last values"
        }
        _ => "goes by the last value of each bucket, at the bucket's end",
    };
    format!("{function}() {says}")
}

/// Functions that need two samples in a window.
fn compares(function: &str) -> bool {
    let names = [
        "rate",
        "increase",
        "irate",
        "idelta",
        "delta",
        "deriv",
        "predict_linear",
        "double_exponential_smoothing",
        "holt_winters",
    ];
    names.contains(&function)
}

/// The width of a selection's windows, where it follows from the steps of the query itself and not from a sub-query's.
fn window_ms(selection: &Selection, params: &Params) -> Option<i64> {
    if selection.step_ms != params.step_ms {
        return None;
    }
    let steps_ms = match params.step_ms {
        0 => 0,
        step_ms => (params.end_ms - params.start_ms) / step_ms * step_ms,
    };
    let read_ms = selection.end_ms - selection.start_ms + 1;
    // With `@` all steps have the same window.
    Some(if read_ms > steps_ms {
        read_ms - steps_ms
    } else {
        read_ms
    })
}

/// The metric, or else the matchers.
fn name(selection: &Selection) -> String {
    let named = selection
        .matchers
        .iter()
        .find(|matcher| matcher.name == METRIC_NAME && matcher.op == MatchOp::Equal);
    match named {
        Some(matcher) => matcher.value.clone(),
        None => {
            let matchers: Vec<String> = selection.matchers.iter().map(ToString::to_string).collect();
            format!("{{{}}}", matchers.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn check(query: &str, params: Params, resolution_ms: i64, expected: &[&str]) {
        let selections = query::parse(query).unwrap().selections(&params);
        let rolled_up: Vec<_> = selections
            .iter()
            .map(|selection| (selection, resolution_ms))
            .collect();
        assert_eq!(warnings(&rolled_up, &params), expected, "{query}");
    }

    #[test]
    fn each_function_is_told_what_became_of_its_samples() {
        let at = Params::instant(100 * HOUR);
        check(
            "load",
            at,
            MINUTE,
            &[
                "samples of load have aged into one bucket per 1m: each value is the last of its bucket, up to 1m old",
            ],
        );
        check(
            "sum(max_over_time(load[1h])) / count_over_time({a=\"b\"}[1h])",
            at,
            MINUTE,
            &[
                "samples of load have aged into one bucket per 1m: max_over_time() is the largest of the buckets' maxima, exact for windows of whole buckets",
                "samples of {a=\"b\"} have aged into one bucket per 1m: count_over_time() counts buckets, not samples",
            ],
        );
    }

    #[test]
    fn windows_that_are_too_short_are_named() {
        let range = Params::range(10 * HOUR, 100 * HOUR, HOUR);
        let expected = "samples of x have aged into one bucket per 1h: rate() goes from the end of one bucket to the end of another; \
                        resets in between are counted; a window of 5m can be too short to hold two, ask for [2h] or more";
        check("rate(x[5m])", range, HOUR, &[expected]);
        check("rate(x[5m] offset 3h)", range, HOUR, &[expected]);
        check("rate(x[5m] @ end())", range, HOUR, &[expected]);
        let long = "samples of x have aged into one bucket per 1h: rate() goes from the end of one bucket to the end of another; \
                    resets in between are counted";
        check("rate(x[2h])", range, HOUR, &[long]);
    }

    #[test]
    fn instant_selectors_look_back_as_far_as_a_bucket_is_long() {
        let at = Params::instant(100 * HOUR);
        let wide = |query: &str, resolution_ms| {
            let selections = query::parse(query).unwrap().selections(&at);
            let rolled_up: Vec<_> = selections
                .iter()
                .map(|selection| (selection, resolution_ms))
                .collect();
            lookback_ms(&rolled_up, &at)
        };
        assert_eq!(wide("x", MINUTE), None);
        assert_eq!(wide("x + y", HOUR), Some(HOUR));
        assert_eq!(wide("rate(x[1h])", HOUR), None);
    }
}
