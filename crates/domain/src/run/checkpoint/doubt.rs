//! Checkpoints that look whole and from which no attempt comes further.
//!
//! What a node sees of a checkpoint are names and sizes. Bytes that rotted, or a format that no longer fits the script, show only
//! when an attempt reads them. Such a checkpoint stays where it is, and the next attempt goes on from the one before it.

use crate::run::state::{Attempt, Cause, Machine, Outcome};

/// Attempts from one checkpoint that end before their first step, for whatever reason of their own, before it is doubted.
const ATTEMPTS_MAX: usize = 2;

impl Machine {
    /// Doubts what the current attempt went on from, once it has ended by this outcome, if that may be the reason.
    pub(in crate::run) fn doubt_checkpoint(&mut self) {
        let Some(path) = came_no_further(self.current()).map(|(path, _)| path.to_owned()) else {
            return;
        };
        let from_it = self
            .attempts
            .iter()
            .rev()
            .map_while(came_no_further)
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

/// An attempt that went on from a checkpoint and failed before its first step, by itself.
fn came_no_further(attempt: &Attempt) -> Option<(&String, &Outcome)> {
    let from = &attempt.placement.resumed_from.as_ref()?.path;
    let outcome = attempt.outcome.as_ref()?;
    (!attempt.made_progress() && !outcome.cause.says_nothing_of_training()).then_some((from, outcome))
}
