//! A prune that a person requested: what it removes, how much space that frees, and whether the next save succeeds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::DisplayBytes;
use crate::run::checkpoint::{Checkpoint, SaveFailure};
use crate::run::knob::{Decision, Recovery, Verdict};
use crate::time::TimestampMs;

/// A prune, and what followed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prune {
    /// Number of the prune within the run, from 1.
    pub no: u32,
    /// When it was requested.
    pub requested_ms: TimestampMs,
    /// The checkpoints to remove, with the bytes that only they use.
    pub removes: BTreeMap<String, u64>,
    /// Number of these checkpoints that still exist.
    pub left: usize,
    /// Bytes that the removed ones used.
    pub freed_bytes: u64,
    /// Free bytes before the removal, on the node with the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes_before: Option<u64>,
    /// Free bytes when all of them were gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes_after: Option<u64>,
    /// The first save that failed after all of them were gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<SaveFailure>,
    /// The first checkpoint that was complete after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
}

impl Prune {
    /// Returns a prune that has removed nothing yet.
    pub(super) fn new(
        no: u32,
        removes: BTreeMap<String, u64>,
        free_bytes: Option<u64>,
        now_ms: TimestampMs,
    ) -> Self {
        Self {
            no,
            requested_ms: now_ms,
            left: removes.len(),
            removes,
            free_bytes_before: free_bytes,
            ..Self::default()
        }
    }

    /// Returns true if checkpoints are left, or if none has been saved since.
    pub(super) fn is_open(&self) -> bool {
        self.left > 0 || self.saved.is_none()
    }

    /// Updates what is left after a report. `free_bytes` is the free space now.
    pub(super) fn follow(&mut self, checkpoints: &[Checkpoint], free_bytes: Option<u64>) {
        let had_some_left = self.left > 0;
        let exists = |path: &str| checkpoints.iter().any(|checkpoint| checkpoint.path == path);
        let left: Vec<u64> = self
            .removes
            .iter()
            .filter(|(path, _)| exists(path))
            .map(|(_, bytes)| *bytes)
            .collect();
        self.left = left.len();
        self.freed_bytes = self.removes.values().sum::<u64>() - left.iter().sum::<u64>();
        if had_some_left && self.left == 0 {
            self.free_bytes_after = free_bytes;
        }
    }

    /// Returns the space before and after, and whether the next save succeeded.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let count = self.removes.len();
        let mut summary = format!(
            "freed {} ({} of {count} checkpoints removed)",
            DisplayBytes(self.freed_bytes),
            count.saturating_sub(self.left)
        );
        if let (Some(before), Some(after)) = (self.free_bytes_before, self.free_bytes_after) {
            let space = format!(", free space {} → {}", DisplayBytes(before), DisplayBytes(after));
            summary.push_str(&space);
        }
        let (decision, next) = match (&self.saved, &self.failed) {
            (Some(path), _) => (Decision::Recovered, format!("the next save succeeded: {path}")),
            (None, Some(failure)) => (
                Decision::NotRecovered,
                format!("the next save failed: {}", failure.error),
            ),
            (None, None) => (Decision::NotYet, "no checkpoint has been saved since".to_owned()),
        };
        Verdict {
            decision,
            summary: format!("{summary}; {next}"),
            recovery: Some(Recovery::CheckpointSpace {
                freed_bytes: self.freed_bytes,
                free_bytes_before: self.free_bytes_before,
                free_bytes_after: self.free_bytes_after,
                saved: self.saved.clone(),
            }),
            ..Verdict::default()
        }
    }
}
