//! The period that a chart shows.

use domain::time::TimestampMs;

/// Points per chart: about as many as a phone has pixels, and enough on a desktop.
const POINTS: i64 = 600;
/// Samples arrive once per second, so a smaller step gives no more values.
const STEP_MS_MIN: i64 = 1_000;

/// A period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// The last `range_ms` milliseconds; moves on.
    Last {
        /// Length in milliseconds.
        range_ms: i64,
    },
    /// A past period.
    Past {
        /// Its start.
        start_ms: TimestampMs,
        /// Its end.
        end_ms: TimestampMs,
    },
}

/// Returns the distance of points in milliseconds, a multiple of one second.
pub(super) fn step_ms(range_ms: i64) -> i64 {
    let seconds = (range_ms / POINTS + STEP_MS_MIN - 1) / STEP_MS_MIN;
    seconds.max(1) * STEP_MS_MIN
}

/// Returns the API path of a past period.
pub(crate) fn range_path(query: &str, start_ms: TimestampMs, end_ms: TimestampMs, step_ms: i64) -> String {
    let query = js_sys::encode_uri_component(query);
    let step_s = step_ms / 1_000;
    let seconds = |ms: TimestampMs| format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000));
    let (start, end) = (seconds(start_ms), seconds(end_ms));
    format!("/api/v1/query_range?query={query}&start={start}&end={end}&step={step_s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_whole_seconds_and_some_hundred_points() {
        for (range_ms, expected_ms) in [
            (0, 1_000),
            (600_000, 1_000),
            (601_000, 2_000),
            (3_600_000, 6_000),
            (86_400_000, 144_000),
        ] {
            assert_eq!(step_ms(range_ms), expected_ms, "{range_ms}");
        }
    }
}
