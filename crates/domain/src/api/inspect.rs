//! `POST /api/runs/{id}/stacks`, `/wait-counters`, `/flight`, `/flight-digest`, `/trace`: information that the ranks of a run return on
//! request. `GET /api/runs/{id}/trace/lanes`: the lanes of a trace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::{AttemptNo, Rank};
use crate::run::inspect::{FlightDigest, ProcessState, StackGroup, Thread, TraceFile, TraceLanes};
use crate::time::TimestampMs;

/// Ranks to inspect. An empty body means all ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AskRanks {
    /// Only this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
}

/// A trace to record: either `seconds` or `steps`. Default: two seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AskTrace {
    /// Only this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Duration of the trace in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// Duration of the trace in optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
}

/// Stacks of the ranks of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StacksView {
    /// Attempt of the ranks.
    pub attempt: AttemptNo,
    /// When the stacks were taken, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Groups of ranks with the same stack, the largest group first.
    pub groups: Vec<StackGroup>,
    /// Each rank, ordered by number.
    pub ranks: Vec<RankStacks>,
}

/// Stacks of one rank, or why there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RankStacks {
    /// Number of the rank.
    pub rank: Rank,
    /// Node of the rank.
    pub node: String,
    /// Process id on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// All Python threads, or the newest ones. The main thread is the last, unless `problem` is set.
    pub threads: Vec<Thread>,
    /// True if some threads were left out because of the size limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Why there are no stacks, or no main thread.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// State of the process in the kernel, if the process does not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
}

/// Wait counters or collectives of the ranks of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RanksView {
    /// Attempt of the ranks.
    pub attempt: AttemptNo,
    /// When the ranks were inspected, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Each rank, ordered by number.
    pub ranks: Vec<RankValue>,
}

/// Response of one rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RankValue {
    /// Number of the rank.
    pub rank: Rank,
    /// Node of the rank.
    pub node: String,
    /// JSON of PyTorch, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Position of the rank in the operations of its process groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<FlightDigest>,
    /// Trace file. Download it with `GET /api/runs/{id}/trace?node=NODE&file=FILE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFile>,
    /// Why there is no value, or what is missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// State of the process in the kernel, if the process does not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
}

/// The lanes of a trace of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LanesView {
    /// Attempt of the trace.
    pub attempt: AttemptNo,
    /// Node with the file.
    pub node: String,
    /// Name of the file.
    pub file: String,
    /// The lanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<TraceLanes>,
    /// Why there are no lanes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}
