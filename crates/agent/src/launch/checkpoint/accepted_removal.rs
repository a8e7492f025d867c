//! A removal order that an attempt has accepted: `removal.json` in its folder, until the order is executed.

use std::io;
use std::time::{Duration, SystemTime};

use domain::run::checkpoint::RemovalOrder;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};
use shim::{Folder, files};

/// The longest time for which an accepted order is valid; that of an older collector is valid for so long. A person may pin a checkpoint
/// meanwhile; if not, another order follows.
const VALID_FOR: Duration = Duration::from_millis(RemovalOrder::VALID_MS.unsigned_abs());

/// The content of the file. The time is part of it, because the time of the file may be by the clock of a file server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedRemoval {
    #[serde(flatten)]
    pub(super) order: RemovalOrder,
    /// When the agent accepted it. Absent in the files of older agents.
    #[serde(default)]
    accepted_ms: Option<TimestampMs>,
}

impl AcceptedRemoval {
    pub(crate) fn new(order: RemovalOrder, now_ms: TimestampMs) -> Self {
        Self {
            order,
            accepted_ms: Some(now_ms),
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

    /// Returns until when the order is valid: as long as it was still valid when the collector sent it. An order of unknown age is not: an
    /// older agent stored it, or the clock was set back since.
    pub(super) fn valid_until(&self, now: SystemTime) -> SystemTime {
        let valid_for = self.order.valid_ms.map_or(VALID_FOR, Duration::from_millis);
        let valid_for = valid_for.min(VALID_FOR);
        let accepted = self.accepted_ms.and_then(|ms| u64::try_from(ms).ok());
        let accepted = accepted.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        match accepted.filter(|accepted| *accepted <= now + VALID_FOR) {
            Some(accepted) => accepted + valid_for,
            None => SystemTime::UNIX_EPOCH,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }

    #[test]
    fn an_order_is_valid_for_15_minutes_from_its_request_and_one_of_unknown_age_is_not() {
        let now_ms = 1_800_000_000_000;
        let valid_ms: u64 = 900_000;
        let later = now_ms + 2 * valid_ms;
        let all = Some(valid_ms);
        for (accepted_ms, valid_ms, until) in [
            (Some(now_ms), all, at(now_ms + valid_ms)),
            (Some(now_ms - valid_ms), all, at(now_ms)),
            // The node was away for ten minutes.
            (Some(now_ms), Some(300_000), at(now_ms + 300_000)),
            (Some(now_ms), Some(0), at(now_ms)),
            (Some(now_ms), Some(u64::MAX), at(now_ms + valid_ms)),
            // An older collector does not say how long.
            (Some(now_ms), None, at(now_ms + valid_ms)),
            // The clock was corrected by a second.
            (Some(now_ms + 1_000), all, at(now_ms + 1_000 + valid_ms)),
            (Some(later), all, SystemTime::UNIX_EPOCH),
            (None, all, SystemTime::UNIX_EPOCH),
        ] {
            let stored = AcceptedRemoval {
                order: RemovalOrder {
                    valid_ms,
                    ..RemovalOrder::default()
                },
                accepted_ms: accepted_ms.map(|ms| i64::try_from(ms).unwrap()),
            };
            assert_eq!(stored.valid_until(at(now_ms)), until, "{stored:?}");
        }
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
        let stored = AcceptedRemoval::new(order, 7);
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(serde_json::from_str::<AcceptedRemoval>(&text).unwrap(), stored);
        let by_an_older_agent: RemovalOrder = serde_json::from_str(&text).unwrap();
        assert_eq!(by_an_older_agent, stored.order);
    }
}
