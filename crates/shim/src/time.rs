//! What time it is, and waiting for something to happen.

use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> TimestampMs {
    now_ns() / 1_000_000
}

/// Waits until one of these can be read, a signal comes or the time is over.
///
/// # Errors
/// When the kernel refuses.
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
