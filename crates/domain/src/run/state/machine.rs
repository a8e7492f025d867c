//! Everything that is known of a run, as decisions need it. On disk it is a [`V1`](crate::run::stored::V1), in the API a
//! [`RunView`](crate::api::runs::RunView).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::{Checkpoint, Storage};
use crate::run::knob::Pending;
use crate::run::spec::Spec;
use crate::run::state::attempt::{Attempt, Fault};
use crate::run::state::{NodeEnd, Outcome, Prepared, RankExit, RunState, StallCause, StopPlan};
use crate::time::TimestampMs;

/// What the person wants, as opposed to what is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wish")]
pub enum Wished {
    /// Train to the end.
    Run,
    /// Stop.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// A run and all its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its id.
    pub id: RunId,
    /// What was asked for.
    pub spec: Spec,
    /// What is wished.
    pub wished: Wished,
    /// Where it stands; derived from the rest.
    pub state: RunState,
    /// When it was submitted.
    pub submitted_ms: TimestampMs,
    /// When its first rank ran.
    pub started_ms: Option<TimestampMs>,
    /// When it came to its final state.
    pub ended_ms: Option<TimestampMs>,
    /// Why it ended, or why it waits.
    pub outcome: Option<Outcome>,
    /// When the next attempt may begin, while one is due.
    pub restart_at_ms: Option<TimestampMs>,
    /// Attempts, oldest first; never empty.
    pub attempts: Vec<Attempt>,
    /// What it has saved, as its nodes told.
    pub checkpoints: Vec<Checkpoint>,
    /// A stop that waits for a step or a checkpoint, or waited before it became `wished`.
    pub stop: Option<StopPlan>,
    /// Only watched, not managed.
    pub watched: bool,
    /// Where it saves, and what of it a person wants kept.
    pub storage: Storage,
    /// A change of knobs that waits for the current attempt to end, which has been told to.
    pub pending: Option<Box<Pending>>,
    /// Numbers of attempts up to this one may have been used, though the attempts are not known.
    pub attempts_used: Option<AttemptNo>,
    /// An attempt that a node holds and that is not known here. No other begins by itself until a person decides.
    pub unknown_attempt: Option<AttemptNo>,
    /// The last restore of a backup that this run has taken into account.
    pub restored_ms: Option<TimestampMs>,
}

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

impl Machine {
    /// The attempt that is, or was last, under way.
    #[must_use]
    pub fn current(&self) -> &Attempt {
        self.attempts
            .last()
            .expect("a run is made with its first attempt")
    }

    pub(super) fn current_mut(&mut self) -> &mut Attempt {
        self.attempts
            .last_mut()
            .expect("a run is made with its first attempt")
    }

    /// Whether this attempt may still hold processes or ports on a node.
    #[must_use]
    pub fn is_live(&self, attempt: AttemptNo) -> bool {
        self.current().no == attempt && self.current().ended_ms.is_none() && !self.state.is_final()
    }

    /// Whether a node has, or had, a part in an attempt.
    #[must_use]
    pub fn has_part(&self, node: &NodeName, attempt: AttemptNo) -> bool {
        let attempt = self.attempts.iter().find(|known| known.no == attempt);
        attempt.is_some_and(|attempt| attempt.nodes.iter().any(|task| task.node == *node))
    }

    /// Whether a node has, or had, a part in any attempt.
    #[must_use]
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.attempts
            .iter()
            .any(|attempt| self.has_part(node, attempt.no))
    }

    /// Nodes that may hold something of the current attempt.
    pub fn busy_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let live = self.is_live(self.current().no);
        self.current()
            .nodes
            .iter()
            .filter(move |task| live && task.phase != NodePhase::Ended)
            .map(|task| &task.node)
    }
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
