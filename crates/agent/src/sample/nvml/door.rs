//! Whether NVML is open, why it is not, and when opening it is tried next.

use std::time::{Duration, Instant};

/// How often a driver is looked for that never was there: drivers get installed and loaded.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How soon one is looked for that has gone, and how rarely at last: a reload takes seconds, an upgrade minutes.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = LOOK_EVERY;

/// Why NVML is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It is open, or only being opened anew.
    Open,
    /// It never was.
    Never,
    /// It was, and the driver has gone.
    Gone,
    /// Somebody asked for the GPUs.
    Released,
}

/// The door to the driver.
#[derive(Debug)]
pub(super) struct Door {
    reason: Reason,
    next: Instant,
    wait: Duration,
    mismatched: bool,
    lost: Vec<u32>,
}

impl Door {
    /// Never open yet, and to be tried at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            reason: Reason::Never,
            next: now,
            wait: RETRY_MIN,
            mismatched: false,
            lost: Vec::new(),
        }
    }

    pub(super) fn reason(&self) -> Reason {
        self.reason
    }

    /// Whether it is time to try.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// It has been opened.
    pub(super) fn opened(&mut self) {
        self.reason = Reason::Open;
        self.wait = RETRY_MIN;
        self.mismatched = false;
    }

    /// It has been closed, or is closed for another reason than before; says whether that is new. The first try is at once.
    pub(super) fn close(&mut self, reason: Reason) -> bool {
        let new = self.reason != reason;
        self.reason = reason;
        if reason == Reason::Released {
            // What is in the slots afterwards may be other GPUs.
            self.lost.clear();
            self.next = Instant::now();
        }
        new
    }

    /// It has been closed to be opened again.
    pub(super) fn reopen_at_once(&mut self) {
        self.next = Instant::now();
    }

    /// A try has failed.
    pub(super) fn failed(&mut self, now: Instant) {
        let wait = match self.reason {
            Reason::Gone => {
                let longer = RETRY_MAX.min(self.wait * 2);
                std::mem::replace(&mut self.wait, longer)
            }
            _ => LOOK_EVERY,
        };
        self.next = now + wait;
    }

    /// Whether this is the first try that met a library that does not fit the driver: that is worth one event.
    pub(super) fn is_first_mismatch(&mut self, mismatch: bool) -> bool {
        mismatch && !std::mem::replace(&mut self.mismatched, true)
    }

    /// GPUs that did not answer when it was closed.
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

    fn seconds_to_next(door: &Door, now: Instant) -> u64 {
        (0..1_000)
            .find(|&seconds| door.is_due(now + Duration::from_secs(seconds)))
            .expect("a try comes")
    }

    #[test]
    fn a_driver_that_never_was_is_looked_for_every_minute() {
        let now = Instant::now();
        let mut door = Door::new(now);
        assert!(door.is_due(now));
        for _ in 0..3 {
            door.failed(now);
            assert_eq!(seconds_to_next(&door, now), 60);
        }
    }

    #[test]
    fn one_that_has_gone_is_looked_for_soon_and_then_more_rarely() {
        let now = Instant::now();
        let mut door = Door::new(now);
        door.opened();
        assert!(door.close(Reason::Gone) && !door.close(Reason::Gone));
        let waits: Vec<u64> = (0..7)
            .map(|_| {
                door.failed(now);
                seconds_to_next(&door, now)
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        door.opened();
        door.close(Reason::Gone);
        door.failed(now);
        assert_eq!(seconds_to_next(&door, now), 2);
    }

    #[test]
    fn a_library_that_does_not_fit_is_told_once_a_closing() {
        let mut door = Door::new(Instant::now());
        let told: Vec<bool> = [false, true, true].map(|m| door.is_first_mismatch(m)).into();
        assert_eq!(told, [false, true, false]);
        door.opened();
        assert!(door.is_first_mismatch(true));
    }
}
