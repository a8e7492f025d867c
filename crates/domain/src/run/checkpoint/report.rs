//! What a node tells of its checkpoints, and what it is told to do with them; inside `NodeReport` and `NodeCommand`.

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::Checkpoint;
use crate::time::TimestampMs;

/// What lies on one node. Each report replaces the node's one before; one that is too large for a message comes as several partial
/// ones, see [`split`](super::split()).
///
/// All fields have defaults: an agent that is older than a field does not send it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointReport {
    /// The run's folder here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Free bytes of its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Where a pointer called `latest` points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// Why the folder cannot be looked at, or a removal failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// There is more than is told, so what is not named may be there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// In a partial report: what was there and is not any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// In the last of the partial reports that a complete one was split into: [`path_hash`] of each of its checkpoints. What is not
    /// among them is gone. A collector of protocol 1 does not read it and goes by `gone` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed: Option<Vec<u64>>,
    /// The last save that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SaveFailure>,
    /// The agent knows which files the run wrote, and takes a [`RemovalOrder`]. Only such an agent is given one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
    /// The checkpoints, each with this node's sight of it.
    pub checkpoints: Vec<Checkpoint>,
}

impl CheckpointReport {
    /// Whether a checkpoint that the report does not name is not on the node any more.
    #[must_use]
    pub fn says_is_gone(&self, path: &str) -> bool {
        match &self.listed {
            Some(listed) => !listed.contains(&path_hash(path)),
            None => !self.partial || self.gone.iter().any(|gone| gone == path),
        }
    }
}

/// 64-bit FNV-1a of a path. Agents and collectors of different versions must agree on it.
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
    /// What was being written.
    pub path: String,
    /// At which step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What was raised.
    pub error: String,
}

/// The order to remove checkpoints as collectors gave it that did not ask who wrote them. It is still read, so that it can be refused; it is
/// neither given nor carried out any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PruneOrder {
    /// The run's folder.
    pub folder: String,
    /// Paths of checkpoints.
    pub remove: Vec<String>,
    /// The checkpoint that had to be there.
    pub remain: Remain,
}

/// Removes checkpoints of which the node can prove that the run wrote every file. The node looks again before it does: see the agent's
/// `launch::checkpoint::removal`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemovalOrder {
    /// The run's folder. Nothing outside of it is removed.
    pub folder: String,
    /// Paths of checkpoints in the folder, or deeper in it.
    pub remove: Vec<String>,
    /// What must be there, now, or nothing is removed.
    pub remain: Remain,
}

/// The checkpoint a run would go on from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remain {
    /// Where it lies.
    pub path: String,
    /// Whether this node alone sees all of it; otherwise its part must be as it was.
    pub complete: bool,
    /// How it was marked.
    pub mark: String,
}
