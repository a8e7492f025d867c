//! `/api/runs`: `GET` lists runs, `POST` submits a [`Spec`](crate::run::spec::Spec). Also `GET /api/runs/{id}`, `POST /api/runs/{id}/stop`,
//! `GET /api/runs/{id}/logs`, `GET /api/runs/{id}/memory`, `POST /api/runs/check`.

mod changes;
mod draft;
mod from_state;
mod logs;
mod memory;

pub use changes::{ChangePreview, ExcludeNode, KnobView, KnobsView, PreviewChange};
pub use draft::{
    CheckedSpec, MemoryForecast, MemoryPart, NodePreview, PlacementPreview, SettingView, SpecDraft,
    SpecProblem,
};
pub use logs::{LogLine, LogLines, LogMatch, LogMatches, LogPiece, LogSource};
pub use memory::{MemoryComparison, PlannedPart, RunMemory, SavedTensors};

pub use crate::run::checkpoint::ResumedFrom;
pub use crate::run::provenance::Provenance;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::DisplayBytes;
use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{Change, InPlaceChange, KnobAnswer};
use crate::run::mesh::Mesh;
use crate::run::spec::Spec;
use crate::run::state::{Outcome, RankExit, RunState, Stall};
use crate::run::unobserved::UnobservedLine;
use crate::time::TimestampMs;

/// One run in the list of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Id of the run.
    pub id: String,
    /// Name of the run for people.
    pub name: String,
    /// Recipe or script.
    pub program: String,
    /// State of the run.
    pub state: RunState,
    /// Why the run ended, or why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Number of the current attempt.
    pub attempt: AttemptNo,
    /// Nodes that the run has or requests.
    pub nodes: Vec<String>,
    /// Total number of ranks; 0 until known.
    pub world_size: u32,
    /// Who submitted the run: the note of the token that was used, or its id if it has no note. Absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Labels of the run, as in its specification.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// When the run was submitted.
    pub submitted_ms: TimestampMs,
    /// When its first rank started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<TimestampMs>,
    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<TimestampMs>,
}

/// All information about a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    /// The run as in the list of runs.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Specification as submitted.
    pub spec: Spec,
    /// Attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// When the run entered its state. Absent if it has been in that state since before this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since_ms: Option<TimestampMs>,
    /// Last step of the run, as its recipe is set. Absent for a script, and for a recipe without a setting for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u32>,
    /// Stop that is in progress or requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopView>,
    /// Steps since the last complete checkpoint: what a stop now would lose. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_since_checkpoint: Option<u64>,
    /// True if the run is only watched: it was started by `lockstep exec`, by Slurm or by hand. Lockstep cannot stop or restart it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// Change of knobs that waits for the end of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Change>,
    /// Reports of its nodes that the collector could not read; at most 100 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_reports: Vec<UnreadReport>,
    /// Attempts of this run on nodes that this collector does not know, because they began after the backup that was restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_attempts: Vec<UnknownAttemptView>,
}

/// Reports that a node sent and that the collector could not read, with the same name and reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadReport {
    /// Attempt of the reports; 0 for `not_kept`, which counts the reports of all attempts.
    pub attempt: AttemptNo,
    /// Node that sent the reports; empty for `not_kept`.
    pub node: String,
    /// Name of the report; empty if it has none.
    pub kind: String,
    /// Why the reports could not be read.
    pub reason: UnreadReason,
    /// Number of reports.
    pub count: u64,
    /// Size of the largest report in bytes.
    pub bytes: u64,
    /// When the last report arrived.
    pub last_ms: TimestampMs,
}

/// Why a report could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnreadReason {
    /// The agent is newer: this collector has no report with that name. The report is stored unchanged.
    UnknownKind,
    /// This collector knows the name but cannot parse the report. The report is stored unchanged.
    Unreadable,
    /// The report is larger than the collector's limit; the agent is too old to split reports. Only its arrival is stored.
    TooLarge,
    /// The run has too many reports that cannot be read. These are only counted.
    NotKept,
    /// A reason of a newer collector.
    #[serde(untagged)]
    Other(String),
}

impl UnreadReport {
    /// Returns the text for people: what happened, to what, and what to do next.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { node, kind, .. } = self;
        let reports = if kind.is_empty() {
            "without a name".to_owned()
        } else {
            format!("`{kind}`")
        };
        let sent = match self.count {
            1 => format!("node {node} sent a report {reports}"),
            count => format!("node {node} sent {count} reports {reports}"),
        };
        match &self.reason {
            UnreadReason::UnknownKind => format!(
                "{sent} from a newer agent, which this collector does not support. Upgrade the collector: it then reads what was stored"
            ),
            UnreadReason::Unreadable => format!(
                "{sent} that this collector cannot read. Upgrade the collector: it then reads what was stored"
            ),
            UnreadReason::TooLarge => format!(
                "{sent} of up to {}, which is larger than the collector accepts. The contents were not stored. Upgrade the node's agent",
                DisplayBytes(self.bytes)
            ),
            UnreadReason::NotKept => format!(
                "{} more reports could not be read and were not stored, because the run has too many of them. Upgrade the collector",
                self.count
            ),
            UnreadReason::Other(reason) => format!("{sent} that could not be read: {reason}"),
        }
    }
}

/// An attempt on a node that this collector does not know: `GET /api/unknown-attempts`. The collector leaves it alone until it ends or a
/// user stops it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnknownAttemptView {
    /// Node of the attempt.
    pub node: String,
    /// Run of the attempt, which may be unknown too.
    pub run: String,
    /// Number of the attempt.
    pub attempt: AttemptNo,
    /// When the node first reported the attempt.
    pub since_ms: TimestampMs,
    /// True if a stop was requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
}

/// Request body of `POST /api/unknown-attempts/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopUnknown {
    /// Run whose attempts are stopped, on all nodes.
    pub run: String,
    /// Time between SIGTERM and SIGKILL. Default: 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// A stop that is in progress or requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopView {
    /// Step after which all ranks stop. Absent if a signal ends them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_step: Option<u64>,
    /// True if the run ends at the first complete checkpoint.
    pub after_checkpoint: bool,
    /// Steps since the last complete checkpoint, which a resumed run must repeat. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<u64>,
}

/// One attempt of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptView {
    /// Number of the attempt, from 1.
    pub attempt: AttemptNo,
    /// Why the attempt was made: `submitted`, `restart after …`.
    pub cause: String,
    /// When the attempt began.
    pub started_ms: TimestampMs,
    /// When the attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<TimestampMs>,
    /// How the attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Node tasks of the attempt, ordered by node rank.
    pub nodes: Vec<NodeTaskView>,
    /// Checkpoint from which the attempt resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<ResumedFrom>,
    /// Last step that any of its ranks finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Last step before its loss began to diverge. Checkpoints that it saved after this step are not resumed from. Absent if its loss is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good_step: Option<u64>,
    /// Nodes that were excluded from the attempt, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<ExcludedNode>,
    /// What the attempt ran, to make it reproducible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Bandwidth between its nodes, measured before the attempt began, if the run's specification requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthView>,
    /// Differences between its nodes and other possible problems, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Knobs that are set, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// Change of knobs that this attempt made, with its verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// Results that its ranks reported for knobs that the probe had to change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<KnobAnswer>,
    /// Mesh of its ranks, as far as the script has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// What could not be observed inside its ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnobservedLine>,
    /// Changes made while the attempt ran, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<InPlaceChange>,
}

/// Bandwidth between the nodes of an attempt, measured before the attempt began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BandwidthView {
    /// Number of rounds. In each round, a node is in at most one pair.
    pub rounds: u32,
    /// Number of finished rounds.
    pub rounds_done: u32,
    /// Bandwidth that nodes usually reach, in MiB per second: the median of the fastest pair of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual_mib_s: Option<f64>,
    /// Limit below which a pair is slow, in MiB per second: a share of `usual_mib_s`, or the minimum in the run's specification if that is
    /// higher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_below_mib_s: Option<f64>,
    /// True if `slow_below_mib_s` is the minimum in the run's specification.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slow_as_asked: bool,
    /// Two measurements for each measured pair, one per direction.
    pub figures: Vec<BandwidthFigure>,
}

/// Bandwidth from one node to another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BandwidthFigure {
    /// Sending node.
    pub from: String,
    /// Receiving node.
    pub to: String,
    /// MiB per second; 0 if the receiving node could not be reached, absent if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// True if the bandwidth is below `slow_below_mib_s`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slow: bool,
    /// Why it was not measured, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// A node that is excluded from the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExcludedNode {
    /// Name of the node.
    pub node: String,
    /// Why the node is excluded.
    pub reason: String,
}

/// The part of an attempt on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeTaskView {
    /// Name of the node.
    pub node: String,
    /// Number of the node within the attempt, from 0.
    pub node_rank: u32,
    /// torchrun command line, for people to read and repeat.
    pub command: String,
    /// Ranks on the node.
    pub ranks: Vec<RankView>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankView {
    /// Number of the rank within the attempt.
    pub rank: Rank,
    /// Number of the rank within the node.
    pub local_rank: u32,
    /// Process id on the node, once the rank runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Last step that the rank reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How the rank ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<RankExit>,
    /// When the rank stopped making progress, and how this was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// True if the rank failed because another rank failed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascade: bool,
}

/// What a person did to a run: `GET /api/runs/{id}/actions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunAction {
    /// When the person did it.
    pub at_ms: TimestampMs,
    /// Id of the person's token.
    pub who: String,
    /// Kind of the action, as in the audit log: `run_stop`, `run_apply`, `diagnosis_act`, …
    pub kind: String,
    /// Kind and details in words.
    pub text: String,
}

/// Request body of `POST /api/runs/{id}/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopRun {
    /// Time between SIGTERM and SIGKILL. Default: that of the agent (30 s).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Stop at a point where no work is lost, instead of now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<StopAfter>,
}

/// What a stop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StopAfter {
    /// A step that no rank has reached yet, the same for all ranks. Each rank is told to end after that step; a script that supports this
    /// saves a checkpoint then.
    Step,
    /// The next complete checkpoint.
    Checkpoint,
}

/// Request body of `POST /api/runs/{id}/apply`. Changes knobs in place if the ranks support it, otherwise with a new attempt. If the knobs
/// already have these values, nothing happens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApplyKnobs {
    /// Knobs to set, with their values.
    pub set: BTreeMap<String, String>,
    /// Number of the attempt that the client expects to be current. If it is not, nothing happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<AttemptNo>,
    /// True to revert the change if the verdict is worse. Default: from the run's specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_revert: Option<bool>,
    /// True to start the new attempt from step 0 without a checkpoint.
    pub from_start: bool,
    /// True to make a new attempt even if the ranks could change the knobs in place.
    pub restart: bool,
    /// With `activation_checkpointing`: once that change is kept, try `micro_batch` doubled. Default: from the run's specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub try_larger_batch: Option<bool>,
}

/// Request body of `POST /api/runs/{id}/revert`. Reverts the last change of knobs, in place or with a new attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RevertKnobs {
    /// Attempt whose change is reverted. It must be the last one that was not reverted. If it was already reverted, nothing happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Number of the change within that attempt, from 1, if the change was made in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
    /// True to start the new attempt from step 0 without a checkpoint.
    pub from_start: bool,
    /// True to make a new attempt even if the ranks could revert the knobs in place.
    pub restart: bool,
}
