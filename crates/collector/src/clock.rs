//! The one place that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;

/// Now, in milliseconds since the epoch; 0 on a machine whose clock stands before 1970.
#[must_use]
pub fn now_ms() -> TimestampMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimestampMs::try_from(since_epoch.as_millis()).unwrap_or(TimestampMs::MAX)
}
