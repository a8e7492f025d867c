//! How a collector requests that agents retry later, and how agents read that request.
//!
//! Over HTTP it is status 503 with `Retry-After`; over gRPC it is the status `UNAVAILABLE` with the same entry in its metadata. The agent
//! converts both to a [`Status`].

use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataValue;

/// The HTTP header, and the key in the metadata of a gRPC status. The value is whole seconds.
pub const RETRY_AFTER: &str = "retry-after";
/// The longest wait that an agent accepts from a collector, or from a proxy in front of it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Returns a status that requests a retry after some seconds.
#[must_use]
pub fn status(message: impl Into<String>, retry_after_s: u64) -> Status {
    let mut status = Status::unavailable(message);
    status
        .metadata_mut()
        .insert(RETRY_AFTER, MetadataValue::from(retry_after_s));
    status
}

/// Returns how long to wait before the next attempt to connect, or `None` if the other side did not specify it.
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
    fn a_requested_wait_is_read_and_bounded() {
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
