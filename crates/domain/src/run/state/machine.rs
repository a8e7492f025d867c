//! Everything that is known of a run; stored as JSON, one document a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::runs::{Provenance, ResumedFrom};
use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::{Checkpoint, Storage};
use crate::run::knob::{Change, KnobAnswer, LiveChange, Pending};
use crate::run::mesh::Mesh;
use crate::run::spec::Spec;
use crate::run::state::preflight::BandwidthCheck;
use crate::run::state::{NodeEnd, Outcome, Prepared, RankExit, RunState, StallCause, StopPlan};
use crate::run::unseen::Unseen;
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// A stop that waits for a step or a checkpoint, or waited before it became `wished`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopPlan>,
    /// Only watched, not managed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// Where it saves, and what of it a person wants kept.
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    pub storage: Storage,
    /// A change of knobs that waits for the current attempt to end, which has been told to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Box<Pending>>,
    /// Numbers of attempts up to this one may have been used, though the attempts are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_used: Option<AttemptNo>,
    /// An attempt that a node holds and that is not known here. No other begins by itself until a person decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_attempt: Option<AttemptNo>,
    /// The last restore of a backup that this run has taken into account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_ms: Option<TimestampMs>,
}

/// One try at the whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub no: AttemptNo,
    /// Why it was made.
    pub cause: String,
    /// When it was made.
    pub started_ms: TimestampMs,
    /// When the last node had ended it.
    pub ended_ms: Option<TimestampMs>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// The first thing that went wrong and is not a rank's exit.
    pub trouble: Option<Outcome>,
    /// When that was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble_ms: Option<TimestampMs>,
    /// Since when it is failing; the nodes have been told to stop.
    pub failing_since_ms: Option<TimestampMs>,
    /// The number of the next action; with run and attempt it names the action for good.
    pub next_action: u32,
    /// Its part on each node, by node rank; empty until placed.
    pub nodes: Vec<NodeTask>,
    /// A person asked for it: counting of restarts begins here.
    #[serde(default)]
    pub asked: bool,
    /// Checkpoints of before it do not count: a person has chosen where to begin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
    /// When its nodes were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_ms: Option<TimestampMs>,
    /// The checkpoint it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<ResumedFrom>,
    /// Nodes it is not to be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Exclusion>,
    /// What its nodes differ in without being refused for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What was measured between its nodes, where the run asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthCheck>,
    /// What it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The highest step seen of any of its ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When that step was first seen, or a rank ended: the last sign of life of the training itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_ms: Option<TimestampMs>,
    /// The knobs that are turned, each with its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// What of them it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Box<Change>>,
    /// What its ranks said of those that the probe was to turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<KnobAnswer>,
    /// The mesh its script has put its ranks into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// What of its ranks cannot be seen.
    #[serde(default, skip_serializing_if = "Unseen::is_empty")]
    pub unseen: Unseen,
    /// What was changed while it ran, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<LiveChange>,
    /// A restored backup does not know how far it came. What nodes hold of it is not stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
}

/// A node that a run's next attempts are not given while there are others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node.
    pub node: NodeName,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a node, as far as one run can tell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind, which decides whether it may come back.
    pub kind: FaultKind,
    /// In words.
    pub reason: String,
}

/// Whether a node may come back to a run that it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// It was not heard. Good again as soon as it is heard, if no other takes its place.
    Away,
    /// It lost the process that owned the ranks. As good again as after `Away`.
    Shim,
    /// It refused the run, or lacks what the run needs. Not asked again until a person resumes the run.
    Unfit,
    /// Its hardware failed under a rank. As with `Unfit`.
    Hardware,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Whether it sees what the first node wrote to the folder of checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankTask {
    /// Its process id, once seen.
    pub pid: Option<u32>,
    /// The first step it finished.
    pub first_step: Option<u64>,
    /// How it ended.
    pub exit: Option<RankExit>,
    /// Since when it does nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl Attempt {
    pub(super) fn new(no: AttemptNo, cause: String, now_ms: TimestampMs) -> Self {
        Self {
            no,
            cause,
            started_ms: now_ms,
            ended_ms: None,
            outcome: None,
            trouble: None,
            failing_since_ms: None,
            next_action: 1,
            nodes: Vec::new(),
            trouble_ms: None,
            asked: false,
            anew: false,
            placed_ms: None,
            resumed_from: None,
            excluded: Vec::new(),
            warnings: Vec::new(),
            bandwidth: None,
            provenance: None,
            step: None,
            moved_ms: None,
            knobs: BTreeMap::new(),
            change: None,
            answers: Vec::new(),
            mesh: None,
            unseen: Unseen::default(),
            live: Vec::new(),
            left_alone: false,
        }
    }

    /// Processes on each node, once every node is prepared: asked for, or what the smallest node would start.
    #[must_use]
    pub fn nproc(&self, spec: &Spec) -> Option<u32> {
        if spec.nproc_per_node.is_some() {
            return spec.nproc_per_node;
        }
        let defaults = self
            .nodes
            .iter()
            .map(|task| task.prepared.as_ref().map(|found| found.nproc_default.max(1)));
        defaults.min().flatten()
    }

    /// Whether any rank finished a step.
    #[must_use]
    pub fn made_progress(&self) -> bool {
        self.step.is_some() || self.ranks().any(|(_, rank)| rank.first_step.is_some())
    }

    /// The highest step known of any rank.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        let ranks = self.ranks().filter_map(|(_, rank)| rank.last_step());
        ranks.chain(self.step).max()
    }

    /// All ranks seen, each with its node.
    pub fn ranks(&self) -> impl Iterator<Item = (&NodeTask, &RankTask)> {
        self.nodes
            .iter()
            .flat_map(|task| task.ranks.values().map(move |rank| (task, rank)))
    }

    pub(super) fn task_mut(&mut self, node: &NodeName) -> Option<&mut NodeTask> {
        self.nodes.iter_mut().find(|task| task.node == *node)
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
