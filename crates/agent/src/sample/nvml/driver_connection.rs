//! Tracks whether NVML is open, why it is not, and when the next attempt to open it is due.

use std::time::{Duration, Instant};

/// How often the agent tries to open a driver that was never there. A driver may be installed and loaded later.
const OPEN_INTERVAL: Duration = Duration::from_secs(60);
/// The first wait before opening a driver that has gone, and the longest wait. Reloading a driver takes seconds, an upgrade minutes.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = OPEN_INTERVAL;

/// Why NVML is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedReason {
    /// NVML is open, or it is being opened again.
    Open,
    /// NVML was never open.
    Never,
    /// NVML was open, and the driver has gone.
    Gone,
    /// A user requested that the GPUs be released.
    Released,
}

/// The state of the connection to the driver.
#[derive(Debug)]
pub(super) struct DriverConnection {
    reason: ClosedReason,
    next: Instant,
    wait: Duration,
    mismatched: bool,
    lost: Vec<u32>,
}

impl DriverConnection {
    /// NVML was never open, and the first attempt is due now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            reason: ClosedReason::Never,
            next: now,
            wait: RETRY_MIN,
            mismatched: false,
            lost: Vec::new(),
        }
    }

    pub(super) fn reason(&self) -> ClosedReason {
        self.reason
    }

    /// Returns true if an attempt to open NVML is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Records that NVML was opened.
    pub(super) fn opened(&mut self) {
        self.reason = ClosedReason::Open;
        self.wait = RETRY_MIN;
        self.mismatched = false;
    }

    /// Records that NVML was closed, or is closed for another reason than before. Returns true if the reason changed. After a release, the
    /// next attempt is due at once.
    pub(super) fn close(&mut self, reason: ClosedReason) -> bool {
        let new = self.reason != reason;
        self.reason = reason;
        if reason == ClosedReason::Released {
            // Different GPUs may be in the slots afterwards.
            self.lost.clear();
            self.next = Instant::now();
        }
        new
    }

    /// Makes the next attempt due at once.
    pub(super) fn reopen_at_once(&mut self) {
        self.next = Instant::now();
    }

    /// Records that an attempt to open NVML failed.
    pub(super) fn failed(&mut self, now: Instant) {
        let wait = match self.reason {
            ClosedReason::Gone => {
                let longer = RETRY_MAX.min(self.wait * 2);
                std::mem::replace(&mut self.wait, longer)
            }
            _ => OPEN_INTERVAL,
        };
        self.next = now + wait;
    }

    /// Returns true for the first attempt that found a library that does not match the driver. Only the first one is reported as an event.
    pub(super) fn is_first_mismatch(&mut self, mismatch: bool) -> bool {
        mismatch && !std::mem::replace(&mut self.mismatched, true)
    }

    /// Returns the GPUs that did not answer when NVML was closed.
    pub(super) fn lost(&self) -> &[u32] {
        &self.lost
    }

    pub(super) fn remember_lost(&mut self, lost: Vec<u32>) {
        self.lost = lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds_to_next(connection: &DriverConnection, now: Instant) -> u64 {
        (0..1_000)
            .find(|&seconds| connection.is_due(now + Duration::from_secs(seconds)))
            .expect("an attempt is due")
    }

    #[test]
    fn a_driver_that_was_never_open_is_retried_every_minute() {
        let now = Instant::now();
        let mut connection = DriverConnection::new(now);
        assert!(connection.is_due(now));
        for _ in 0..3 {
            connection.failed(now);
            assert_eq!(seconds_to_next(&connection, now), 60);
        }
    }

    #[test]
    fn a_lost_driver_is_retried_soon_and_then_less_often() {
        let now = Instant::now();
        let mut connection = DriverConnection::new(now);
        connection.opened();
        assert!(connection.close(ClosedReason::Gone) && !connection.close(ClosedReason::Gone));
        let waits: Vec<u64> = (0..7)
            .map(|_| {
                connection.failed(now);
                seconds_to_next(&connection, now)
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        connection.opened();
        connection.close(ClosedReason::Gone);
        connection.failed(now);
        assert_eq!(seconds_to_next(&connection, now), 2);
    }

    #[test]
    fn a_library_mismatch_is_reported_once_per_closing() {
        let mut connection = DriverConnection::new(Instant::now());
        let reported: Vec<bool> = [false, true, true]
            .map(|m| connection.is_first_mismatch(m))
            .into();
        assert_eq!(reported, [false, true, false]);
        connection.opened();
        assert!(connection.is_first_mismatch(true));
    }
}
