//! What the collector remembers of the last order to remove a checkpoint: when it was given, and which saves had succeeded and failed by
//! then. So automatic retention does not repeat an order that a node has refused, until something changes; a late answer to an earlier order
//! does not hide the current one; and an order without any answer ends with a reason.

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Checkpoint, CheckpointOnNode, RemovalOrder};
use crate::time::TimestampMs;

/// Time after which a node has not answered an order, in milliseconds. An order that was accepted at the end of its validity is carried out
/// after it, and a scan of a slow disk takes minutes.
const ANSWER_WITHIN_MS: i64 = 2 * RemovalOrder::VALID_MS;
/// Time after which automatic retention repeats an order that was refused, in milliseconds, although no save has succeeded or failed since.
/// The reason may have been temporary, and a run whose disk is full saves no further checkpoint.
pub(super) const RETRY_AFTER_MS: i64 = 3_600_000;
/// Why a checkpoint is still there after [`ANSWER_WITHIN_MS`].
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
    /// When the last save failed before the order, by the node's clock; the latest one of all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_ms: Option<TimestampMs>,
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
    /// Returns true if automatic retention must not give the order `next` for the storage that a node sees: an earlier order may still be
    /// carried out, or it was refused a short time ago, and no save has succeeded or failed since. Clocks can be set back, so a time in the
    /// future is not recent.
    pub(super) fn awaits_change(&self, node: &str, next: &RequestedRemoval) -> bool {
        let Some(mark) = self.seen.get(node).map(|view| view.mark.as_str()) else {
            return false;
        };
        let mut views = self.seen.values().filter(|view| view.mark == mark);
        views.any(|view| {
            let requested = view.requested_removal.as_ref();
            let Some(last) = requested.filter(|last| last.remain.is_some()) else {
                return false;
            };
            let wait_ms = if !view.is_answered() {
                RemovalOrder::VALID_MS
            } else if last.remain == next.remain && last.failed_ms >= next.failed_ms {
                RETRY_AFTER_MS
            } else {
                return false;
            };
            (0..wait_ms).contains(&(next.at_ms - last.at_ms))
        })
    }
}

impl CheckpointOnNode {
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
