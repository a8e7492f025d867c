//! What the collector remembers of the last order to remove a checkpoint: when it was given, and which checkpoint was to remain. So
//! automatic retention does not repeat an order that a node has refused, until something changes; a late answer to an earlier order does not
//! hide the current one; and an order without any answer ends with a reason.

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Checkpoint, CheckpointOnNode, RemovalOrder};
use crate::time::TimestampMs;

/// Time after which a node has not answered an order, in milliseconds. An order that was accepted at the end of its validity is carried out
/// after it, and a scan of a slow disk takes minutes.
const ANSWER_WITHIN_MS: i64 = 2 * RemovalOrder::VALID_MS;
/// Why a checkpoint is still there after that time.
pub(super) const NO_ANSWER: &str =
    "the node did not report within 30 minutes whether it carried out the order to remove it; prune again";

/// The last time that the removal of a checkpoint from the storage of one node was requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestedRemoval {
    /// When, by the collector's clock; [`RemovalOrder::ordered_ms`] of the order.
    pub at_ms: TimestampMs,
    /// The checkpoint that was to remain; `None` if no order was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remain: Option<LastComplete>,
}

/// The last complete checkpoint of a run at one moment. A script may save to the same path again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastComplete {
    /// Path of the checkpoint.
    pub path: String,
    /// When it was finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
}

impl From<&Checkpoint> for LastComplete {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            path: checkpoint.path.clone(),
            finished_ms: checkpoint.finished_ms,
        }
    }
}

impl Checkpoint {
    /// Returns true if automatic retention must not give an order now for the storage that a node sees: an earlier order may still be carried
    /// out, or it was refused and no checkpoint has been saved since. Clocks can be set back, so a time in the future is not recent.
    pub(super) fn awaits_change(&self, node: &str, last: &LastComplete, now_ms: TimestampMs) -> bool {
        let Some(mark) = self.seen.get(node).map(|view| view.mark.as_str()) else {
            return false;
        };
        let mut views = self.seen.values().filter(|view| view.mark == mark);
        views.any(|view| {
            let requested = view.requested_removal.as_ref();
            let Some((requested, remain)) = requested.and_then(|one| Some((one, one.remain.as_ref()?)))
            else {
                return false;
            };
            if view.is_answered() {
                remain == last
            } else {
                (0..RemovalOrder::VALID_MS).contains(&(now_ms - requested.at_ms))
            }
        })
    }
}

impl CheckpointOnNode {
    /// Records that its removal is requested now. `remain` is the checkpoint that must remain, if its node gets an order.
    pub(super) fn request_removal(&mut self, now_ms: TimestampMs, remain: Option<LastComplete>) {
        self.requested_removal = Some(RequestedRemoval {
            at_ms: now_ms,
            remain,
        });
    }

    /// Returns true if it is known why the last order did not remove it.
    fn is_answered(&self) -> bool {
        let requested_ms = self.requested_removal.as_ref().map(|requested| requested.at_ms);
        // Older agents do not say which order they answer.
        let answers = |order_ms: TimestampMs| requested_ms.is_none_or(|requested| order_ms >= requested);
        self.not_removed.is_some() && self.not_removed_order_ms.is_none_or(answers)
    }

    /// Returns true if a node was ordered to remove it, and has not answered for too long.
    pub(super) fn is_answer_overdue(&self, now_ms: TimestampMs) -> bool {
        let ordered = self.requested_removal.as_ref();
        let ordered = ordered.filter(|requested| requested.remain.is_some());
        let is_old = |requested: &RequestedRemoval| now_ms - requested.at_ms >= ANSWER_WITHIN_MS;
        ordered.is_some_and(is_old) && !self.is_answered()
    }

    /// Returns this view of a report as it is stored, with what the collector knows in addition. `earlier` is the stored one.
    pub(super) fn after(&self, earlier: Option<&Self>) -> Self {
        let mut now = Self {
            requested_removal: None,
            ..self.clone()
        };
        let Some(earlier) = earlier else {
            return now;
        };
        let requested = earlier.requested_removal.as_ref();
        let is_of_earlier_order =
            |order_ms: TimestampMs| requested.is_some_and(|requested| order_ms < requested.at_ms);
        // The report was made before the node got the last order.
        if now.not_removed_order_ms.is_some_and(is_of_earlier_order) {
            (now.not_removed, now.not_removed_order_ms) = (None, None);
        }
        let is_same = earlier.mark == self.mark;
        // A removal that was stopped halfway changes the mark.
        if is_same || now.not_removed.is_some() {
            now.requested_removal.clone_from(&earlier.requested_removal);
        }
        // The node may not know the reason, because the collector dropped the order.
        if is_same && now.not_removed.is_none() {
            now.not_removed.clone_from(&earlier.not_removed);
            now.not_removed_order_ms = earlier.not_removed_order_ms;
        }
        now
    }
}
