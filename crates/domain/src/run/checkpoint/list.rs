//! A run's checkpoints as the API shows them.

use std::collections::BTreeSet;

use crate::api::checkpoints::{CheckpointList, CheckpointView};
use crate::run::checkpoint::Checkpoint;
use crate::run::state::Machine;

impl Machine {
    /// Returns the saved checkpoints, newest step first. `last_step` is the last step of the run, as far as it is known.
    #[must_use]
    pub fn checkpoint_list(&self, last_step: Option<u64>) -> CheckpointList {
        let in_use = self.checkpoints_in_use();
        let best = best(&self.checkpoints);
        let view = |checkpoint: &Checkpoint| {
            let mut view = checkpoint.view();
            view.pinned = self.storage.pinned.contains(&checkpoint.path);
            view.in_use = in_use.contains(&checkpoint.path);
            view.best = best == Some(checkpoint.path.as_str());
            view.age_steps = last_step
                .zip(checkpoint.step)
                .map(|(last, step)| last.saturating_sub(step));
            view
        };
        let folders = self.storage.nodes.values();
        CheckpointList {
            folder: folders
                .clone()
                .find_map(|node| node.folder.clone())
                .or_else(|| self.spec.checkpoint_dir.clone()),
            free_bytes: self.storage.free_bytes(),
            latest: folders.clone().find_map(|node| node.latest.clone()),
            problem: self
                .storage
                .nodes
                .iter()
                .find_map(|(node, seen)| seen.problem.as_ref().map(|said| format!("{node}: {said}"))),
            checkpoints: self.checkpoints.iter().map(view).collect(),
            retention: self.prune_answer(None),
        }
    }

    /// Returns the checkpoints that the run resumed from or is about to resume from. They must not be removed meanwhile.
    #[must_use]
    pub fn checkpoints_in_use(&self) -> BTreeSet<String> {
        if self.state.is_final() {
            return BTreeSet::new();
        }
        let from = self.current().placement.resumed_from.as_ref();
        from.map(|from| from.path.clone()).into_iter().collect()
    }
}

fn best(checkpoints: &[Checkpoint]) -> Option<&str> {
    let scored = checkpoints
        .iter()
        .filter(|one| one.complete && !one.foreign && one.val_loss.is_some());
    let best = scored.min_by(|a, b| {
        a.val_loss
            .partial_cmp(&b.val_loss)
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    best.map(|checkpoint| checkpoint.path.as_str())
}

impl Checkpoint {
    fn doubted_because(&self) -> Option<String> {
        let diverged = |step| format!("saved after step {step}, when the loss had begun to diverge");
        self.doubt.clone().or_else(|| self.diverged_after.map(diverged))
    }

    fn view(&self) -> CheckpointView {
        CheckpointView {
            path: self.path.clone(),
            step: self.step,
            format: self.format.as_str().into(),
            content: if self.model_only { "model" } else { "full" }.into(),
            complete: self.complete && !self.uncertain && !self.is_doubted(),
            writing: self.writing,
            foreign: self.foreign,
            problem: self.doubted_because().or_else(|| self.problem.clone()),
            bytes: self.bytes,
            own_bytes: self.own_bytes,
            finished_ms: self.finished_ms,
            duration_ms: self.duration_ms,
            nodes: self.seen.keys().cloned().collect(),
            not_removed: self.not_removed(),
            ..CheckpointView::default()
        }
    }
}
