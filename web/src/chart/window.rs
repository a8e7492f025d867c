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

impl Window {
    /// Returns the length of the period, and its end if it is past.
    pub(crate) fn range(self) -> (i64, Option<TimestampMs>) {
        match self {
            Self::Last { range_ms } => (range_ms, None),
            // A period without length has no steps.
            Self::Past { start_ms, end_ms } => ((end_ms - start_ms).max(1), Some(end_ms)),
        }
    }
}

/// Returns the distance of points in milliseconds, a multiple of one second.
pub(super) fn step_ms(range_ms: i64) -> i64 {
    let seconds = (range_ms / POINTS + STEP_MS_MIN - 1) / STEP_MS_MIN;
    seconds.max(1) * STEP_MS_MIN
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
