//! A stop that waits for its stop point, as it is kept and stored.

use serde::{Deserialize, Serialize};

use crate::ident::AttemptNo;
use crate::run::checkpoint::Checkpoint;
use crate::time::TimestampMs;

/// The moment that a stop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopPoint {
    /// The end of this optimizer step, as the probe counts.
    Step(u64),
    /// The next complete checkpoint.
    Checkpoint,
}

/// A stop that waits for its stop point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopPlan {
    /// The attempt that was running. The plan does not apply to an attempt that is resumed later.
    pub attempt: AttemptNo,
    /// The moment that it waits for.
    pub point: StopPoint,
    /// Time between SIGTERM and SIGKILL; before that, the time for the other ranks after the first has reached the step.
    pub grace_ms: u64,
    /// When the first rank reached the step, or the checkpoint was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_ms: Option<TimestampMs>,
    /// The checkpoints that existed when the stop was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Checkpoint>,
    /// Numbers of the actions that send the step to the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<u32>,
}
