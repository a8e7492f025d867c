//! What a run has saved: how nodes tell it, what is kept, and where training may go on.
//!
//! ```text
//! node's disk ──look──▶ CheckpointReport ──▶ known (by path, over all nodes) ──▶ resume_point, list
//!                                                   │
//!                                                   └▶ retention::decide ──▶ RemovalOrder ──▶ one node of each storage
//! ```
//! Only what this run provably wrote is removed, and training goes on by itself only from what this run saved: see [`Origin`].
//!
//! Nothing here reads a disk or a clock. A checkpoint is never opened by unpickling, on no side.

mod doubt;
mod known;
mod list;
mod name;
mod report;
pub mod retention;
mod run;
mod split;
mod storage;

pub use name::step_of_name;
pub use report::{CheckpointReport, PruneOrder, Remain, RemovalOrder, SaveFailure};
pub use retention::Keep;
pub use run::PINS_MAX;
pub use split::{PART_BYTES_MAX, fits_one_part, split};
pub use storage::{NodeStorage, Storage};

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// How a checkpoint lies on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One file of `torch.save`.
    #[default]
    TorchSave,
    /// A folder of `torch.distributed.checkpoint`.
    Dcp,
    /// A folder of files, as Hugging Face, Lightning and DeepSpeed make it.
    Folder,
    /// A format that this version does not know, as the newer agent wrote it.
    #[serde(untagged)]
    Other(String),
}

impl Format {
    /// Its name in the API.
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
    /// Where it lies; names it.
    pub path: String,
    /// The step it holds, when that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How it lies on disk.
    pub format: Format,
    /// Without optimizer and data position: training cannot go on from it exactly.
    pub model_only: bool,
    /// Whether everything is there; otherwise `problem` says what is not.
    pub complete: bool,
    /// It changed a moment ago: what is missing may still come.
    #[serde(skip_serializing_if = "is_false")]
    pub writing: bool,
    /// Nobody can tell without running what is in it, so it is neither removed nor gone on from by itself.
    #[serde(skip_serializing_if = "is_false")]
    pub uncertain: bool,
    /// Another's: it was there before the run. It is neither removed nor gone on from by itself.
    #[serde(skip_serializing_if = "is_false")]
    pub foreign: bool,
    /// Why training is not to go on from it by itself though everything seems to be there: an attempt could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// What is missing or wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes as files say, over all nodes.
    pub bytes: u64,
    /// Bytes that it alone takes: files that another checkpoint links to are not counted.
    pub own_bytes: u64,
    /// When it was finished, by its node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
    /// When anything in it changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_ms: Option<TimestampMs>,
    /// How long saving took, when the probe or the script said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The validation loss the script noted; finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Checkpoints that files of this one are symbolic links into: it is nothing without them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub needs: BTreeSet<String>,
    /// What each node sees of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, Sight>,
    /// When a node was told to remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_told_ms: Option<TimestampMs>,
}

/// Where an attempt goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResumedFrom {
    /// The checkpoint's path on the nodes.
    pub path: String,
    /// The step it holds, when that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

/// One node's view of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sight {
    /// Inode and time of change: nodes with the same mark look at the same storage.
    pub mark: String,
    /// Whether everything is there, for this node alone.
    pub complete: bool,
    /// It changed a moment ago.
    #[serde(skip_serializing_if = "is_false")]
    pub writing: bool,
    /// What is missing or wrong here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes here.
    pub bytes: u64,
    /// Bytes that it alone takes here.
    pub own_bytes: u64,
    /// Shards that `.metadata` names and that are not here; they may be on other nodes' own disks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// How many shards are missing beyond those in `missing`, which is bounded. If it is not 0, other nodes' disks cannot make this
    /// checkpoint complete: nobody knows which shards to look for.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_more: u64,
    /// Shards that are here without `.metadata`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Who wrote it, as far as this node can tell; `None` from an agent that is older than this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Where the origin is not [`Origin::Proven`]: some of the files without proof, at most [`UNPROVEN_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unproven: Vec<String>,
}

/// The most files without proof that a node names per checkpoint: examples for a person.
pub const UNPROVEN_MAX: usize = 3;

/// Who wrote a checkpoint, as one node can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This run: every file is one that a save of this run wrote. Only such a checkpoint may be removed.
    Proven,
    /// Most likely this run: it was not there when the run first started on the node, or one of its files is proven. Training may go on
    /// from it.
    SinceStart,
    /// Somebody else: at least one of its files was there when the run first started on the node, and has not changed since.
    BeforeStart,
    /// It cannot be told; or a word of a newer agent.
    #[serde(other)]
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Checkpoint {
    /// The order in which training would rather go on: by step, then by time.
    #[must_use]
    pub fn progress(&self) -> (Option<u64>, Option<TimestampMs>) {
        (self.step, self.finished_ms)
    }

    /// Whether training can go on from it by itself. From another's checkpoint, or one in doubt, it goes on only when a person names it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.complete && !self.model_only && !self.uncertain && !self.foreign && self.doubt.is_none()
    }

    /// Whether every storage that it lies on has a node that can prove that the run wrote all of it.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        let proves = |sight: &Sight| sight.origin == Some(Origin::Proven);
        let proven: BTreeSet<&str> = self
            .seen
            .values()
            .filter(|sight| proves(sight))
            .map(|sight| sight.mark.as_str())
            .collect();
        !self.seen.is_empty()
            && self
                .seen
                .values()
                .all(|sight| proven.contains(sight.mark.as_str()))
    }
}

/// Where the next attempt goes on: the furthest full checkpoint of this run that is complete.
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
    fn training_goes_on_from_the_furthest_that_is_whole() {
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
    fn training_does_not_go_on_from_what_was_there_before_the_run() {
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
        let sight = |mark: &str, origin| Sight {
            mark: mark.into(),
            origin,
            ..Sight::default()
        };
        let proven = |sights: &[Sight]| {
            let seen = (0..)
                .zip(sights)
                .map(|(n, sight): (u32, _)| (n.to_string(), sight.clone()));
            Checkpoint {
                seen: seen.collect(),
                ..Checkpoint::default()
            }
            .is_proven()
        };
        let (yes, no) = (Some(Origin::Proven), Some(Origin::SinceStart));
        assert!(proven(&[sight("a", yes)]));
        assert!(
            proven(&[sight("a", no), sight("a", yes)]),
            "one node of a shared storage is enough"
        );
        assert!(
            !proven(&[sight("a", yes), sight("b", no)]),
            "b has a disk of its own"
        );
        assert!(!proven(&[sight("a", None)]), "an older agent");
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
