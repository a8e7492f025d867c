//! The node task of an attempt, and its ranks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::NodeName;
use crate::run::state::RankExit;
use crate::run::state::fault::Fault;
use crate::run::state::protocol::{NodeEnd, Prepared, StallCause};
use crate::time::TimestampMs;

/// How far a node task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePhase {
    /// The node was told to prepare.
    Preparing,
    /// The node can start it.
    Prepared,
    /// The node was told to start it.
    Starting,
    /// The shim runs.
    Running,
    /// Nothing is left on the node, or nothing was ever started.
    Ended,
}

/// The part of an attempt on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTask {
    /// The node.
    pub node: NodeName,
    /// How far the task has come.
    pub phase: NodePhase,
    /// Since when the node's agent is away.
    pub away_since_ms: Option<TimestampMs>,
    /// What the node found during preflight.
    pub prepared: Option<Prepared>,
    /// The torchrun command line.
    pub command: String,
    /// The grace period of the last stop that was sent, in milliseconds. Only a shorter one is sent again.
    pub stop_grace_sent_ms: Option<u64>,
    /// Global rank of its first rank, once known.
    pub first_rank: u32,
    /// Its ranks, by local rank.
    pub ranks: BTreeMap<u32, RankTask>,
    /// How it ended; `None` for a node that was given up.
    pub end: Option<NodeEnd>,
    /// What is wrong with the node, so that the next attempt runs without it.
    pub fault: Option<Fault>,
    /// Whether the node sees the file that the first node wrote to the checkpoint folder.
    pub sees_first: Option<Looked>,
}

/// The state of a node's search for the first node's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Looked {
    /// The node was told to look for it.
    Asked,
    /// The node sees the file.
    Seen,
    /// The node does not see the file.
    Missing,
}

/// One rank of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankTask {
    /// Its process id, once seen.
    pub pid: Option<u32>,
    /// The first step that it finished.
    pub first_step: Option<u64>,
    /// How it ended.
    pub exit: Option<RankExit>,
    /// The stall, while the rank makes no progress.
    pub stall: Option<Stall>,
}

impl RankTask {
    /// Returns the last step that the rank is known to have finished: from its exit, and before that only the first step.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        self.exit
            .as_ref()
            .and_then(|exit| exit.last_step)
            .or(self.first_step)
    }
}

/// A rank that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Since when, by the collector's clock.
    pub since_ms: TimestampMs,
    /// The last step that it finished.
    pub step: Option<u64>,
    /// What stops it, as its node detected.
    pub cause: StallCause,
}

impl NodeTask {
    pub(super) fn new(node: NodeName) -> Self {
        Self {
            node,
            phase: NodePhase::Preparing,
            away_since_ms: None,
            prepared: None,
            command: String::new(),
            stop_grace_sent_ms: None,
            first_rank: 0,
            ranks: BTreeMap::new(),
            end: None,
            fault: None,
            sees_first: None,
        }
    }

    /// Returns true if the node may still hold something of the attempt and its agent has been away for longer than this.
    pub(super) fn is_silent(&self, now_ms: TimestampMs, longer_than_ms: i64) -> bool {
        self.phase != NodePhase::Ended
            && self
                .away_since_ms
                .is_some_and(|since| now_ms - since > longer_than_ms)
    }
}
