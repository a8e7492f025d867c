//! What the shim tells: reports for the collector, which wait for room on a full disk, and a status for people, which does not.

use std::collections::BTreeMap;

use domain::run::state::NodeReport;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::shim::Shim;
use crate::time::now_ms;

/// `status.json`, for people who look into the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// `running`, `stopping` or `ended`.
    pub(crate) state: String,
    /// The shim.
    pub(crate) shim_pid: u32,
    /// torchrun.
    pub(crate) launcher_pid: i32,
    /// Rank → process id.
    pub(crate) ranks: BTreeMap<u32, i32>,
    /// What keeps all its processes together.
    #[serde(default)]
    pub(crate) kept_by: String,
    /// Where the kernel counts whom it kills for memory.
    #[serde(default)]
    pub(crate) memory_kills: String,
}

impl Shim {
    /// Reports something; a full disk is waited out, for it must never end a training.
    pub(super) fn say(&mut self, report: NodeReport) {
        self.unsaid.push_back((now_ms(), report));
        self.say_the_rest();
    }

    pub(super) fn say_the_rest(&mut self) {
        while let Some((at_ms, report)) = self.unsaid.front() {
            if self.reports.add(*at_ms, report.clone()).is_err() {
                return;
            }
            self.unsaid.pop_front();
        }
    }

    /// For people: a full disk costs them the news.
    pub(super) fn note_status(&self, state: &str) {
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
