//! What the shim writes for others: reports for the collector, which are retried while the disk is full, and a status for people, which is
//! not.

use std::collections::BTreeMap;

use domain::run::state::NodeReport;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::shim::Shim;
use crate::time::now_ms;

/// The content of `status.json`, for people who read the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// `running`, `stopping` or `ended`.
    pub(crate) state: String,
    /// The process id of the shim.
    pub(crate) shim_pid: u32,
    /// The process id of torchrun.
    pub(crate) launcher_pid: i32,
    /// Rank → process id.
    pub(crate) ranks: BTreeMap<u32, i32>,
    /// How the shim finds all its processes: a cgroup or the process tree.
    #[serde(default)]
    pub(crate) kept_by: String,
    /// The file in which the kernel counts the processes that it killed because of memory.
    #[serde(default)]
    pub(crate) memory_kills: String,
}

impl Shim {
    /// Writes a report. If the disk is full, the report waits: a full disk must never end a training.
    pub(super) fn write_report(&mut self, report: NodeReport) {
        self.pending_reports.push_back((now_ms(), report));
        self.write_pending_reports();
    }

    pub(super) fn write_pending_reports(&mut self) {
        while let Some((at_ms, report)) = self.pending_reports.front() {
            if self.reports.add(*at_ms, report.clone()).is_err() {
                return;
            }
            self.pending_reports.pop_front();
        }
    }

    /// Writes `status.json`. If the disk is full, the status is lost.
    pub(super) fn write_status(&self, state: &str) {
        let status = Status {
            state: state.to_owned(),
            shim_pid: std::process::id(),
            launcher_pid: self.launcher.pid,
            ranks: self.ranks.values().map(|rank| (rank.rank, rank.pid)).collect(),
            kept_by: self.kept_by(),
            memory_kills: self.memory.to_string(),
        };
        let text = serde_json::to_vec_pretty(&status).unwrap_or_default();
        let _disk_full = self.folder.write(files::STATUS, &text);
    }

    pub(super) fn kept_by(&self) -> String {
        let tree = || "the process tree".to_owned();
        let own = self.group.as_ref().map_or_else(tree, ToString::to_string);
        match &self.launch.container {
            Some(contained) => format!("{} container {}, {own}", contained.runtime, contained.name),
            None => own,
        }
    }
}
