//! `/api/runs`: `GET` list, `POST` a [`Spec`](crate::run::spec::Spec) to submit, `GET /api/runs/{id}`,
//! `POST /api/runs/{id}/stop`, `GET /api/runs/{id}/logs`.

use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::spec::Spec;
use crate::run::state::{Outcome, RankExit, RunState};
use crate::time::TimestampMs;

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Recipe or script.
    pub program: String,
    /// Where it stands.
    pub state: RunState,
    /// Why it ended, or why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The current attempt.
    pub attempt: AttemptNo,
    /// Nodes it has or asks for.
    pub nodes: Vec<String>,
    /// Processes in all; 0 until known.
    pub world_size: u32,
    /// When it was submitted, when its first rank ran, when it ended.
    pub submitted_ms: TimestampMs,
    /// When its first rank ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<TimestampMs>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<TimestampMs>,
}

/// Everything about a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// The line of the list.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// What was asked for.
    pub spec: Spec,
    /// Attempts, oldest first.
    pub attempts: Vec<AttemptView>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    /// Its number, from 1.
    pub attempt: AttemptNo,
    /// Why it was made: `submitted`, `restart after …`.
    pub cause: String,
    /// When it began and ended.
    pub started_ms: TimestampMs,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<TimestampMs>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Its part on each node, by node rank.
    pub nodes: Vec<NodeTaskView>,
}

/// One node's part of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeTaskView {
    /// The node.
    pub node: String,
    /// Its place among the nodes, from 0.
    pub node_rank: u32,
    /// The torchrun command line, for people to read and repeat.
    pub command: String,
    /// Its ranks.
    pub ranks: Vec<RankView>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankView {
    /// Its place in the world.
    pub rank: Rank,
    /// Its place on the node.
    pub local_rank: u32,
    /// Its process id on the node, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The last step it reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<RankExit>,
}

/// `POST /api/runs/{id}/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StopRun {
    /// Time between SIGTERM and SIGKILL; the agent's default (30 s) when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// `GET /api/runs/{id}/logs?attempt=&rank=&stream=&offset=&limit=`: a piece of one log file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogPiece {
    /// The rank (or, for `launcher`, the node's torchrun and shim).
    pub source: LogSource,
    /// Byte offset of `text` in the file.
    pub offset: u64,
    /// Where to go on reading.
    pub next_offset: u64,
    /// The file's length now.
    pub length: u64,
    /// The bytes, invalid UTF-8 replaced.
    pub text: String,
}

/// Which log file of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogSource {
    /// The attempt.
    pub attempt: AttemptNo,
    /// The node it was written on.
    pub node: String,
    /// The rank; none for the launcher itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// `stdout` or `stderr`.
    pub stream: String,
}
