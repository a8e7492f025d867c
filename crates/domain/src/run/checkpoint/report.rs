//! What a node tells of its checkpoints, and what it is told to do with them; inside `NodeReport` and `NodeCommand`.

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::Checkpoint;
use crate::time::TimestampMs;

/// What lies on one node. Each report replaces the node's one before.
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
    /// The last save that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SaveFailure>,
    /// The agent knows which files the run wrote, and takes a [`RemovalOrder`]. Only such an agent is given one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
    /// The checkpoints, each with this node's sight of it.
    pub checkpoints: Vec<Checkpoint>,
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
