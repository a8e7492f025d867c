//! One attempt of a run.

use std::collections::BTreeMap;

use crate::ident::{AttemptNo, NodeName};
use crate::run::checkpoint::ResumedFrom;
use crate::run::knob::{Change, KnobAnswer, LiveChange};
use crate::run::mesh::Mesh;
use crate::run::provenance::Provenance;
use crate::run::spec::Spec;
use crate::run::state::Outcome;
use crate::run::state::fault::Exclusion;
use crate::run::state::node_task::{NodeTask, RankTask};
use crate::run::state::preflight::BandwidthCheck;
use crate::run::unseen::Unseen;
use crate::time::TimestampMs;

/// One try at the whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its number, from 1.
    pub no: AttemptNo,
    /// Why it was made.
    pub cause: String,
    /// A person asked for it: counting of restarts begins here.
    pub requested_by_user: bool,
    /// When it was made.
    pub started_ms: TimestampMs,
    /// When the last node had ended it.
    pub ended_ms: Option<TimestampMs>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// A restored backup does not know how far it came. What nodes hold of it is not stopped.
    pub left_alone: bool,
    /// The number of the next action; with run and attempt it names the action for good.
    pub next_action: u32,
    /// Its part on each node, by node rank; empty until placed.
    pub nodes: Vec<NodeTask>,
    /// Where it runs, and what it goes on from.
    pub placement: Placement,
    /// How far it has come, and since when it fails.
    pub progress: Progress,
    /// The knobs that are set.
    pub knobs: AttemptKnobs,
    /// What was found out about it.
    pub findings: Findings,
}

/// Where an attempt runs, and what it goes on from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// When its nodes were found.
    pub placed_ms: Option<TimestampMs>,
    /// Nodes it is not to be given.
    pub excluded: Vec<Exclusion>,
    /// The checkpoint it goes on from.
    pub resumed_from: Option<ResumedFrom>,
    /// A person has chosen where to begin: checkpoints from before this attempt do not count.
    pub start_chosen_by_user: bool,
}

/// How far an attempt has come, and since when it fails.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// The highest step seen of any of its ranks.
    pub highest_step: Option<u64>,
    /// When that step was first seen, or a rank ended: the last sign of life of the training itself.
    pub last_progress_ms: Option<TimestampMs>,
    /// Since when it is failing; the nodes have been told to stop.
    pub failing_since_ms: Option<TimestampMs>,
    /// The first failure that is not a rank's exit.
    pub first_failure: Option<Outcome>,
    /// When that was known.
    pub first_failure_ms: Option<TimestampMs>,
}

/// The knobs of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptKnobs {
    /// Each knob that is set, with its value.
    pub values: BTreeMap<String, String>,
    /// What of them the attempt changed.
    pub change: Option<Box<Change>>,
    /// What its ranks said of those that the probe was to set.
    pub answers: Vec<KnobAnswer>,
    /// What was changed while it ran, oldest first.
    pub live: Vec<LiveChange>,
}

/// What was found out about an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// What its nodes differ in without being refused for it.
    pub warnings: Vec<String>,
    /// What was measured between its nodes, where the run asks for it.
    pub bandwidth: Option<BandwidthCheck>,
    /// What it runs.
    pub provenance: Option<Provenance>,
    /// The mesh its script has put its ranks into.
    pub mesh: Option<Mesh>,
    /// What of its ranks cannot be seen.
    pub unseen: Unseen,
}

impl Attempt {
    pub(super) fn new(no: AttemptNo, cause: String, now_ms: TimestampMs) -> Self {
        Self {
            no,
            cause,
            started_ms: now_ms,
            ended_ms: None,
            outcome: None,
            requested_by_user: false,
            left_alone: false,
            next_action: 1,
            nodes: Vec::new(),
            placement: Placement::default(),
            progress: Progress::default(),
            knobs: AttemptKnobs::default(),
            findings: Findings::default(),
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
        self.progress.highest_step.is_some() || self.ranks().any(|(_, rank)| rank.first_step.is_some())
    }

    /// The highest step known of any rank.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        let ranks = self.ranks().filter_map(|(_, rank)| rank.last_step());
        ranks.chain(self.progress.highest_step).max()
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
