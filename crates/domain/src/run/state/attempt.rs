//! One attempt of a run.

use std::collections::BTreeMap;

use crate::ident::{AttemptNo, NodeName};
use crate::run::checkpoint::ResumedFrom;
use crate::run::knob::{Change, InPlaceChange, KnobAnswer};
use crate::run::mesh::Mesh;
use crate::run::provenance::Provenance;
use crate::run::spec::Spec;
use crate::run::state::Outcome;
use crate::run::state::divergence::Divergence;
use crate::run::state::fault::Exclusion;
use crate::run::state::node_task::{NodeTask, RankTask};
use crate::run::state::preflight::BandwidthCheck;
use crate::run::unobserved::Unobserved;
use crate::time::TimestampMs;

/// One attempt of a run: one start on a set of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub no: AttemptNo,
    /// Why it was made.
    pub cause: String,
    /// True if a person requested it. Restarts are counted from such an attempt.
    pub requested_by_user: bool,
    /// When it was made.
    pub started_ms: TimestampMs,
    /// When its last node task ended.
    pub ended_ms: Option<TimestampMs>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// True if a restored backup does not contain how far the attempt came. What nodes hold of it is not stopped.
    pub left_alone: bool,
    /// Number of the next action. Together with run and attempt it identifies the action permanently.
    pub next_action: u32,
    /// The node tasks, in order of node rank; empty until nodes are placed.
    pub nodes: Vec<NodeTask>,
    /// Where it runs, and what it resumes from.
    pub placement: Placement,
    /// How far it has come, and since when it is failing.
    pub progress: Progress,
    /// The knobs that are set.
    pub knobs: AttemptKnobs,
    /// What was found out about it.
    pub findings: Findings,
}

/// Where an attempt runs, and what it resumes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// When its nodes were found.
    pub placed_ms: Option<TimestampMs>,
    /// Nodes that it must not run on.
    pub excluded: Vec<Exclusion>,
    /// The checkpoint that it resumes from.
    pub resumed_from: Option<ResumedFrom>,
    /// True if a person has chosen the start: checkpoints from before this attempt do not count.
    pub start_chosen_by_user: bool,
}

/// How far an attempt has come, and since when it is failing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// The highest step that any of its ranks reached.
    pub highest_step: Option<u64>,
    /// When that step was first seen, or a rank ended: the last sign of progress of the training itself.
    pub last_progress_ms: Option<TimestampMs>,
    /// Since when the attempt is failing; its nodes have been told to stop.
    pub failing_since_ms: Option<TimestampMs>,
    /// The first failure that is not the exit of a rank.
    pub first_failure: Option<Outcome>,
    /// When that failure was detected.
    pub first_failure_ms: Option<TimestampMs>,
    /// When its loss began to diverge, if a rule found that and the loss has not become good again.
    pub divergence: Option<Divergence>,
}

/// The knobs of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptKnobs {
    /// Each knob that is set, with its value.
    pub values: BTreeMap<String, String>,
    /// The change of knobs that the attempt was made for.
    pub change: Option<Box<Change>>,
    /// What its ranks reported about the knobs that the probe applies.
    pub answers: Vec<KnobAnswer>,
    /// Changes made in place while it ran, oldest first.
    pub live: Vec<InPlaceChange>,
}

/// What was found out about an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Differences between its nodes that did not prevent the start.
    pub warnings: Vec<String>,
    /// The measured bandwidth between its nodes, if the run requests it.
    pub bandwidth: Option<BandwidthCheck>,
    /// The code, packages and environment that it runs.
    pub provenance: Option<Provenance>,
    /// The mesh in which its script arranges the ranks.
    pub mesh: Option<Mesh>,
    /// What cannot be observed about its ranks.
    pub unobserved: Unobserved,
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

    /// Returns the processes per node once every node is prepared: the requested number, otherwise what the smallest node would start.
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

    /// Returns true if any rank finished a step.
    #[must_use]
    pub fn made_progress(&self) -> bool {
        self.progress.highest_step.is_some() || self.ranks().any(|(_, rank)| rank.first_step.is_some())
    }

    /// Returns the highest known step of any rank.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        let ranks = self.ranks().filter_map(|(_, rank)| rank.last_step());
        ranks.chain(self.progress.highest_step).max()
    }

    /// Returns all known ranks, each with its node task.
    pub fn ranks(&self) -> impl Iterator<Item = (&NodeTask, &RankTask)> {
        self.nodes
            .iter()
            .flat_map(|task| task.ranks.values().map(move |rank| (task, rank)))
    }

    pub(super) fn task_mut(&mut self, node: &NodeName) -> Option<&mut NodeTask> {
        self.nodes.iter_mut().find(|task| task.node == *node)
    }
}
