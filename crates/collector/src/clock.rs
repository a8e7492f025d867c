//! The one place that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;

/// Now, in milliseconds since the epoch; 0 on a machine whose clock stands before 1970.
#[must_use]
pub fn now_ms() -> TimestampMs {
    now_us() / 1_000
}

/// Now, in microseconds since the epoch: for agents that measure their clocks by ours.
#[must_use]
pub fn now_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}
