//! The storage that all nodes share, and the checkpoints of runs.

use domain::run::checkpoint::{
    Checkpoint, CheckpointOnNode, CheckpointReport, Format, Origin, RemovalOrder, SaveFailure,
};
use domain::run::state::NodeReport;
use domain::time::TimestampMs;

use super::{NodeOutput, World};
use crate::attempt::{Attempt, seconds};
use crate::reading::{Reading, Readings};
use crate::training::Pool;

/// A run's folder, on its own file system.
#[derive(Debug, Default)]
pub(super) struct Storage {
    folder: String,
    bytes_max: u64,
    saved: Vec<Saved>,
    failure: Option<SaveFailure>,
    since_ms: TimestampMs,
}

#[derive(Debug, Clone)]
struct Saved {
    step: u64,
    at_ms: TimestampMs,
    bytes: u64,
}

impl Storage {
    fn free_bytes(&self) -> u64 {
        let used: u64 = self.saved.iter().map(|saved| saved.bytes).sum();
        self.bytes_max.saturating_sub(used)
    }

    fn path(&self, saved: &Saved) -> String {
        format!("{}/step-{:06}", self.folder, saved.step)
    }

    fn checkpoint(&self, saved: &Saved) -> Checkpoint {
        let sight = CheckpointOnNode {
            mark: format!("{}-{}", self.folder, saved.step),
            complete: true,
            bytes: saved.bytes,
            own_bytes: saved.bytes,
            origin: Some(Origin::Proven),
            ..CheckpointOnNode::default()
        };
        Checkpoint {
            path: self.path(saved),
            step: Some(saved.step),
            format: Format::Dcp,
            complete: true,
            bytes: saved.bytes,
            own_bytes: saved.bytes,
            finished_ms: Some(saved.at_ms),
            changed_ms: Some(saved.at_ms),
            duration_ms: Some(2_400),
            seen: [(String::new(), sight)].into(),
            ..Checkpoint::default()
        }
    }

    fn report(&self) -> CheckpointReport {
        CheckpointReport {
            folder: Some(self.folder.clone()),
            free_bytes: Some(self.free_bytes()),
            failure: self.failure.clone(),
            proves: true,
            checkpoints: self.saved.iter().map(|saved| self.checkpoint(saved)).collect(),
            ..CheckpointReport::default()
        }
    }
}

impl World {
    /// Creates the storage of a run at its first attempt, if its scenario has one.
    pub(super) fn open_storage(&mut self, attempt: &Attempt, folder: Option<&str>, now_ms: TimestampMs) {
        if !attempt.scenario.has_storage {
            return;
        }
        let workload = attempt.scenario.workload;
        self.storage
            .entry(attempt.run.clone())
            .or_insert_with(|| Storage {
                folder: folder.map_or_else(|| format!("/checkpoints/{}", attempt.run), str::to_owned),
                bytes_max: workload.checkpoints_max * workload.checkpoint_bytes,
                since_ms: now_ms,
                ..Storage::default()
            });
    }

    /// Saves a checkpoint after the steps of a pool, if one is due.
    pub(super) fn save(&mut self, attempt: &mut Attempt, pool: &Pool, output: &mut NodeOutput) {
        let every = attempt.scenario.workload.checkpoint_every;
        let before = pool.last_step - pool.steps;
        if pool.last_step / every == before / every {
            return;
        }
        let Some(storage) = self.storage.get_mut(&attempt.run) else {
            return;
        };
        let saved = Saved {
            step: pool.last_step / every * every,
            at_ms: pool.at_ms,
            bytes: attempt.scenario.workload.checkpoint_bytes,
        };
        if storage.saved.iter().any(|known| known.step == saved.step) {
            return;
        }
        let path = storage.path(&saved);
        if storage.free_bytes() < saved.bytes {
            let error = format!("OSError: [Errno 28] No space left on device: '{path}/__0_0.distcp'");
            output.line(attempt, 0, true, format!("saving {path} failed: {error}"));
            storage.failure = Some(SaveFailure {
                at_ms: pool.at_ms,
                path,
                step: Some(saved.step),
                error,
            });
            attempt.failed_saves += 1;
        } else {
            output.line(attempt, 0, false, format!("saved {path}"));
            storage.saved.push(saved);
            storage.failure = None;
        }
        output.report(attempt, NodeReport::Checkpoints(storage.report()));
    }

    /// Removes checkpoints by an order, if the one that must remain exists.
    pub(super) fn remove(&mut self, run: &str, order: &RemovalOrder) -> Option<NodeReport> {
        let storage = self.storage.get_mut(run)?;
        let remains = storage
            .saved
            .iter()
            .any(|saved| storage.path(saved) == order.remain.path);
        if remains {
            let kept = storage
                .saved
                .iter()
                .filter(|saved| !order.remove.contains(&storage.path(saved)));
            storage.saved = kept.cloned().collect();
        }
        Some(NodeReport::Checkpoints(storage.report()))
    }

    pub(super) fn report_storage(&self, run: &str) -> Option<NodeReport> {
        let storage = self.storage.get(run)?;
        Some(NodeReport::Checkpoints(storage.report()))
    }

    pub(super) fn read_storage(&self, attempt: &Attempt, now_ms: TimestampMs, into: &mut Vec<Reading>) {
        let Some(storage) = self.storage.get(&attempt.run) else {
            return;
        };
        let mut out = Readings {
            labels: vec![("run", attempt.run.clone())],
            into,
        };
        let last_ms = storage.saved.last().map_or(storage.since_ms, |saved| saved.at_ms);
        out.push("run_checkpoint_age_seconds", seconds(now_ms - last_ms));
        out.push(
            "run_checkpoint_interval_seconds",
            attempt.scenario.workload.checkpoint_every as f64 * attempt.scenario.step_s,
        );
        out.push(
            "run_checkpoint_bytes",
            attempt.scenario.workload.checkpoint_bytes as f64,
        );
        out.push("run_checkpoint_free_bytes", storage.free_bytes() as f64);
        out.push("run_checkpoints_incomplete_total", 0.0);
    }
}
