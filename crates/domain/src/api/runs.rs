//! `/api/runs`: `GET` list, `POST` a [`Spec`](crate::run::spec::Spec) to submit, `GET /api/runs/{id}`,
//! `POST /api/runs/{id}/stop`, `GET /api/runs/{id}/logs`.

mod from_state;
mod logs;

pub use logs::{LogMatch, LogMatches, LogPiece, LogSource};

pub use crate::run::checkpoint::ResumedFrom;
pub use crate::run::provenance::Provenance;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::DisplayBytes;
use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{Change, KnobAnswer, LiveChange};
use crate::run::mesh::Mesh;
use crate::run::spec::Spec;
use crate::run::state::{Outcome, RankExit, RunState, Stall};
use crate::run::unseen::UnseenLine;
use crate::time::TimestampMs;

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    /// The line of the list.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// What was asked for.
    pub spec: Spec,
    /// Attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// The stop under way or wished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopView>,
    /// Steps since the last complete checkpoint: what a stop now would lose. None when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_since_checkpoint: Option<u64>,
    /// Only watched: started by `lockstep exec`, by Slurm or by hand, so that Lockstep cannot stop or restart it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// A change of knobs that waits for the current attempt to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Change>,
    /// Reports of its nodes that the collector could not read; at most 100 lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_reports: Vec<UnreadReport>,
    /// Attempts of this run that nodes hold and that this collector does not know, because they began after the backup that was
    /// restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_attempts: Vec<UnknownAttemptView>,
}

/// Reports that a node sent and that the collector could not read, of one name and for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadReport {
    /// The attempt that they are about; 0 for `not_kept`, which counts those of all attempts.
    pub attempt: AttemptNo,
    /// Who sent them; empty for `not_kept`.
    pub node: String,
    /// The name of the report; empty when it has none.
    pub kind: String,
    /// Why they were not read.
    pub reason: UnreadReason,
    /// How many there are.
    pub count: u64,
    /// The size of the largest.
    pub bytes: u64,
    /// When the last one came.
    pub last_ms: TimestampMs,
}

/// Why a report was not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnreadReason {
    /// From a newer agent: this collector has no report of that name. Kept as it came.
    UnknownKind,
    /// This collector knows the name and cannot read the rest. Kept as it came.
    Unreadable,
    /// Larger than what a collector takes, from an agent that does not split reports yet. Only its arrival is kept.
    TooLarge,
    /// The run has too many reports that cannot be read. These are only counted.
    NotKept,
    /// A reason of a newer collector.
    #[serde(untagged)]
    Other(String),
}

impl UnreadReport {
    /// What happened, to what, and what to do next.
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
                "{sent} from a newer agent, which this collector does not know: kept, and read once the collector is upgraded"
            ),
            UnreadReason::Unreadable => format!(
                "{sent} that this collector cannot read: kept, and read again once the collector is upgraded"
            ),
            UnreadReason::TooLarge => format!(
                "{sent} of up to {}, which is more than the collector takes: what it says is not known here. Upgrade the node's agent",
                DisplayBytes(self.bytes)
            ),
            UnreadReason::NotKept => format!(
                "{} more reports could not be read and are not kept, because the run has too many of them. Upgrade the collector",
                self.count
            ),
            UnreadReason::Other(reason) => format!("{sent} that was not read: {reason}"),
        }
    }
}

/// An attempt that a node holds and that this collector does not know: `GET /api/unknown-attempts`. It is left alone until a person
/// stops it or it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnknownAttemptView {
    /// The node.
    pub node: String,
    /// The run, which may be unknown as well.
    pub run: String,
    /// The attempt's number.
    pub attempt: AttemptNo,
    /// When the node first said that it holds it.
    pub since_ms: TimestampMs,
    /// Whether its stop was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
}

/// `POST /api/unknown-attempts/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopUnknown {
    /// The run whose attempts are stopped, on all nodes.
    pub run: String,
    /// Time between SIGTERM and SIGKILL; 30 s when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// How a run is about to stop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopView {
    /// All ranks stop after this step; none when they are ended by a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_step: Option<u64>,
    /// The first checkpoint that is complete ends it.
    pub after_checkpoint: bool,
    /// Steps since the last complete checkpoint, which a resumed run has to repeat; none when it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<u64>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// The checkpoint it went on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<ResumedFrom>,
    /// The last step any of its ranks finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Nodes it was not to be given, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<ExcludedNode>,
    /// What it ran, to be able to do it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// What was measured between its nodes before it began, where the run asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthView>,
    /// What its nodes differ in, and what else may spoil it, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The knobs that are turned, each with its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// What of them it changed, and the verdict on that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// What its ranks said of knobs that the probe was to turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<KnobAnswer>,
    /// The mesh its script has put its ranks into, as far as they have told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// What of its ranks could not be seen from inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenLine>,
    /// What was changed while it ran, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<LiveChange>,
}

/// The network between the nodes of an attempt, as measured before it began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BandwidthView {
    /// Rounds in all, and how many are over; in each a node is in one pair at most.
    pub rounds: u32,
    /// See `rounds`.
    pub rounds_done: u32,
    /// What nodes reach at their best, in MiB a second: the median of each one's fastest pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual_mib_s: Option<f64>,
    /// Below this a pair is slow: a share of what is usual, or what the run asks for, whichever is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_below_mib_s: Option<f64>,
    /// That it is what the run asks for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slow_as_asked: bool,
    /// Two for each pair that was measured.
    pub figures: Vec<BandwidthFigure>,
}

/// What went from one node to another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BandwidthFigure {
    /// The sending node.
    pub from: String,
    /// The receiving one.
    pub to: String,
    /// MiB a second; 0 when the other could not be reached, none when it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// Less than `slow_below_mib_s`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slow: bool,
    /// Why not, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// A node that a run is not given again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExcludedNode {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// One node's part of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Since when it stands still, and how that shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// It failed because another rank had failed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascade: bool,
}

/// `POST /api/runs/{id}/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopRun {
    /// Time between SIGTERM and SIGKILL; the agent's default (30 s) when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Let the run come to a point where nothing is lost, then end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<StopAfter>,
}

/// What a stop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StopAfter {
    /// A step that no rank has reached yet, the same for all: each is asked to end there by itself, which is when a script that knows
    /// how saves.
    Step,
    /// The next complete checkpoint.
    Checkpoint,
}

/// `POST /api/runs/{id}/apply`: other knobs, in place where its ranks can, else by another attempt. What is set already changes nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApplyKnobs {
    /// Each knob with its value.
    pub set: BTreeMap<String, String>,
    /// The attempt that is known to be the current one; when it is not any more, nothing is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<AttemptNo>,
    /// Take it back when the verdict is against it; as the run's spec says when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_revert: Option<bool>,
    /// Begin anew, from no checkpoint.
    pub from_start: bool,
    /// Another attempt, also where the ranks could take it over in place.
    pub restart: bool,
    /// With `activation_checkpointing`: once it is kept, try a doubled `micro_batch`; as the run's spec says when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub try_larger_batch: Option<bool>,
}

/// `POST /api/runs/{id}/revert`: the last change of knobs taken back, in place or by another attempt.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RevertKnobs {
    /// The attempt whose change is taken back, when it is the last that was not; one that was taken back already changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Which of that attempt's changes in place, from 1, when it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
    /// Begin anew, from no checkpoint.
    pub from_start: bool,
    /// Another attempt, also where the ranks could take it back in place.
    pub restart: bool,
}
