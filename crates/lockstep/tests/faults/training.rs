//! The input of `train.py`, and what it records about itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::fault::{HOLD_AT, SAVE_EVERY, STEPS, SetUp};

const SCRIPT: &str = include_str!("train.py");
/// Ranks of a run.
pub(crate) const RANKS: u64 = 4;

/// More attempts than the restarts of any fault allow.
const ATTEMPTS_MAX: u64 = 10;

/// Losses by rank and step, as Python prints them: with all bits.
pub(crate) type Losses = BTreeMap<(u64, u64), String>;

/// The folder of a training.
pub(crate) struct Training {
    folder: PathBuf,
}

impl Training {
    /// Makes the folder with the script, and lets it train up to the step of the faults.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder.join("steps"))?;
        std::fs::create_dir_all(folder.join("checkpoints"))?;
        std::fs::write(folder.join("train.py"), SCRIPT)?;
        let training = Self {
            folder: folder.to_owned(),
        };
        training.allow_up_to(HOLD_AT)?;
        Ok(training)
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// Returns the specification of the run.
    pub(crate) fn spec(&self, set_up: &SetUp, interface: &str) -> Value {
        let text = |path: PathBuf| path.display().to_string();
        let mut args = vec![
            "--dir".to_owned(),
            text(self.folder.clone()),
            "--checkpoints".to_owned(),
            text(self.checkpoints()),
        ];
        args.extend(["--steps".to_owned(), STEPS.to_string()]);
        args.extend(["--save-every".to_owned(), SAVE_EVERY.to_string()]);
        args.extend(set_up.script.iter().map(|arg| (*arg).to_owned()));
        json!({
            "name": "fault",
            "script": text(self.folder.join("train.py")),
            "args": args,
            "nodes": 2,
            "nproc_per_node": RANKS / 2,
            "backend": "gloo",
            "checkpoint_dir": text(self.checkpoints()),
            "max_restarts": set_up.restarts,
            "env": { "GLOO_SOCKET_IFNAME": interface },
        })
    }

    /// Lets every rank train up to this step. The file is renamed into place, so that no rank reads it half written.
    pub(crate) fn allow_up_to(&self, step: u64) -> Result<()> {
        let beside = self.folder.join("limit.new");
        std::fs::write(&beside, step.to_string())?;
        Ok(std::fs::rename(beside, self.folder.join("limit"))?)
    }

    /// Time at which the script caused its fault, in milliseconds since the epoch.
    pub(crate) fn failed_at_ms(&self) -> Option<i64> {
        let seconds: f64 = std::fs::read_to_string(self.folder.join("fault"))
            .ok()?
            .parse()
            .ok()?;
        Some((seconds * 1_000.0) as i64)
    }

    /// Returns the newest attempt that has trained a step.
    pub(crate) fn newest_attempt(&self) -> u64 {
        let mut attempts = (1..=ATTEMPTS_MAX).rev();
        let newest = attempts.find(|attempt| !self.losses(*attempt).is_empty());
        newest.unwrap_or(1)
    }

    /// Returns true if every rank has finished a step in an attempt.
    pub(crate) fn has_finished(&self, attempt: u64, step: u64) -> bool {
        let losses = self.losses(attempt);
        (0..RANKS).all(|rank| losses.contains_key(&(rank, step)))
    }

    /// Returns what the ranks of an attempt recorded.
    pub(crate) fn losses(&self, attempt: u64) -> Losses {
        let mut losses = Losses::new();
        for rank in 0..RANKS {
            let file = self.folder.join(format!("steps/{attempt}.{rank}"));
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let notes = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            losses.extend(notes.filter_map(|note| {
                Some(((rank, note["step"].as_u64()?), note["loss"].as_str()?.to_owned()))
            }));
        }
        losses
    }

    /// Truncates the largest shard of a checkpoint to half its length.
    pub(crate) fn tear(&self, step: u64) -> Result<()> {
        let folder = self.checkpoints().join(format!("step-{step}"));
        let shards = std::fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        let shards = shards.flatten().map(|entry| entry.path());
        let shards = shards.filter(|path| path.extension().is_some_and(|end| end == "distcp"));
        let largest = shards.max_by_key(length).context("a checkpoint has shards")?;
        let file = std::fs::File::options().write(true).open(&largest)?;
        Ok(file.set_len(length(&largest) / 2)?)
    }
}
