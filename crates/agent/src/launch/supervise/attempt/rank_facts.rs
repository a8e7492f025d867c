//! Information from the ranks that belongs to the run and not to a series: their position in a mesh, and what the probe cannot see. Also
//! detects ranks that send nothing.
//!
//! Each fact is reported once, and again when it changes. The attempt's reports contain the facts that were reported. A file contains the
//! ranks that have ever sent a record, because a new agent continues to read after the old records.

use std::collections::{BTreeMap, BTreeSet};

use domain::ident::Rank;
use domain::run::mesh::RankMesh;
use domain::run::ranks::RankSet;
use domain::run::state::NodeReport;
use domain::run::unobserved::{NOTES_MAX, RankUnobserved, one_line};
use domain::time::TimestampMs;
use shim::{Entry, Folder, files};

use crate::launch::probe::{Record, SILENT_AFTER_MS};

/// Minimum lifetime after which a failed rank without records is reported as silent: one that failed earlier may have ended before it
/// imported torch. A rank that succeeded is reported after any lifetime.
const FAILED_SILENT_AFTER_MS: i64 = 30_000;

/// The facts from inside the ranks of one attempt on this node.
#[derive(Debug)]
pub(super) struct RankFacts {
    folder: Folder,
    seen: RankSet,
    meshes: BTreeMap<u32, RankMesh>,
    unseen: BTreeMap<u32, RankUnobserved>,
    /// Silent ranks were searched while ranks run. This is done once, and again at the end.
    silence_checked: bool,
}

impl RankFacts {
    /// Continues from the state of the previous agent.
    pub(super) fn open(folder: &Folder, entries: &[Entry]) -> Self {
        let mut facts = Self {
            folder: folder.clone(),
            seen: folder.read(files::RANKS_SEEN).unwrap_or_default(),
            meshes: BTreeMap::new(),
            unseen: BTreeMap::new(),
            silence_checked: false,
        };
        for entry in entries {
            match &entry.report {
                NodeReport::RankMesh(mesh) => _ = facts.meshes.insert(mesh.rank.0, mesh.clone()),
                NodeReport::RankUnobserved(unseen) => _ = facts.unseen.insert(unseen.rank.0, unseen.clone()),
                _ => {}
            }
        }
        facts
    }

    /// Takes a record of a probe. Returns the report to send for it.
    pub(super) fn take(&mut self, record: &Record) -> Option<NodeReport> {
        let rank = match record {
            Record::Hello(hello) => hello.rank,
            Record::Bye(bye) => bye.rank,
            Record::Mesh(mesh) => mesh.rank.0,
            Record::Error { rank } => *rank,
            _ => return None,
        };
        self.mark_seen(Rank(rank));
        match record {
            Record::Hello(hello) => self.report_unseen(rank, false, &hello.notes),
            Record::Bye(bye) => self.report_unseen(rank, bye.step == Some(0), &bye.notes),
            Record::Mesh(mesh) => self.report_mesh(mesh),
            _ => None,
        }
    }

    /// Returns reports about ranks that have sent no record. While ranks run, it checks once, at a time when each rank should have sent
    /// one.
    pub(super) fn silent(
        &mut self,
        now_ms: TimestampMs,
        ended: bool,
        reports: impl FnOnce() -> Vec<Entry>,
    ) -> Vec<NodeReport> {
        if self.silence_checked && !ended {
            return Vec::new();
        }
        let reports = reports();
        let started = started(&reports);
        if !ended
            && !started
                .values()
                .any(|life| life.began_ms + SILENT_AFTER_MS <= now_ms)
        {
            return Vec::new();
        }
        self.silence_checked = true;
        let after_ms = if ended {
            FAILED_SILENT_AFTER_MS
        } else {
            SILENT_AFTER_MS
        };
        let silent = started.into_iter().filter(|(rank, life)| {
            let lived_ms = life.ended_ms.unwrap_or(now_ms) - life.began_ms;
            !self.seen.contains(Rank(*rank)) && (life.ended_well || lived_ms >= after_ms)
        });
        let ranks: BTreeSet<u32> = silent.map(|(rank, _)| rank).collect();
        let silence = |rank| RankUnobserved {
            rank: Rank(rank),
            silent: true,
            ..RankUnobserved::default()
        };
        ranks
            .into_iter()
            .filter_map(|rank| self.report_if_changed(silence(rank)))
            .collect()
    }

    fn mark_seen(&mut self, rank: Rank) {
        if self.seen.contains(rank) {
            return;
        }
        self.seen.insert(rank);
        let noted = self.folder.write_json(files::RANKS_SEEN, &self.seen);
        if let Err(error) = noted {
            tracing::warn!(%error, "the list of ranks that have sent records cannot be stored; a new agent may report one of them as silent");
        }
    }

    fn report_unseen(&mut self, rank: u32, stepless: bool, notes: &[String]) -> Option<NodeReport> {
        self.report_if_changed(RankUnobserved {
            rank: Rank(rank),
            silent: false,
            stepless,
            notes: notes.iter().take(NOTES_MAX).map(|note| one_line(note)).collect(),
        })
    }

    /// Returns a report if the facts changed. A rank without hidden parts is reported only if it had some before.
    fn report_if_changed(&mut self, unseen: RankUnobserved) -> Option<NodeReport> {
        let rank = unseen.rank.0;
        let nothing = RankUnobserved {
            rank: unseen.rank,
            ..RankUnobserved::default()
        };
        if *self.unseen.get(&rank).unwrap_or(&nothing) == unseen {
            return None;
        }
        self.unseen.insert(rank, unseen.clone());
        Some(NodeReport::RankUnobserved(unseen))
    }

    fn report_mesh(&mut self, mesh: &RankMesh) -> Option<NodeReport> {
        let mesh = mesh.clone().checked()?;
        let before = self.meshes.insert(mesh.rank.0, mesh.clone());
        (before.as_ref() != Some(&mesh)).then_some(NodeReport::RankMesh(mesh))
    }
}

/// The lifetime of a rank's process that has not finished a step yet.
struct Life {
    began_ms: TimestampMs,
    ended_ms: Option<TimestampMs>,
    ended_well: bool,
}

fn started(reports: &[Entry]) -> BTreeMap<u32, Life> {
    let mut lives = BTreeMap::new();
    for entry in reports {
        match &entry.report {
            NodeReport::RankStarted { rank, .. } => {
                let life = Life {
                    began_ms: entry.at_ms,
                    ended_ms: None,
                    ended_well: false,
                };
                lives.insert(rank.0, life);
            }
            // Its probe has reported the step, whichever agent read it.
            NodeReport::FirstStep { rank, .. } => _ = lives.remove(&rank.0),
            NodeReport::RankExited(exit) => {
                if let Some(life) = lives.get_mut(&exit.rank.0) {
                    (life.ended_ms, life.ended_well) = (Some(entry.at_ms), !exit.failed());
                }
            }
            _ => {}
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::run::state::RankExit;

    use super::*;

    fn record(text: &str) -> Record {
        Record::parse(text.as_bytes()).unwrap()
    }

    fn hello(rank: u32, notes: &[&str]) -> Record {
        let notes = serde_json::to_string(notes).unwrap();
        record(&format!(r#"{{"kind":"hello","rank":{rank},"notes":{notes}}}"#))
    }

    fn entry(at_ms: i64, report: NodeReport) -> Entry {
        Entry { id: 1, at_ms, report }
    }

    fn start(rank: u32, at_ms: i64) -> Entry {
        let report = NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank: rank,
            pid: 1,
        };
        entry(at_ms, report)
    }

    fn exit(rank: u32, at_ms: i64, code: i32) -> Entry {
        let exit = RankExit {
            rank: Rank(rank),
            code: Some(code),
            ..RankExit::default()
        };
        entry(at_ms, NodeReport::RankExited(exit))
    }

    fn unseen(report: &NodeReport) -> &RankUnobserved {
        let NodeReport::RankUnobserved(unseen) = report else {
            panic!("{report:?}")
        };
        unseen
    }

    #[test]
    fn hidden_parts_are_reported_once_and_again_when_they_change() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut facts = RankFacts::open(&folder, &[]);
        assert_eq!(facts.take(&hello(0, &[])), None, "nothing is hidden");
        let report = facts.take(&hello(0, &["blind\nhere"])).unwrap();
        assert_eq!(unseen(&report).notes, ["blind here"]);
        assert_eq!(facts.take(&hello(0, &["blind\nhere"])), None);
        let mut next_agent = RankFacts::open(&folder, &[entry(1, report)]);
        assert_eq!(next_agent.take(&hello(0, &["blind\nhere"])), None);
        let bye = next_agent.take(&record(
            r#"{"kind":"bye","rank":0,"step":0,"notes":["blind here"]}"#,
        ));
        assert!(unseen(&bye.unwrap()).stepless);
        assert_eq!(
            next_agent.take(&record(r#"{"kind":"bye","rank":1,"step":5}"#)),
            None
        );
    }

    #[test]
    fn a_mesh_is_reported_once_per_rank() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut facts = RankFacts::open(&folder, &[]);
        let line = r#"{"kind":"mesh","rank":3,"axes":["data","tensor"],"sizes":[2,2],"coordinates":[1,1]}"#;
        let Some(NodeReport::RankMesh(mesh)) = facts.take(&record(line)) else {
            panic!("a mesh")
        };
        assert_eq!(
            (mesh.rank, mesh.coordinates.as_slice()),
            (Rank(3), [1, 1].as_slice())
        );
        assert_eq!(facts.take(&record(line)), None);
        let wrong = r#"{"kind":"mesh","rank":3,"axes":["data"],"sizes":[2],"coordinates":[2]}"#;
        assert_eq!(facts.take(&record(wrong)), None);
    }

    #[test]
    fn a_rank_is_silent_if_it_lived_long_enough_to_send_a_record() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut facts = RankFacts::open(&folder, &[]);
        facts.take(&hello(0, &[]));
        let mut of = |now_ms, ended, reports: Vec<Entry>| {
            let silent = facts.silent(now_ms, ended, || reports);
            silent
                .iter()
                .map(|report| unseen(report).rank.0)
                .collect::<Vec<_>>()
        };
        let two = || vec![start(0, 1_000), start(1, 1_000)];
        assert_eq!(of(120_999, false, two()), [0; 0]);
        assert_eq!(of(121_000, false, two()), [1]);
        assert_eq!(of(131_000, false, two()), [0; 0], "reported once");
        let stepped = NodeReport::FirstStep {
            rank: Rank(1),
            step: 1,
        };
        let mut next_agent = RankFacts::open(&folder, &[]);
        let mut at_the_end = |reports: Vec<Entry>| next_agent.silent(60_000, true, || reports).len();
        assert_eq!(
            at_the_end(vec![start(0, 0), exit(0, 9, 0)]),
            0,
            "an earlier agent has heard it"
        );
        assert_eq!(
            at_the_end(vec![start(1, 0), entry(1, stepped), exit(1, 9_000, 0)]),
            0,
            "its probe was there"
        );
        assert_eq!(
            at_the_end(vec![start(1, 0), exit(1, 9_000, 1)]),
            0,
            "it may have failed before it came so far"
        );
        assert_eq!(at_the_end(vec![start(1, 0), exit(1, 9_000, 0)]), 1);
        assert_eq!(at_the_end(vec![start(2, 0), exit(2, 30_000, 1)]), 1);
    }
}
