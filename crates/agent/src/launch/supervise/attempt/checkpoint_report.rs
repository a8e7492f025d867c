//! The newest checkpoint report. It is stored whole in the attempt's folder, and sent in parts of a size that a collector accepts.
//!
//! ```text
//! checkpoints.report    the whole report, with the id of its last part; each report replaces the previous one
//! sent                  parts with consecutive ids; the last part has that id
//! ```
//! An id must never be used for two contents, because a collector ignores ids that it has seen. Different versions of the agent may split a
//! report differently. So an agent that finds a report of several parts in the folder gives the parts new ids.

use std::io;

use domain::run::checkpoint::{CheckpointReport, split};
use domain::run::state::NodeReport;
use domain::time::TimestampMs;
use shim::files::CHECKPOINTS;
use shim::{CHECKPOINT_IDS_FROM, Entry, Folder};

/// A checkpoint report with its parts.
#[derive(Debug)]
pub(super) struct ReportedCheckpoints {
    report: CheckpointReport,
    /// Never empty.
    parts: Vec<Entry>,
}

impl ReportedCheckpoints {
    /// Reads the newest report of the previous agent.
    pub(super) fn open(folder: &Folder) -> Option<Self> {
        let entry = folder.read::<Entry>(CHECKPOINTS).ok()?;
        let NodeReport::Checkpoints(report) = entry.report else {
            return None;
        };
        let reported = Self::new(entry.id, entry.at_ms, report.clone());
        if reported.parts.len() == 1 {
            return Some(reported);
        }
        let reported = Self::new(entry.id + 1, entry.at_ms, report);
        if let Err(error) = reported.note(folder) {
            // The next report is stored too, with ids after these.
            tracing::warn!(folder = %folder.path().display(), %error, "the ids of a checkpoint report cannot be stored");
        }
        Some(reported)
    }

    /// Returns a new report, with ids after those of the previous one.
    pub(super) fn after(before: Option<&Self>, at_ms: TimestampMs, report: CheckpointReport) -> Self {
        let last_id = before.map_or(CHECKPOINT_IDS_FROM, Self::last_id);
        Self::new(last_id + 1, at_ms, report)
    }

    fn new(first_id: u64, at_ms: TimestampMs, report: CheckpointReport) -> Self {
        let parts = (first_id..).zip(split(report.clone())).map(|(id, part)| Entry {
            id,
            at_ms,
            report: NodeReport::Checkpoints(part),
        });
        Self {
            parts: parts.collect(),
            report,
        }
    }

    /// Writes the report to the attempt's folder.
    pub(super) fn note(&self, folder: &Folder) -> io::Result<()> {
        let entry = Entry {
            id: self.last_id(),
            at_ms: self.parts[0].at_ms,
            report: NodeReport::Checkpoints(self.report.clone()),
        };
        folder.write_json(CHECKPOINTS, &entry)
    }

    pub(super) fn report(&self) -> &CheckpointReport {
        &self.report
    }

    pub(super) fn parts(&self) -> &[Entry] {
        &self.parts
    }

    pub(super) fn last_id(&self) -> u64 {
        self.parts[self.parts.len() - 1].id
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::run::checkpoint::Checkpoint;

    use super::*;

    /// With 200 paths of 600 bytes, it has the size of the reports that were dropped before.
    fn report(checkpoints: usize) -> CheckpointReport {
        let folder = "/long-name".repeat(60);
        let one = |n| Checkpoint {
            path: format!("{folder}/{n}"),
            ..Checkpoint::default()
        };
        CheckpointReport {
            checkpoints: (0..checkpoints).map(one).collect(),
            ..CheckpointReport::default()
        }
    }

    fn ids(reported: &ReportedCheckpoints) -> Vec<u64> {
        reported.parts.iter().map(|part| part.id).collect()
    }

    #[test]
    fn no_id_names_two_contents() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let small = ReportedCheckpoints::after(None, 1, report(1));
        assert_eq!(ids(&small), [CHECKPOINT_IDS_FROM + 1]);
        small.note(&folder).unwrap();
        let again = ReportedCheckpoints::open(&folder).unwrap();
        assert_eq!(ids(&again), ids(&small), "the same content has the same id");

        let large = ReportedCheckpoints::after(Some(&again), 2, report(200));
        assert!(large.parts.len() > 2 && ids(&large)[0] == CHECKPOINT_IDS_FROM + 2);
        large.note(&folder).unwrap();
        // This agent, or one that splits differently, continues after all ids that may have been sent.
        let again = ReportedCheckpoints::open(&folder).unwrap();
        assert_eq!(ids(&again)[0], large.last_id() + 1);
        assert_eq!(again.report, large.report);
        let once_more = ReportedCheckpoints::open(&folder).unwrap();
        assert_eq!(ids(&once_more)[0], again.last_id() + 1, "it was noted");
    }
}
