//! When a group is evaluated. A hash of the group's name spreads the groups over their interval; the times are the same after each restart.
//!
//! This is what Prometheus does. If all groups ran at full seconds, the store would get all queries at the same time and be idle in
//! between. If the times changed at a restart, recorded samples would have other times than before.

use crate::time::TimestampMs;

/// Times at which one group is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    interval_ms: i64,
    offset_ms: i64,
}

impl Schedule {
    /// Returns the schedule: every `interval_ms` (at least 1), shifted by a hash of `file` and `group`.
    #[must_use]
    pub fn new(interval_ms: i64, file: &str, group: &str) -> Self {
        let interval_ms = interval_ms.max(1);
        let hash = [file, "\u{ff}", group]
            .into_iter()
            .flat_map(str::bytes)
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let offset_ms = (hash % interval_ms.unsigned_abs()).cast_signed();
        Self {
            interval_ms,
            offset_ms,
        }
    }

    /// Returns the milliseconds between evaluations.
    #[must_use]
    pub fn interval_ms(self) -> i64 {
        self.interval_ms
    }

    /// Returns the last scheduled time that is not after `now_ms`.
    #[must_use]
    pub fn at_or_before(self, now_ms: TimestampMs) -> TimestampMs {
        (now_ms - self.offset_ms).div_euclid(self.interval_ms) * self.interval_ms + self.offset_ms
    }

    /// Returns the first scheduled time after `now_ms`.
    #[must_use]
    pub fn after(self, now_ms: TimestampMs) -> TimestampMs {
        self.at_or_before(now_ms) + self.interval_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_an_interval_apart_and_the_same_for_everyone() {
        let schedule = Schedule::new(15_000, "a.yaml", "g");
        for now_ms in [0, 1, 14_999, 1_700_000_000_123] {
            let (at, next) = (schedule.at_or_before(now_ms), schedule.after(now_ms));
            assert!(at <= now_ms && now_ms < next, "{at} {now_ms} {next}");
            assert_eq!(next - at, 15_000);
            assert_eq!(schedule.at_or_before(at), at);
        }
        assert_eq!(schedule, Schedule::new(15_000, "a.yaml", "g"));
        assert_ne!(schedule, Schedule::new(15_000, "a.yaml", "h"));
    }
}
