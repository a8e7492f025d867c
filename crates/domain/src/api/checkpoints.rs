//! `/api/runs/{id}/checkpoints`: `GET` what a run has saved, `POST …/pin` keeps one, `POST …/prune` removes what nobody needs,
//! `POST /api/runs/{id}/resume` goes on from one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// What a run has saved, newest step first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointList {
    /// The folder that is watched; none when the run names none and no save was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Free bytes of the folder's file system, on the node that has the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Where the pointer called `latest` points, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// Why the folder cannot be looked at, or something in it not be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The checkpoints.
    pub checkpoints: Vec<CheckpointView>,
    /// What pruning by the run's own rules would remove now, and what it would keep: the answer of a dry run.
    pub retention: PruneAnswer,
}

/// One checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointView {
    /// Where it lies on the nodes; names it.
    pub path: String,
    /// The step it holds, when that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `dcp` for a folder of `torch.distributed.checkpoint`, `torch_save` for one file, `folder` for a folder of files.
    pub format: String,
    /// `full`, or `model` for one without optimizer and data position: training cannot go on from it exactly.
    pub content: String,
    /// Whether everything is there.
    pub complete: bool,
    /// It changed a moment ago: what is missing may still come.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
    /// What is missing or wrong when it is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes as files say.
    pub bytes: u64,
    /// Bytes that it alone takes on disk: shards shared with another checkpoint are not counted.
    pub own_bytes: u64,
    /// When it was finished, by its node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
    /// How long saving took, when the probe saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Nodes that see it; several for shared storage.
    pub nodes: Vec<String>,
    /// A person wants it kept.
    pub pinned: bool,
    /// The best by validation loss, as far as the script says.
    pub best: bool,
    /// An attempt of a run that has not ended went on from it.
    pub in_use: bool,
    /// It was there before the run: the run resumes from it only when a person names it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// How many steps behind the last step of the run it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_steps: Option<u64>,
}

/// `POST /api/runs/{id}/checkpoints/pin`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PinCheckpoint {
    /// Which one.
    pub path: String,
    /// Keep it, or no longer.
    pub pinned: bool,
}

/// `POST /api/runs/{id}/checkpoints/prune`: by the run's own rules for what to keep.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PruneCheckpoints {
    /// Only say what would be removed.
    pub dry_run: bool,
    /// Keep this many of the last ones instead of what the run says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
}

/// What pruning removes and what it keeps, each with the reason. Only what this run provably wrote is ever removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PruneAnswer {
    /// Removed, or to be removed in a dry run.
    pub removed: Vec<PruneLine>,
    /// Kept.
    pub kept: Vec<PruneLine>,
}

/// One checkpoint and why it goes or stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PruneLine {
    /// Which one.
    pub path: String,
    /// Why, for people.
    pub reason: String,
    /// The kind of the reason: kept as `outside_folder`, `pinned`, `pinned_by_another_run`, `in_use`, `not_proven`, `last_complete`,
    /// `no_complete`, `uncertain`, `doubted`, `newer_than_last_complete`, `writing`, `keeps_all`, `best`, `every`, `one_of_last`,
    /// `model_only_between_kept`, `no_step`, `needed`; removed as `incomplete`, `old_model_only`, `older_than_last`, `no_rule`. Empty from an older collector.
    #[serde(default)]
    pub kind: String,
    /// What it takes on disk alone.
    pub own_bytes: u64,
}

/// `POST /api/runs/{id}/resume`: another attempt of a run that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResumeRun {
    /// Path of the checkpoint to go on from; the last complete one when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Begin anew instead, from no checkpoint.
    pub from_start: bool,
}
