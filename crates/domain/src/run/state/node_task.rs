//! One node's part of an attempt, and its ranks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::NodeName;
use crate::run::state::RankExit;
use crate::run::state::fault::Fault;
use crate::run::state::protocol::{NodeEnd, Prepared, StallCause};
use crate::time::TimestampMs;

/// How far a node's part has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePhase {
    /// Was told to prepare.
    Preparing,
    /// Could start.
    Prepared,
    /// Was told to start.
    Starting,
    /// Its shim is there.
    Running,
    /// Nothing is left, or nothing ever was.
    Ended,
}

/// One node's part of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTask {
    /// The node.
    pub node: NodeName,
    /// How far it has come.
    pub phase: NodePhase,
    /// Since when its agent is away.
    pub away_since_ms: Option<TimestampMs>,
    /// What it found when it prepared.
    pub prepared: Option<Prepared>,
    /// The torchrun command line.
    pub command: String,
    /// The grace of the last stop it was told, so that only a shorter one is told again.
    pub stop_told_ms: Option<u64>,
    /// The place in the world of its first rank, once known.
    pub first_rank: u32,
    /// Its ranks by local rank.
    pub ranks: BTreeMap<u32, RankTask>,
    /// How it ended; none for a node that was given up.
    pub end: Option<NodeEnd>,
    /// Why the next attempt goes elsewhere.
    pub fault: Option<Fault>,
    /// Whether it sees what the first node wrote to the folder of checkpoints.
    pub sees_first: Option<Looked>,
}

/// A node's look for the first node's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Looked {
    /// It was told to look.
    Asked,
    /// It is there.
    Seen,
    /// It is not.
    Missing,
}

/// One rank of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankTask {
    /// Its process id, once seen.
    pub pid: Option<u32>,
    /// The first step it finished.
    pub first_step: Option<u64>,
    /// How it ended.
    pub exit: Option<RankExit>,
    /// Since when it does nothing.
    pub stall: Option<Stall>,
}

impl RankTask {
    /// The last step it is known to have finished: what its exit tells, and before that only the first.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        self.exit
            .as_ref()
            .and_then(|exit| exit.last_step)
            .or(self.first_step)
    }
}

/// A rank that does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Since when, by the collector's clock.
    pub since_ms: TimestampMs,
    /// The last step it finished.
    pub step: Option<u64>,
    /// What keeps it, as its node saw.
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
            stop_told_ms: None,
            first_rank: 0,
            ranks: BTreeMap::new(),
            end: None,
            fault: None,
            sees_first: None,
        }
    }

    /// Whether its agent may still have something of the attempt, and has not been heard for longer than this.
    pub(super) fn is_silent(&self, now_ms: TimestampMs, longer_than_ms: i64) -> bool {
        self.phase != NodePhase::Ended
            && self
                .away_since_ms
                .is_some_and(|since| now_ms - since > longer_than_ms)
    }
}
