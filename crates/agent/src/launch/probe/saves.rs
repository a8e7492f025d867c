//! Where a run saves, as its ranks' probes tell: the newest few, for whoever looks after checkpoints on the disk.

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::time::TimestampMs;

use crate::launch::probe::Record;
use crate::launch::probe::record::{Checkpoint, Phase};

/// Saves remembered: with one file a rank and eight ranks the last eight checkpoints. Beyond, the one that is oldest goes.
const SAVES_MAX: usize = 64;

/// The newest saves of a run on this node.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    by_path: BTreeMap<PathBuf, Save>,
}

/// One save; of a distributed one what all ranks here said of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Save {
    /// `dcp` or `torch_save`.
    pub(crate) format: String,
    /// The step it holds, as the probe counts.
    pub(crate) step: Option<u64>,
    /// Ranks that are still at it.
    pub(crate) ranks_saving: Vec<u32>,
    /// The first rank's begin.
    pub(crate) began_ms: TimestampMs,
    /// The last word about it.
    pub(crate) heard_ms: TimestampMs,
    /// The longest any rank took.
    pub(crate) seconds: Option<f64>,
    /// The first failure.
    pub(crate) error: Option<String>,
}

impl Saves {
    /// Takes note of a record, if it is about a save to this machine's files.
    pub(crate) fn note(&mut self, record: &Record) {
        let Record::Checkpoint(said) = record else { return };
        let path = PathBuf::from(&said.path);
        if !path.is_absolute() {
            return;
        }
        let at_ms = said.wall_ns / 1_000_000;
        let save = self.by_path.entry(path).or_default();
        if said.phase == Phase::Begin && save.ranks_saving.is_empty() && save.step != said.step {
            // The same name again, for another step.
            *save = Save::default();
        }
        save.take(said, at_ms);
        self.forget_oldest();
    }

    /// The saves, each with the file or folder it goes to.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "what finds checkpoints on the disk asks it")
    )]
    pub(crate) fn recent(&self) -> impl Iterator<Item = (&PathBuf, &Save)> {
        self.by_path.iter()
    }

    fn forget_oldest(&mut self) {
        while self.by_path.len() > SAVES_MAX {
            let oldest = self.by_path.iter().min_by_key(|(_, save)| save.heard_ms);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else {
                return;
            };
            self.by_path.remove(&path);
        }
    }
}

impl Save {
    fn take(&mut self, said: &Checkpoint, at_ms: TimestampMs) {
        self.format.clone_from(&said.format);
        self.step = said.step;
        self.heard_ms = self.heard_ms.max(at_ms);
        self.ranks_saving.retain(|rank| *rank != said.rank);
        if said.phase == Phase::Begin {
            self.ranks_saving.push(said.rank);
            if self.began_ms == 0 {
                self.began_ms = at_ms;
            }
            return;
        }
        self.seconds = match (self.seconds, said.seconds) {
            (Some(before), Some(now)) => Some(before.max(now)),
            (before, now) => before.or(now),
        };
        if self.error.is_none() {
            self.error.clone_from(&said.error);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn said(rank: u32, phase: Phase, path: &str, step: u64, at_ms: i64) -> Record {
        Record::Checkpoint(Box::new(Checkpoint {
            rank,
            phase,
            path: path.into(),
            step: Some(step),
            wall_ns: at_ms * 1_000_000,
            seconds: (phase != Phase::Begin).then_some(f64::from(rank + 1)),
            error: (phase == Phase::Failure).then(|| format!("of rank {rank}")),
            ..Checkpoint::default()
        }))
    }

    #[test]
    fn what_ranks_say_of_one_save_is_put_together() {
        let mut saves = Saves::default();
        for (rank, phase, at_ms) in [
            (0, Phase::Begin, 10),
            (1, Phase::Begin, 12),
            (1, Phase::Failure, 20),
        ] {
            saves.note(&said(rank, phase, "/c/40", 40, at_ms));
        }
        let save = saves.recent().next().unwrap().1.clone();
        assert_eq!(
            (save.ranks_saving, save.began_ms, save.heard_ms),
            (vec![0], 10, 20)
        );
        assert_eq!(save.error.as_deref(), Some("of rank 1"));
        saves.note(&said(0, Phase::End, "/c/40", 40, 30));
        let save = saves.recent().next().unwrap().1.clone();
        assert_eq!((save.ranks_saving, save.seconds), (vec![], Some(2.0)));
        saves.note(&said(0, Phase::Begin, "/c/40", 50, 60));
        let save = saves.recent().next().unwrap().1.clone();
        assert_eq!((save.began_ms, save.error), (60, None), "the same name again");
    }

    #[test]
    fn only_files_are_kept_and_only_the_newest() {
        let mut saves = Saves::default();
        saves.note(&said(0, Phase::Begin, "s3://bucket/40", 40, 1));
        saves.note(&Record::Bye {});
        assert_eq!(saves.recent().count(), 0);
        for step in 0..100 {
            saves.note(&said(
                0,
                Phase::End,
                &format!("/c/{step}"),
                step,
                i64::try_from(step).unwrap(),
            ));
        }
        let steps: Vec<_> = saves.recent().filter_map(|(_, save)| save.step).collect();
        assert_eq!((steps.len(), steps.iter().min()), (SAVES_MAX, Some(&36)));
    }
}
