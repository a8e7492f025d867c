//! A removal order that an attempt has accepted: `removal.json` in its folder, until the order is executed.

use std::time::{Duration, SystemTime};

use domain::run::checkpoint::RemovalOrder;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};

/// How long an order is valid. A person may pin a checkpoint meanwhile; if not, another order follows.
const VALID_FOR: Duration = Duration::from_secs(900);

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

    /// Returns until when the order is valid. An order of unknown age is not: an older agent stored it, or the clock was set back since.
    pub(super) fn valid_until(&self, now: SystemTime) -> SystemTime {
        let accepted = self.accepted_ms.and_then(|ms| u64::try_from(ms).ok());
        let accepted = accepted.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        match accepted.filter(|accepted| *accepted <= now + VALID_FOR) {
            Some(accepted) => accepted + VALID_FOR,
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
    fn an_order_is_valid_for_15_minutes_and_one_of_unknown_age_is_not() {
        let now_ms = 1_800_000_000_000;
        let valid_ms: u64 = 900_000;
        let later = now_ms + 2 * valid_ms;
        for (accepted_ms, until) in [
            (Some(now_ms), at(now_ms + valid_ms)),
            (Some(now_ms - valid_ms), at(now_ms)),
            // The clock was corrected by a second.
            (Some(now_ms + 1_000), at(now_ms + 1_000 + valid_ms)),
            (Some(later), SystemTime::UNIX_EPOCH),
            (None, SystemTime::UNIX_EPOCH),
        ] {
            let stored = AcceptedRemoval {
                order: RemovalOrder::default(),
                accepted_ms: accepted_ms.map(|ms| i64::try_from(ms).unwrap()),
            };
            assert_eq!(stored.valid_until(at(now_ms)), until, "{accepted_ms:?}");
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
