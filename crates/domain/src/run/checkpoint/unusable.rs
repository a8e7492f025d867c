//! Checkpoints that look complete but that no attempt can use.
//!
//! A node only sees names and sizes of a checkpoint. Corrupted bytes, or a format that no longer fits the script, show only when an attempt
//! reads it. Such a checkpoint stays where it is, and the next attempt resumes from the one before it.

use crate::run::state::{Attempt, Cause, Machine, Outcome};

/// Number of attempts from one checkpoint that may end before their first step, for reasons of their own, before the checkpoint counts as
/// unusable.
const ATTEMPTS_MAX: usize = 2;

impl Machine {
    /// Marks the checkpoint that the ended attempt resumed from as unusable, if it may be the reason for its outcome.
    pub(in crate::run) fn mark_checkpoint_unusable(&mut self) {
        let Some(path) = failed_before_first_step(self.current()).map(|(path, _)| path.to_owned()) else {
            return;
        };
        let from_it = self
            .attempts
            .iter()
            .rev()
            .map_while(failed_before_first_step)
            .take_while(|(from, _)| **from == path);
        let outcomes: Vec<&Outcome> = from_it.map(|(_, outcome)| outcome).collect();
        let says_so = outcomes
            .first()
            .is_some_and(|last| last.cause == Cause::CheckpointUnreadable);
        if !says_so && outcomes.len() < ATTEMPTS_MAX {
            return;
        }
        let doubt = match outcomes.len() {
            1 => format!("attempt {} could not read it", self.current().no.0),
            n => format!("{n} attempts from it ended before their first step"),
        };
        if let Some(checkpoint) = self.checkpoints.iter_mut().find(|one| one.path == path) {
            checkpoint.doubt = Some(doubt);
        }
    }
}

/// Returns the checkpoint and the outcome of an attempt that resumed and failed before its first step, for a reason of its own.
fn failed_before_first_step(attempt: &Attempt) -> Option<(&String, &Outcome)> {
    let from = &attempt.placement.resumed_from.as_ref()?.path;
    let outcome = attempt.outcome.as_ref()?;
    (!attempt.made_progress() && !outcome.cause.says_nothing_of_training()).then_some((from, outcome))
}
