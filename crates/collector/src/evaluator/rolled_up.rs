//! Warnings about results from roll-ups, and a lookback that finds their samples.
//!
//! For each function the store returns the aggregate that fits it best (the largest of the maxima for `max_over_time`). If the result still
//! differs from one over raw samples, a warning says so, one per selector.

use std::fmt::Write;

use domain::series::Selection;
use domain::time::DisplayDuration;
use query::Params;

/// Maximum number of warnings of a result. A user with more selectors has got the message by then.
const WARNINGS_MAX: usize = 10;

/// Selections that are answered from roll-ups, each with its longest bucket in milliseconds.
pub(super) type RolledUp<'a> = [(&'a Selection, i64)];

/// Returns how far instant selectors must look back to find the end of a bucket, if that is further than their lookback. Otherwise they
/// would find nothing for most of each hour.
pub(super) fn lookback_ms(rolled_up: &RolledUp<'_>, params: &Params) -> Option<i64> {
    let instant = rolled_up
        .iter()
        .filter(|(selection, _)| selection.function.is_none());
    let longest = instant.map(|(_, resolution_ms)| *resolution_ms).max()?;
    (longest > params.lookback_ms).then_some(longest)
}

/// Returns the warnings for all selections.
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
        "samples of {} are rolled up into one bucket per {bucket}: {}",
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
                "; a window of {window} may be too short to contain {}, use [{enough}] or more",
                if buckets == 2 { "two" } else { "one" }
            );
        }
    }
    text
}

/// Describes what a function returns on the stored aggregates.
fn meaning(function: Option<&str>, resolution_ms: i64) -> String {
    let bucket = DisplayDuration(resolution_ms);
    let Some(function) = function else {
        return format!("each value is the last of its bucket, up to {bucket} old");
    };
    let says = match function {
        "min_over_time" => "is the smallest of the buckets' minima, exact for windows of whole buckets",
        "max_over_time" => "is the largest of the buckets' maxima, exact for windows of whole buckets",
        "sum_over_time" => "is the sum of the buckets' sums, exact for windows of whole buckets",
        "avg_over_time" => {
            "is the mean of the buckets' means, where a bucket with few samples counts as much as one with many"
        }
        "count_over_time" => "counts buckets, not samples",
        "rate" | "increase" => {
            "is computed from the end of one bucket to the end of another; resets in between are counted"
        }
        "resets" => "counts at most one reset per bucket",
        "changes" => "counts only changes from bucket to bucket",
        "irate" | "idelta" => "is computed from the ends of the last two buckets",
        "delta" | "deriv" | "predict_linear" | "double_exponential_smoothing" | "holt_winters" => {
            "uses the last value of each bucket"
        }
        "stddev_over_time" | "stdvar_over_time" | "quantile_over_time" | "mad_over_time" => {
            "uses the last value of each bucket; values within a bucket are lost"
        }
        "ts_of_min_over_time" | "ts_of_max_over_time" | "ts_of_first_over_time" | "ts_of_last_over_time" => {
            "returns ends of buckets, based on their last values"
        }
        _ => "uses the last value of each bucket, at the bucket's end",
    };
    format!("{function}() {says}")
}

/// Returns true for functions that need two samples in a window.
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

/// Returns the width of a selection's windows, or `None` if it comes from a sub-query and not from the query's own steps.
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

/// Returns the metric, or the matchers if there is no metric.
fn name(selection: &Selection) -> String {
    match selection.metric() {
        Some(metric) => metric.to_owned(),
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
    fn each_function_gets_a_note_on_its_roll_up() {
        let at = Params::instant(100 * HOUR);
        check(
            "load",
            at,
            MINUTE,
            &[
                "samples of load are rolled up into one bucket per 1m: each value is the last of its bucket, up to 1m old",
            ],
        );
        check(
            "sum(max_over_time(load[1h])) / count_over_time({a=\"b\"}[1h])",
            at,
            MINUTE,
            &[
                "samples of load are rolled up into one bucket per 1m: max_over_time() is the largest of the buckets' maxima, exact for windows of whole buckets",
                "samples of {a=\"b\"} are rolled up into one bucket per 1m: count_over_time() counts buckets, not samples",
            ],
        );
    }

    #[test]
    fn windows_that_are_too_short_are_named() {
        let range = Params::range(10 * HOUR, 100 * HOUR, HOUR);
        let expected = "samples of x are rolled up into one bucket per 1h: rate() is computed from the end of one bucket to the end of another; \
                        resets in between are counted; a window of 5m may be too short to contain two, use [2h] or more";
        check("rate(x[5m])", range, HOUR, &[expected]);
        check("rate(x[5m] offset 3h)", range, HOUR, &[expected]);
        check("rate(x[5m] @ end())", range, HOUR, &[expected]);
        let long = "samples of x are rolled up into one bucket per 1h: rate() is computed from the end of one bucket to the end of another; \
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
