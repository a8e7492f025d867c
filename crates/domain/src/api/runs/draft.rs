//! `POST /api/runs/check`: a specification that is being written, as JSON or as TOML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Fit;
use crate::run::spec::Spec;
use crate::time::TimestampMs;

/// A specification that is being written. Exactly one of `spec` and `toml` is given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpecDraft {
    /// The specification as JSON. It may have unknown fields and values of wrong types: each is reported. Values of secrets are not needed;
    /// write `[redacted]` in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// The specification as TOML, with `[redacted]` in place of each value of a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toml: Option<String>,
    /// True if it will be submitted with `secrets_from`: hidden values are then taken from the copied run.
    #[serde(default)]
    pub copied: bool,
}

/// The result of the check of a [`SpecDraft`]. Nothing was started or stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct CheckedSpec {
    /// The specification as JSON, if the draft is TOML that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
    /// The specification as TOML, if the draft is JSON. Values of secrets are `[redacted]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toml: Option<String>,
    /// All errors; empty if the run can be submitted.
    pub problems: Vec<SpecProblem>,
    /// Recommendations about things that are not errors.
    pub hints: Vec<String>,
    /// The settings and knobs that this program has.
    pub settings: Vec<SettingView>,
    /// How much memory the run needs on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryForecast>,
    /// Why the memory cannot be planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_unknown: Option<String>,
    /// Where the run would be placed if it were submitted now. Absent if there are errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementPreview>,
}

/// An error in a draft.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecProblem {
    /// The field's name as in the specification, for example `git.revision` or `set.lr`; empty for text that is not TOML.
    pub field: String,
    /// What is wrong, and what would be correct.
    pub message: String,
    /// Line in the TOML, from 1. Absent if the field is missing there, or if the draft is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column in the line, in characters, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// A setting or a knob of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingView {
    /// The name in `set`.
    pub name: String,
    /// What it means, and its unit.
    pub help: String,
    /// True for a [knob](crate::run::knob), which can also be changed later.
    pub is_knob: bool,
    /// The value that the program uses if the setting is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The only valid values; empty if there are too many to list.
    pub choices: Vec<String>,
    /// The valid values, as text; empty if the program itself checks them.
    pub values: String,
}

/// How much memory a run needs on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryForecast {
    /// Number of GPUs for which the plan is made.
    pub gpus: u64,
    /// Peak memory of a GPU in bytes.
    pub peak_bytes: u64,
    /// When the peak is reached, as text.
    pub peak_at: String,
    /// The parts in use at the peak, largest first.
    pub parts: Vec<MemoryPart>,
    /// Comparison with the smallest GPU of the nodes that accept runs. Absent if no such node has GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    /// Changes that would make the run fit, cheapest first; empty if it fits.
    pub ways_to_fit: Vec<String>,
}

/// A part of the memory at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryPart {
    /// Name of the part, as text.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Where a run would be placed. Nothing is reserved, and the next check may have another result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementPreview {
    /// When the nodes were chosen.
    pub at_ms: TimestampMs,
    /// The nodes that the run would get, in the order of their node ranks; empty if it would wait.
    pub nodes: Vec<NodePreview>,
    /// Processes that each node would start, if PyTorch can use all its GPUs. Absent if the run would wait, or if it chooses its GPUs with
    /// `CUDA_VISIBLE_DEVICES` and not the number of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_per_node: Option<u32>,
    /// Why the run would wait for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// A node that a run would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodePreview {
    /// Name of the node.
    pub node: String,
    /// Number of its GPUs that the processes would use, the first ones: each process uses the GPU with the number of its local rank, unless
    /// the script chooses another. 0 if they use none, if there are more processes than GPUs, or if the run chooses its GPUs.
    pub gpus: u32,
}
