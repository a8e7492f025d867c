//! `/api/runs/{id}/checkpoints`: `GET` lists the checkpoints of a run, `POST …/pin` keeps one, `POST …/prune` removes those not needed.
//! `POST /api/runs/{id}/resume` resumes the run from one.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// Checkpoints of a run, newest step first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointList {
    /// Watched folder. Absent if the run's specification names no folder and no save was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Free bytes of the folder's file system, on the node with the least free space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Target of the pointer `latest`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// Why the folder cannot be read, or a part of it cannot be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The checkpoints.
    pub checkpoints: Vec<CheckpointView>,
    /// What pruning by the run's own retention rules would remove and keep now (a dry run).
    pub retention: PruneAnswer,
}

/// One checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointView {
    /// Path on the nodes. Identifies the checkpoint.
    pub path: String,
    /// Step of the checkpoint, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `dcp` for a folder of `torch.distributed.checkpoint`, `torch_save` for one file, `folder` for a folder of files.
    pub format: String,
    /// `full`, or `model` for a checkpoint without optimizer and data position: training cannot continue exactly from it.
    pub content: String,
    /// True if all files are there.
    pub complete: bool,
    /// True if it changed recently: the missing files may still be written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
    /// What is missing or wrong, if the checkpoint is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Sum of the file sizes in bytes.
    pub bytes: u64,
    /// Bytes on disk that only this checkpoint uses. Shards that it shares with another checkpoint are not counted.
    pub own_bytes: u64,
    /// When the checkpoint was complete, by the clock of its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
    /// Duration of the save, if the probe saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Nodes that see the checkpoint; several for shared storage.
    pub nodes: Vec<String>,
    /// True if a user pinned it.
    pub pinned: bool,
    /// True if it is the best by validation loss, according to the script.
    pub best: bool,
    /// True if an attempt of a run that has not ended resumed from it.
    pub in_use: bool,
    /// True if it existed before the run. The run resumes from it only if a user names it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// Why the last request to remove it had no effect, with the nodes to which the reason applies. Absent if there was none, or if it is
    /// not carried out yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_removed: Option<String>,
    /// Number of steps between the checkpoint and the last step of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_steps: Option<u64>,
}

/// Request body of `POST /api/runs/{id}/checkpoints/pin`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PinCheckpoint {
    /// Path of the checkpoint.
    pub path: String,
    /// True to pin it, false to unpin it.
    pub pinned: bool,
}

/// Request body of `POST /api/runs/{id}/checkpoints/prune`. Pruning follows the run's own retention rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PruneCheckpoints {
    /// True to report what would be removed, without removing it.
    pub dry_run: bool,
    /// Number of newest checkpoints to keep, instead of the number in the run's specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// Paths of the checkpoints to remove: exactly those that a dry run with the same `keep_last` listed in `removed`. If others would be
    /// removed now, nothing is removed, and the response is 409 with the new list.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub removes: BTreeSet<String>,
}

/// What pruning removes and keeps, with the reason for each checkpoint. Pruning removes only checkpoints that this run has provably
/// written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PruneAnswer {
    /// Removed checkpoints; in a dry run, those that would be removed.
    pub removed: Vec<PruneLine>,
    /// Kept checkpoints.
    pub kept: Vec<PruneLine>,
}

/// One checkpoint and the reason why it is kept or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneLine {
    /// Path of the checkpoint.
    pub path: String,
    /// Reason as a text for people.
    pub reason: String,
    /// Reason as an identifier. Kept: `outside_folder`, `pinned`, `pinned_by_another_run`, `in_use`, `not_proven`, `no_node`, `last_complete`,
    /// `no_complete`, `uncertain`, `doubted`, `diverged`, `newer_than_last_complete`, `writing`, `keeps_all`, `best`, `every`,
    /// `one_of_last`, `model_only_between_kept`, `no_step`, `needed`. Removed: `incomplete`, `old_model_only`, `older_than_last`, `no_rule`.
    /// Empty if the collector is older.
    #[serde(default)]
    pub kind: String,
    /// Bytes on disk that only this checkpoint uses.
    pub own_bytes: u64,
}

impl PruneLine {
    /// Returns the paths on these lines, as a request to remove these checkpoints names them.
    #[must_use]
    pub fn paths(lines: &[Self]) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        // Not collected: that sorts, which adds five kilobytes to the dashboard.
        for line in lines {
            paths.insert(line.path.clone());
        }
        paths
    }
}

/// Request body of `POST /api/runs/{id}/resume`, which starts another attempt of a run that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResumeRun {
    /// Path of the checkpoint to resume from. Default: the last complete one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// True to start from step 0 without a checkpoint.
    pub from_start: bool,
}
