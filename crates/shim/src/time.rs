//! The current time, and waiting for events.

use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// The current time in nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The current time in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> TimestampMs {
    now_ns() / 1_000_000
}

/// Waits until one of these can be read, a signal arrives or the time limit is reached.
///
/// # Errors
/// If poll(2) fails.
pub fn wait_for<'fd>(sources: impl Iterator<Item = BorrowedFd<'fd>>, limit: Duration) -> Result<(), Errno> {
    let mut fds: Vec<PollFd<'fd>> = sources
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
