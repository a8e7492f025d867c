//! How a collector asks agents to come back later, and how agents read that.
//!
//! Over HTTP it is a 503 with `Retry-After`, over gRPC the status `UNAVAILABLE` with the same entry in its metadata. Either becomes a
//! [`Status`] on the agent's side.

use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataValue;

/// The header, and the metadata of a status: whole seconds.
pub const RETRY_AFTER: &str = "retry-after";
/// The longest wait that is taken from a collector, or from a proxy in front of it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A status that asks to come back after some seconds.
#[must_use]
pub fn status(message: impl Into<String>, retry_after_s: u64) -> Status {
    let mut status = Status::unavailable(message);
    status
        .metadata_mut()
        .insert(RETRY_AFTER, MetadataValue::from(retry_after_s));
    status
}

/// How long to wait before the next try; `None` when the other side did not say.
#[must_use]
pub fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status
        .metadata()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_as_it_was_asked_for_within_reason() {
        assert_eq!(retry_after(&status("busy", 2)), Some(Duration::from_secs(2)));
        assert_eq!(retry_after(&status("busy", 86_400)), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after(&Status::unavailable("gone")), None);
        let mut odd = Status::unavailable("busy");
        odd.metadata_mut().insert(
            RETRY_AFTER,
            MetadataValue::from_static("Mon, 23 Nov 2026 10:00:00 GMT"),
        );
        assert_eq!(retry_after(&odd), None);
    }
}
