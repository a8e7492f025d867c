//! The checkpoints of a run: how nodes report them, which are kept, and from which one training resumes.
//!
//! ```text
//! node's disk ──look──▶ CheckpointReport ──▶ known (by path, over all nodes) ──▶ resume_point, list
//!                                                   │
//!                                                   └▶ retention::decide ──▶ RemovalOrder ──▶ one node of each storage
//! ```
//! Only checkpoints that this run provably wrote are removed, and training resumes automatically only from what this run saved: see
//! [`Origin`].
//!
//! This code reads no disk and no clock. Neither the collector nor an agent ever opens a checkpoint by unpickling it.

mod diverged;
mod list;
mod merge;
mod name;
mod prune;
mod report;
mod requested;
pub mod retention;
mod run;
mod split;
mod storage;
mod unusable;

pub use name::step_of_name;
pub use prune::Prune;
pub use report::{CheckpointReport, PruneOrder, RemovalOrder, RequiredCheckpoint, SaveFailure};
pub use requested::{LastComplete, RequestedRemoval};
pub use retention::Keep;
pub use run::PINS_MAX;
pub use split::{PART_BYTES_MAX, fits_one_part, split};
pub use storage::{NodeStorage, Storage};

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// The format of a checkpoint on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One file written by `torch.save`.
    #[default]
    TorchSave,
    /// A folder of `torch.distributed.checkpoint`.
    Dcp,
    /// A folder of files, as Hugging Face, Lightning and DeepSpeed write it.
    Folder,
    /// A format that this version does not know, as the newer agent wrote it.
    #[serde(untagged)]
    Other(String),
}

impl Format {
    /// Returns the name in the API.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::TorchSave => "torch_save",
            Self::Dcp => "dcp",
            Self::Folder => "folder",
            Self::Other(name) => name,
        }
    }
}

/// One checkpoint, as all nodes together see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Path of the checkpoint, which identifies it.
    pub path: String,
    /// The step that it contains, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Format on disk.
    pub format: Format,
    /// True if it lacks the optimizer and the data position: training cannot resume from it exactly.
    pub model_only: bool,
    /// True if all files are there; otherwise `problem` says what is missing.
    pub complete: bool,
    /// True if it changed a moment ago: missing files may still come.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
    /// True if its contents cannot be determined without running them. It is then neither removed nor resumed from automatically.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// True if it was there before the run, so another run wrote it. It is neither removed nor resumed from automatically.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// Why training does not resume from it automatically although it seems to be complete: an attempt could not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// The last good step of the attempt that saved it, if the loss had begun to diverge before. Training then does not resume from it
    /// automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged_after: Option<u64>,
    /// What is missing or wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Total size of its files over all nodes, in bytes.
    pub bytes: u64,
    /// Bytes that only this checkpoint uses: files that another checkpoint links to are not counted.
    pub own_bytes: u64,
    /// When it was finished, by its node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
    /// When anything in it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_ms: Option<TimestampMs>,
    /// How long the save took, if the probe or the script reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The validation loss that the script recorded; finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Checkpoints that this one has symbolic links into: without them it is not complete.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub needs: BTreeSet<String>,
    /// What each node sees of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, CheckpointOnNode>,
    /// When a node was told to remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_told_ms: Option<TimestampMs>,
}

/// Where an attempt resumes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResumedFrom {
    /// Path of the checkpoint on the nodes.
    pub path: String,
    /// The step that it contains, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

/// One node's view of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointOnNode {
    /// Inode and time of change: nodes with the same mark see the same storage.
    pub mark: String,
    /// True if all files are there, as seen by this node alone.
    pub complete: bool,
    /// True if it changed a moment ago.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
    /// What is missing or wrong on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Size on this node, in bytes.
    pub bytes: u64,
    /// Bytes on this node that only this checkpoint uses.
    pub own_bytes: u64,
    /// Shards that `.metadata` names and that are not on this node; they may be on the disks of other nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Number of missing shards beyond those in `missing`, which is bounded. If it is not 0, the disks of other nodes cannot complete this
    /// checkpoint, because it is not known which shards to look for.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_more: u64,
    /// Shards that are on this node without `.metadata`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Who wrote it, as far as this node can determine; `None` from an agent that is older than this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// If the origin is not [`Origin::Proven`]: examples of files without proof, at most [`UNPROVEN_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unproven: Vec<String>,
    /// Why the last order to remove it had no effect on this node. It stays until the checkpoint is removed or another order for it is
    /// finished, or until a person requests the removal again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_removed: Option<String>,
    /// [`RemovalOrder::ordered_ms`] of the order to which `not_removed` is the answer. Absent in reports of older agents, and if the collector
    /// gave no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_removed_order_ms: Option<TimestampMs>,
    /// The last time that its removal from this node's storage was requested. Only the collector sets it; it ignores that of a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_removal: Option<RequestedRemoval>,
}

/// Maximum number of files without proof that a node names per checkpoint, as examples for a person.
pub const UNPROVEN_MAX: usize = 3;

/// Who wrote a checkpoint, as far as one node can determine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This run: every file was written by a save of this run. Only such a checkpoint may be removed.
    Proven,
    /// Most likely this run: it was not there when the run first started on the node, or one of its files is proven. Training may resume
    /// from it.
    SinceStart,
    /// Another program: at least one of its files was there when the run first started on the node, and has not changed since.
    BeforeStart,
    /// Not known, or a word of a newer agent.
    #[serde(other)]
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Checkpoint {
    /// Returns the order in which training prefers checkpoints: by step, then by time.
    #[must_use]
    pub fn progress(&self) -> (Option<u64>, Option<TimestampMs>) {
        (self.step, self.finished_ms)
    }

    /// Returns true if training can resume from it automatically. From a foreign or doubted checkpoint it resumes only when a person names
    /// it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.complete && !self.model_only && !self.uncertain && !self.foreign && !self.is_doubted()
    }

    /// Returns true if an attempt could not use it, or if it may contain diverged weights.
    #[must_use]
    pub fn is_doubted(&self) -> bool {
        self.doubt.is_some() || self.diverged_after.is_some()
    }

    /// Returns why it was not removed although that was requested: each reason with the nodes to which it applies.
    #[must_use]
    pub fn not_removed(&self) -> Option<String> {
        let mut nodes_by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, view) in &self.seen {
            if let Some(reason) = &view.not_removed {
                let nodes = nodes_by_reason.entry(reason.as_str()).or_default();
                nodes.push(node.as_str());
            }
        }
        let reasons = nodes_by_reason.iter();
        let reasons = reasons.map(|(reason, nodes)| format!("{reason} (on {})", nodes.join(", ")));
        let reasons: Vec<String> = reasons.collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Returns true if every storage that contains it has a node that can prove that the run wrote all of it.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        let proves = |view: &CheckpointOnNode| view.origin == Some(Origin::Proven);
        let proven: BTreeSet<&str> = self
            .seen
            .values()
            .filter(|view| proves(view))
            .map(|view| view.mark.as_str())
            .collect();
        !self.seen.is_empty() && self.seen.values().all(|view| proven.contains(view.mark.as_str()))
    }
}

/// Returns where the next attempt resumes: the furthest full checkpoint of this run that is complete.
#[must_use]
pub fn resume_point(checkpoints: &[Checkpoint]) -> Option<ResumedFrom> {
    let usable = checkpoints.iter().filter(|checkpoint| checkpoint.is_usable());
    let furthest = usable.max_by_key(|checkpoint| checkpoint.progress())?;
    Some(ResumedFrom {
        path: furthest.path.clone(),
        step: furthest.step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(step: u64, complete: bool, model_only: bool) -> Checkpoint {
        Checkpoint {
            path: format!("/ckpt/step-{step}"),
            step: Some(step),
            complete,
            model_only,
            ..Checkpoint::default()
        }
    }

    #[test]
    fn training_resumes_from_the_furthest_complete_checkpoint() {
        let all = [
            saved(10, true, false),
            saved(20, true, false),
            saved(30, true, true),
            saved(40, false, false),
        ];
        assert_eq!(resume_point(&all).map(|at| at.step), Some(Some(20)));
        assert_eq!(resume_point(&all[2..]), None);
    }

    #[test]
    fn training_does_not_resume_from_checkpoints_older_than_the_run() {
        let foreign = Checkpoint {
            foreign: true,
            ..saved(90, true, false)
        };
        let all = [saved(10, true, false), foreign];
        assert_eq!(resume_point(&all).map(|at| at.step), Some(Some(10)));
        assert_eq!(resume_point(&all[1..]), None);
    }

    #[test]
    fn every_storage_needs_a_node_that_proves_it() {
        let view = |mark: &str, origin| CheckpointOnNode {
            mark: mark.into(),
            origin,
            ..CheckpointOnNode::default()
        };
        let proven = |views: &[CheckpointOnNode]| {
            let seen = (0..)
                .zip(views)
                .map(|(n, view): (u32, _)| (n.to_string(), view.clone()));
            Checkpoint {
                seen: seen.collect(),
                ..Checkpoint::default()
            }
            .is_proven()
        };
        let (yes, no) = (Some(Origin::Proven), Some(Origin::SinceStart));
        assert!(proven(&[view("a", yes)]));
        assert!(
            proven(&[view("a", no), view("a", yes)]),
            "one node of a shared storage is enough"
        );
        assert!(
            !proven(&[view("a", yes), view("b", no)]),
            "b has a disk of its own"
        );
        assert!(!proven(&[view("a", None)]), "an older agent");
        assert!(!proven(&[]));
    }

    #[test]
    fn an_origin_of_a_newer_agent_is_unknown() {
        let read: Origin = serde_json::from_str("\"of_tomorrow\"").expect("it reads");
        assert_eq!(read, Origin::Unknown);
    }

    #[test]
    fn one_that_an_older_version_stored_still_reads() {
        let old = r#"{"path":"/c/a","step":3,"model_only":false,"complete":true,"finished_ms":5}"#;
        let read: Checkpoint = serde_json::from_str(old).expect("it reads");
        assert!(read.is_usable() && read.seen.is_empty());
    }
}
