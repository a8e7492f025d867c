//! A removal order that an attempt has accepted: `removal.json` in its folder, until the result of the order is stored.

use std::io;

use domain::run::checkpoint::RemovalOrder;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};
use shim::{Folder, boot_id, files};

use crate::uplink::link::now_ms;

/// The longest time for which an accepted order is valid, in milliseconds; that of an older collector is valid for so long. A person may pin
/// a checkpoint meanwhile; if not, another order follows.
const VALID_MS: u64 = RemovalOrder::VALID_MS.unsigned_abs();

/// The content of the file. The time is part of it, because the time of the file may be by the clock of a file server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedRemoval {
    #[serde(flatten)]
    pub(super) order: RemovalOrder,
    /// When the agent accepted it. Absent in the files of older agents.
    #[serde(default)]
    accepted_ms: Option<TimestampMs>,
    /// The same by the clock of the machine that cannot be set. Absent in the files of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted_uptime: Option<Uptime>,
}

/// The time since the boot, including the time in which the machine was suspended (`CLOCK_BOOTTIME`). This clock cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uptime {
    /// The id of the boot.
    pub(super) boot: String,
    pub(super) ms: u64,
}

/// One moment by both clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(super) wall_ms: TimestampMs,
    /// `None` if the kernel does not report the id of the boot.
    pub(super) uptime: Option<Uptime>,
}

impl ClockReading {
    pub(crate) fn now() -> Self {
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot_ms = since_boot.tv_sec.saturating_mul(1_000) + since_boot.tv_nsec / 1_000_000;
        let boot = Some(boot_id()).filter(|boot| !boot.is_empty());
        Self {
            wall_ms: now_ms(),
            uptime: boot
                .zip(u64::try_from(since_boot_ms).ok())
                .map(|(boot, ms)| Uptime { boot, ms }),
        }
    }
}

impl AcceptedRemoval {
    pub(crate) fn new(order: RemovalOrder, now: ClockReading) -> Self {
        Self {
            order,
            accepted_ms: Some(now.wall_ms),
            accepted_uptime: now.uptime,
        }
    }

    /// Reads the order in an attempt's folder, or returns `None` if there is none.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn read(folder: &Folder) -> io::Result<Option<Self>> {
        match folder.read(files::REMOVAL) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Returns true if the order is still valid by both clocks: as long as it was when the collector sent it. One of unknown age is not: the
    /// machine was restarted since, or an older agent stored it.
    pub(super) fn is_valid(&self, now: &ClockReading) -> bool {
        let valid_ms = self.order.valid_ms.map_or(VALID_MS, |ms| ms.min(VALID_MS));
        let by_wall_clock = self.age_by_wall_clock(now.wall_ms);
        let age_ms = match (&self.accepted_uptime, &now.uptime) {
            (Some(accepted), Some(now)) if accepted.boot == now.boot => {
                let by_uptime = now.ms.checked_sub(accepted.ms);
                // The uptime stands still while a virtual machine is paused.
                by_uptime.map(|age_ms| age_ms.max(by_wall_clock.unwrap_or(0)))
            }
            (Some(_), Some(_)) => None,
            _ => by_wall_clock,
        };
        age_ms.is_some_and(|age_ms| age_ms < valid_ms)
    }

    /// A clock that was set back by less than the age is not noticed.
    fn age_by_wall_clock(&self, now_ms: TimestampMs) -> Option<u64> {
        let age_ms = now_ms.saturating_sub(self.accepted_ms?);
        let is_known = age_ms >= -RemovalOrder::CLOCK_TOLERANCE_MS;
        is_known.then(|| u64::try_from(age_ms).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const NOW_MS: TimestampMs = 1_800_000_000_000;

    fn uptime(boot: &str, ms: u64) -> Option<Uptime> {
        let boot = boot.to_owned();
        Some(Uptime { boot, ms })
    }

    fn accepted(
        accepted_ms: Option<TimestampMs>,
        uptime: Option<Uptime>,
        valid_ms: Option<u64>,
    ) -> AcceptedRemoval {
        AcceptedRemoval {
            order: RemovalOrder {
                valid_ms,
                ..RemovalOrder::default()
            },
            accepted_ms,
            accepted_uptime: uptime,
        }
    }

    #[test]
    fn an_order_is_valid_for_15_minutes_although_the_wall_clock_is_set_back() {
        let all = Some(900_000);
        for (boot, up_ms, valid_ms, expected) in [
            ("b", 1_000_000, all, true),
            ("b", 1_899_999, all, true),
            ("b", 1_900_000, all, false),
            // The node was away for ten minutes.
            ("b", 1_299_999, Some(300_000), true),
            ("b", 1_300_000, Some(300_000), false),
            ("b", 1_000_000, Some(0), false),
            ("b", 1_900_000, Some(u64::MAX), false),
            // An older collector does not say how long.
            ("b", 1_899_999, None, true),
            ("another", 1_000_001, all, false),
            ("b", 999_999, all, false),
        ] {
            let order = accepted(Some(NOW_MS), uptime("b", 1_000_000), valid_ms);
            // The last one: a paused virtual machine, whose wall clock was corrected when it continued.
            for (set_ms, may_be_valid) in [(0, true), (-840_000, true), (10_000_000, false)] {
                let now = ClockReading {
                    wall_ms: NOW_MS + set_ms,
                    uptime: uptime(boot, up_ms),
                };
                let expected = expected && may_be_valid;
                assert_eq!(order.is_valid(&now), expected, "{order:?} at {now:?}");
            }
        }
    }

    #[test]
    fn the_wall_clock_decides_about_the_order_of_an_older_agent() {
        for (accepted_ms, expected) in [
            (Some(NOW_MS), true),
            (Some(NOW_MS - 899_999), true),
            (Some(NOW_MS - 900_000), false),
            // The clock was corrected by a second.
            (Some(NOW_MS + 1_000), true),
            (Some(NOW_MS + 60_001), false),
            (None, false),
        ] {
            let now = ClockReading {
                wall_ms: NOW_MS,
                uptime: uptime("b", 5),
            };
            let order = accepted(accepted_ms, None, Some(900_000));
            assert_eq!(order.is_valid(&now), expected, "{order:?}");
        }
    }

    #[test]
    fn the_clock_of_the_machine_advances() {
        let order = AcceptedRemoval::new(RemovalOrder::default(), ClockReading::now());
        assert!(order.is_valid(&ClockReading::now()), "{order:?}");
    }

    #[test]
    fn the_file_of_an_older_agent_is_read() {
        let order = RemovalOrder {
            folder: "/c".into(),
            remove: vec!["/c/step-1".into()],
            ..RemovalOrder::default()
        };
        let text = serde_json::to_string(&order).unwrap();
        let stored: AcceptedRemoval = serde_json::from_str(&text).unwrap();
        assert_eq!((&stored.order, stored.accepted_ms), (&order, None));
        let stored = AcceptedRemoval::new(order, ClockReading::now());
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(serde_json::from_str::<AcceptedRemoval>(&text).unwrap(), stored);
        let by_an_older_agent: RemovalOrder = serde_json::from_str(&text).unwrap();
        assert_eq!(by_an_older_agent, stored.order);
    }
}
