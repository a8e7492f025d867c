//! What a change repairs, and what its verdict says about the repair.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a change repairs. Its verdict is about the repair, not about the speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "symptom", rename_all = "snake_case")]
pub enum Symptom {
    /// Attempts ended because memory ran out.
    OutOfMemory {
        /// The last step that any of these attempts finished; 0 if none.
        last_step: u64,
    },
    /// The loss diverged.
    Divergence {
        /// The last step after which the weights are known to be good.
        last_good_step: u64,
        /// The first known step with a loss that is not good.
        bad_step: u64,
        /// A loss up to this value is good.
        good_below: f64,
        /// The highest loss. Absent if a loss was NaN or infinite.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worst_loss: Option<f64>,
    },
}

/// Measurements of a repair, before and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "symptom", rename_all = "snake_case")]
pub enum Recovery {
    /// Memory ran out.
    OutOfMemory {
        /// The last step that finished before the change; 0 if none.
        failed_after_step: u64,
        /// The highest step since the change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reached_step: Option<u64>,
    },
    /// The loss diverged.
    Divergence {
        /// The first step with a loss that was not good.
        bad_step: u64,
        /// The highest loss before the change. Absent if a loss was NaN or infinite.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worst_loss: Option<f64>,
        /// The highest step since the change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reached_step: Option<u64>,
        /// The last loss since the change. Absent if it is NaN or infinite.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
    },
    /// There was no space for a checkpoint.
    CheckpointSpace {
        /// Bytes that the removed checkpoints used.
        freed_bytes: u64,
        /// Free bytes before the removal, on the node with the fewest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free_bytes_before: Option<u64>,
        /// Free bytes after the removal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free_bytes_after: Option<u64>,
        /// The next checkpoint that was saved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saved: Option<String>,
    },
}
