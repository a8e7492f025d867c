//! `POST /api/runs/{id}/stacks`, `/wait-counters`, `/flight`, `/flight-digest`, `/trace`: what the ranks of a run answer now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::{AttemptNo, Rank};
use crate::run::inspect::{FlightDigest, ProcessState, StackGroup, Thread, TraceFile};
use crate::time::TimestampMs;

/// Whom to ask. An empty body asks all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AskRanks {
    /// One rank alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
}

/// A trace as asked for: either seconds or steps; two seconds when both are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AskTrace {
    /// One rank alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// How long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// How many optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
}

/// The stacks of a run's ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StacksView {
    /// Of which attempt.
    pub attempt: AttemptNo,
    /// When they were taken, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Ranks in the same place, together; the largest group first.
    pub groups: Vec<StackGroup>,
    /// Each rank, in order.
    pub ranks: Vec<RankStacks>,
}

/// The stacks of one rank, or why there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RankStacks {
    /// Which.
    pub rank: Rank,
    /// Its node.
    pub node: String,
    /// Its process there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// All Python threads, or the newest; the main thread is the last unless there is a problem.
    pub threads: Vec<Thread>,
    /// There were more than fit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Why there are none, or no main thread.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// What the kernel knows of a process that does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
}

/// Wait counters or collectives of a run's ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RanksView {
    /// Of which attempt.
    pub attempt: AttemptNo,
    /// When they were asked, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Each rank, in order.
    pub ranks: Vec<RankValue>,
}

/// What one rank answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RankValue {
    /// Which.
    pub rank: Rank,
    /// Its node.
    pub node: String,
    /// PyTorch's own JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Where it is in the operations of its process groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<FlightDigest>,
    /// A trace, which `GET /api/runs/{id}/trace?node=NODE&file=FILE` fetches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFile>,
    /// Why there is none, or what is missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// What the kernel knows of a process that does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
}
