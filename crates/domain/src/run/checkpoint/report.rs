//! Reports of a node about its checkpoints, and orders to the node to remove some; inside `NodeReport` and `NodeCommand`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::Checkpoint;
use crate::time::TimestampMs;

/// The checkpoints on one node. Each report replaces the node's previous one. A report that is too large for a message is sent as several
/// partial ones, see [`split`](super::split()).
///
/// All fields have defaults: an agent that is older than a field does not send it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointReport {
    /// The run's folder on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Free bytes of its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Where a pointer called `latest` points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// Why the folder cannot be read, or why a removal failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// True if the report is not complete: checkpoints that it does not name may exist.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// In a partial report: paths of checkpoints that do not exist any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// In the last of the partial reports that a complete one was split into: [`path_hash`] of each of its checkpoints. Checkpoints that
    /// are not listed are gone. A collector of protocol 1 ignores this field and uses only `gone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed: Option<Vec<u64>>,
    /// The last save that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SaveFailure>,
    /// True if the agent records which files the run wrote, and accepts a [`RemovalOrder`]. Only such an agent gets one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
    /// The checkpoints, each with this node's view of it.
    pub checkpoints: Vec<Checkpoint>,
}

impl CheckpointReport {
    /// Returns true if a checkpoint that the report does not name is not on the node any more.
    #[must_use]
    pub fn is_gone(&self, path: &str) -> bool {
        match &self.listed {
            Some(listed) => !listed.contains(&path_hash(path)),
            None => !self.partial || self.gone.iter().any(|gone| gone == path),
        }
    }
}

/// Returns the 64-bit FNV-1a hash of a path. Agents and collectors of different versions must agree on it.
#[must_use]
pub(super) fn path_hash(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A save that raised an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaveFailure {
    /// When, by the node's clock.
    pub at_ms: TimestampMs,
    /// The path that was being written.
    pub path: String,
    /// The step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The error.
    pub error: String,
}

/// The order to remove checkpoints from collectors that did not check who wrote them. It is still parsed so that it can be refused; it is
/// neither sent nor carried out any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PruneOrder {
    /// The run's folder.
    pub folder: String,
    /// Paths of checkpoints.
    pub remove: Vec<String>,
    /// The checkpoint that had to exist.
    pub remain: RequiredCheckpoint,
}

/// An order to remove checkpoints of which the node can prove that the run wrote every file. The node checks this again before it removes
/// anything: see the agent's `launch::checkpoint::removal`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemovalOrder {
    /// The run's folder. Nothing outside of it is removed.
    pub folder: String,
    /// Paths of checkpoints in the folder or in its subfolders.
    pub remove: Vec<String>,
    /// The mark that the node reported for each of them. A checkpoint with another mark is kept: another one may have been saved in its place.
    /// Empty in orders of older collectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub marks: BTreeMap<String, String>,
    /// The checkpoint that must exist now; otherwise nothing is removed.
    pub remain: RequiredCheckpoint,
    /// When the collector gave the order, by its own clock. Absent in orders of older collectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered_ms: Option<TimestampMs>,
    /// How long the order was still valid when it was sent, in milliseconds. The node counts from then on, because its clock may be
    /// another. Absent in stored orders, and in those of older collectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_ms: Option<u64>,
}

impl RemovalOrder {
    /// How long an order is valid, in milliseconds, from the request until the node has carried it out. Meanwhile a person may pin a
    /// checkpoint, and a node may be away for days. After this time nothing is removed any more, and a person can request it again.
    pub const VALID_MS: i64 = 900_000;
    /// How far a time by the same clock may be in the future, in milliseconds: clocks are corrected by seconds. An order of a later time has
    /// an unknown age.
    pub const CLOCK_TOLERANCE_MS: i64 = 60_000;

    /// Returns how long the order is still valid, in milliseconds; 0 if it has expired. An order of unknown age has: an older collector gave
    /// it, or the clock was set back since. A clock that is set back by less than the age of the order is not noticed here.
    #[must_use]
    pub fn remaining_ms(&self, now_ms: TimestampMs) -> u64 {
        let age_ms = self.ordered_ms.map(|ordered| now_ms.saturating_sub(ordered));
        let age_ms = age_ms
            .filter(|age| *age >= -Self::CLOCK_TOLERANCE_MS)
            .unwrap_or(i64::MAX);
        u64::try_from(Self::VALID_MS - age_ms.max(0)).unwrap_or(0)
    }

    /// Returns the order as it is sent.
    #[must_use]
    pub fn as_sent(&self, now_ms: TimestampMs) -> Self {
        Self {
            valid_ms: Some(self.remaining_ms(now_ms)),
            ..self.clone()
        }
    }
}

/// The checkpoint from which a run would resume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequiredCheckpoint {
    /// Path of the checkpoint.
    pub path: String,
    /// True if this node alone sees all of it; otherwise its part must be unchanged.
    pub complete: bool,
    /// The mark that the node reported for it.
    pub mark: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_valid_for_15_minutes_and_one_of_unknown_age_is_not() {
        let now_ms = 1_800_000_000_000;
        for (ordered_ms, remaining_ms) in [
            (Some(now_ms), 900_000),
            (Some(now_ms - 899_999), 1),
            (Some(now_ms - 900_000), 0),
            (Some(0), 0),
            // The clock was corrected by a second.
            (Some(now_ms + 1_000), 900_000),
            (Some(now_ms + 60_001), 0),
            (None, 0),
        ] {
            let order = RemovalOrder {
                ordered_ms,
                ..RemovalOrder::default()
            };
            assert_eq!(order.remaining_ms(now_ms), remaining_ms, "{ordered_ms:?}");
            assert_eq!(order.as_sent(now_ms).valid_ms, Some(remaining_ms));
        }
    }
}
