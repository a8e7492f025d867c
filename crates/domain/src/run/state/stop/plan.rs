//! A stop that waits, as it is kept and stored.

use serde::{Deserialize, Serialize};

use crate::ident::AttemptNo;
use crate::run::checkpoint::Checkpoint;
use crate::time::TimestampMs;

/// The moment a stop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopPoint {
    /// The end of this optimizer step, as the probe counts.
    Step(u64),
    /// The next complete checkpoint.
    Checkpoint,
}

/// A stop that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopPlan {
    /// The attempt that was under way; one that is resumed later knows nothing of it.
    pub attempt: AttemptNo,
    /// For what.
    pub point: StopPoint,
    /// Time between SIGTERM and SIGKILL; before that, time for the other ranks once the first has come to the step.
    pub grace_ms: u64,
    /// When the first rank came to the step, or the checkpoint was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_ms: Option<TimestampMs>,
    /// The checkpoints that were there when it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Checkpoint>,
    /// The actions that bring the step to the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<u32>,
}
