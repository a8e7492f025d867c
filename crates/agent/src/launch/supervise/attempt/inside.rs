//! What ranks say of themselves that belongs to the run and not to a series: their place in a mesh, and what of them cannot be seen. And
//! what those say that say nothing.
//!
//! Each is told once, and again when it changes. What was told is in the attempt's reports; who has ever spoken is in a file, because an agent
//! that takes over reads on behind the words of before.

use std::collections::{BTreeMap, BTreeSet};

use domain::ident::Rank;
use domain::run::mesh::RankMesh;
use domain::run::ranks::RankSet;
use domain::run::state::NodeReport;
use domain::run::unseen::{NOTES_MAX, RankUnseen, one_line};
use domain::time::TimestampMs;
use shim::{Entry, Folder, files};

use crate::launch::probe::{Record, SILENT_AFTER_MS};

/// A rank that failed sooner may have ended before it came to import torch; one that ended well in any time has not been watched.
const FAILED_UNHEARD_MS: i64 = 30_000;

/// What is known from inside the ranks of one attempt on this node.
#[derive(Debug)]
pub(super) struct Inside {
    folder: Folder,
    heard: RankSet,
    meshes: BTreeMap<u32, RankMesh>,
    unseen: BTreeMap<u32, RankUnseen>,
    /// Silence was looked for while ranks run; it is done once, and at the end.
    listened: bool,
}

impl Inside {
    /// Goes on where an agent before this one had come to.
    pub(super) fn open(folder: &Folder, told: &[Entry]) -> Self {
        let mut inside = Self {
            folder: folder.clone(),
            heard: folder.read(files::HEARD).unwrap_or_default(),
            meshes: BTreeMap::new(),
            unseen: BTreeMap::new(),
            listened: false,
        };
        for entry in told {
            match &entry.report {
                NodeReport::RankMesh(mesh) => _ = inside.meshes.insert(mesh.rank.0, mesh.clone()),
                NodeReport::RankUnseen(unseen) => _ = inside.unseen.insert(unseen.rank.0, unseen.clone()),
                _ => {}
            }
        }
        inside
    }

    /// Takes a record of a probe; what is to be reported for it.
    pub(super) fn take(&mut self, record: &Record) -> Option<NodeReport> {
        let rank = match record {
            Record::Hello(hello) => hello.rank,
            Record::Bye(bye) => bye.rank,
            Record::Mesh(mesh) => mesh.rank.0,
            Record::Error { rank } => *rank,
            _ => return None,
        };
        self.hear(Rank(rank));
        match record {
            Record::Hello(hello) => self.tell(rank, false, &hello.notes),
            Record::Bye(bye) => self.tell(rank, bye.step == Some(0), &bye.notes),
            Record::Mesh(mesh) => self.place(mesh),
            _ => None,
        }
    }

    /// Ranks that run, or ran, and have not said a word. While they run it is asked once, when each would have spoken long ago.
    pub(super) fn silent(
        &mut self,
        now_ms: TimestampMs,
        ended: bool,
        reports: impl FnOnce() -> Vec<Entry>,
    ) -> Vec<NodeReport> {
        if self.listened && !ended {
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
        self.listened = true;
        let unheard = started.into_iter().filter(|(rank, life)| {
            let lived_ms = life.ended_ms.unwrap_or(now_ms) - life.began_ms;
            !self.heard.contains(Rank(*rank))
                && (life.ended_well || lived_ms >= if ended { FAILED_UNHEARD_MS } else { SILENT_AFTER_MS })
        });
        let ranks: BTreeSet<u32> = unheard.map(|(rank, _)| rank).collect();
        let silence = |rank| RankUnseen {
            rank: Rank(rank),
            silent: true,
            ..RankUnseen::default()
        };
        ranks
            .into_iter()
            .filter_map(|rank| self.changed(silence(rank)))
            .collect()
    }

    fn hear(&mut self, rank: Rank) {
        if self.heard.contains(rank) {
            return;
        }
        self.heard.insert(rank);
        let noted = self.folder.write_json(files::HEARD, &self.heard);
        if let Err(error) = noted {
            tracing::warn!(%error, "which ranks have spoken cannot be noted; another agent may take one for silent");
        }
    }

    fn tell(&mut self, rank: u32, stepless: bool, notes: &[String]) -> Option<NodeReport> {
        self.changed(RankUnseen {
            rank: Rank(rank),
            silent: false,
            stepless,
            notes: notes.iter().take(NOTES_MAX).map(|note| one_line(note)).collect(),
        })
    }

    /// Of a rank that hides nothing nothing is said, unless it did before.
    fn changed(&mut self, unseen: RankUnseen) -> Option<NodeReport> {
        let rank = unseen.rank.0;
        let nothing = RankUnseen {
            rank: unseen.rank,
            ..RankUnseen::default()
        };
        if *self.unseen.get(&rank).unwrap_or(&nothing) == unseen {
            return None;
        }
        self.unseen.insert(rank, unseen.clone());
        Some(NodeReport::RankUnseen(unseen))
    }

    fn place(&mut self, mesh: &RankMesh) -> Option<NodeReport> {
        let mesh = mesh.clone().checked()?;
        let before = self.meshes.insert(mesh.rank.0, mesh.clone());
        (before.as_ref() != Some(&mesh)).then_some(NodeReport::RankMesh(mesh))
    }
}

/// How long the process of a rank was there that has finished no step yet.
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
            // Its probe has said so, whoever heard it.
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

    fn unseen(report: &NodeReport) -> &RankUnseen {
        let NodeReport::RankUnseen(unseen) = report else {
            panic!("{report:?}")
        };
        unseen
    }

    #[test]
    fn what_a_rank_hides_is_told_once_and_again_when_it_changes() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut inside = Inside::open(&folder, &[]);
        assert_eq!(inside.take(&hello(0, &[])), None, "nothing is hidden");
        let told = inside.take(&hello(0, &["blind\nhere"])).unwrap();
        assert_eq!(unseen(&told).notes, ["blind here"]);
        assert_eq!(inside.take(&hello(0, &["blind\nhere"])), None);
        let mut next_agent = Inside::open(&folder, &[entry(1, told)]);
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
    fn a_mesh_is_told_once_for_each_rank() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut inside = Inside::open(&folder, &[]);
        let line = r#"{"kind":"mesh","rank":3,"axes":["data","tensor"],"sizes":[2,2],"coordinates":[1,1]}"#;
        let Some(NodeReport::RankMesh(mesh)) = inside.take(&record(line)) else {
            panic!("a mesh")
        };
        assert_eq!(
            (mesh.rank, mesh.coordinates.as_slice()),
            (Rank(3), [1, 1].as_slice())
        );
        assert_eq!(inside.take(&record(line)), None);
        let wrong = r#"{"kind":"mesh","rank":3,"axes":["data"],"sizes":[2],"coordinates":[2]}"#;
        assert_eq!(inside.take(&record(wrong)), None);
    }

    #[test]
    fn silent_are_those_who_would_have_spoken() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let mut inside = Inside::open(&folder, &[]);
        inside.take(&hello(0, &[]));
        let mut of = |now_ms, ended, reports: Vec<Entry>| {
            let told = inside.silent(now_ms, ended, || reports);
            told.iter()
                .map(|report| unseen(report).rank.0)
                .collect::<Vec<_>>()
        };
        let two = || vec![start(0, 1_000), start(1, 1_000)];
        assert_eq!(of(120_999, false, two()), [0; 0]);
        assert_eq!(of(121_000, false, two()), [1]);
        assert_eq!(of(131_000, false, two()), [0; 0], "told once");
        let stepped = NodeReport::FirstStep {
            rank: Rank(1),
            step: 1,
        };
        let mut next_agent = Inside::open(&folder, &[]);
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
