//! `GET /api/runs/{id}/memory`: the GPU memory of a run, measured and planned.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};

/// The GPU memory of the current attempt of a run beside its plan, or why the two cannot be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunMemory {
    /// The comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<MemoryComparison>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// What PyTorch's allocator handed out since the ranks started, beside the plan of a step. Memory outside of the allocator is in neither.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryComparison {
    /// The attempt.
    pub attempt: AttemptNo,
    /// The rank with the highest peak of allocated memory.
    pub rank: Rank,
    /// The node of that rank.
    pub node: String,
    /// Number of ranks that were measured.
    pub ranks: u32,
    /// Highest allocated memory of that rank, in bytes.
    pub allocated_bytes: u64,
    /// Highest reserved memory of that rank, in bytes. What it is above `allocated_bytes` is cache and fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Planned peak of allocated memory in bytes: the sum of `parts`.
    pub planned_bytes: u64,
    /// When the planned peak is reached, as text.
    pub peak_at: String,
    /// The parts in use at the planned peak, largest first.
    pub parts: Vec<PlannedPart>,
    /// The tensors that autograd keeps for the backward pass. Absent if they were not measured, or if the two numbers would not count the
    /// same tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedTensors>,
    /// What the plan does not contain, as text.
    pub left_out: Vec<String>,
}

/// A part of the planned memory at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPart {
    /// Name of the part, as text.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// True if the size is an estimate that depends on versions and machines.
    pub is_estimate: bool,
}

/// The tensors that autograd keeps for the backward pass of one micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SavedTensors {
    /// Planned, in bytes.
    pub planned_bytes: u64,
    /// The highest measured value of any rank, in bytes.
    pub measured_bytes: u64,
}
