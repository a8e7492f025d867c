//! The only place that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;

/// Returns the current time in milliseconds since the epoch, or 0 if the machine's clock is before 1970.
#[must_use]
pub fn now_ms() -> TimestampMs {
    now_us() / 1_000
}

/// Returns the current time in microseconds since the epoch. Agents measure their clock offset against it.
#[must_use]
pub fn now_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}
