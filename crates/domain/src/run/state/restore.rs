//! What happens to a run when the collector's state is restored from a backup: attempts that began after the backup are not known any more,
//! and may still run.
//!
//! ```text
//! Restored           attempt numbers that may have been used since are skipped; an attempt that had not begun to run is replaced by
//!                    one with a new number, so that nothing that nodes hold under the old number is touched
//! UnknownAttempt     a node holds an attempt that is not known: no attempt of the run begins automatically any more, and one that has
//!                    not begun ends. A person decides: stop what runs, or let it end, then resume the run.
//! ```
//! An attempt that runs according to the backup continues: its nodes know it, too.

use crate::ident::{AttemptNo, NodeName};
use crate::run::state::attempt::Placement;
use crate::run::state::follow_up::AttemptStart;
use crate::run::state::judge::stopped;
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::NodePhase;
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// Attempt numbers that are skipped after a restore: far more than a run uses between two backups. A node that has not connected yet may
/// hold any of them, and keeps folders under these numbers for a day.
pub const SKIPPED_ATTEMPTS: u32 = 1_000;
/// The highest attempt number that is accepted from a node. No run reaches it; a node that reports a higher one is wrong.
pub const ATTEMPT_MAX: AttemptNo = AttemptNo(1_000_000);

/// What an attempt that a node holds means for its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldAttempt {
    /// The current attempt, which continues.
    Current,
    /// An attempt that has ended.
    Over,
    /// An attempt that the collector does not know.
    Unknown,
}

impl Machine {
    /// Returns what it means that a node holds an attempt of this run.
    #[must_use]
    pub fn held_attempt(&self, node: &NodeName, attempt: AttemptNo) -> HeldAttempt {
        let Some(known) = self.attempts.iter().find(|known| known.no == attempt) else {
            return HeldAttempt::Unknown;
        };
        let is_on_node = known.nodes.iter().any(|task| task.node == *node);
        match self.is_live(attempt) {
            _ if known.left_alone => HeldAttempt::Unknown,
            true if is_on_node || self.watched => HeldAttempt::Current,
            // It was placed on other nodes, or not at all: the node has it from a newer state than this one.
            true => HeldAttempt::Unknown,
            false => HeldAttempt::Over,
        }
    }

    /// Handles a node that holds an attempt which is not known.
    pub(super) fn unknown_attempt(&mut self, node: &NodeName, attempt: AttemptNo, now_ms: TimestampMs) {
        self.skip_attempts_to(attempt);
        if self.state.is_final() {
            return;
        }
        self.unknown_attempt = Some(attempt);
        self.pending = None;
        let outcome = outcome(
            Some(node),
            format!(
                "node {node} holds attempt {attempt} of this run, which is not known here: it began after the backup that was restored. \
                 It is left alone; stop it with `lockstep run stop {}`, or let it end, then resume the run",
                self.id
            ),
        );
        if self.restart_at_ms.take().is_some() {
            self.finish(RunState::Failed, now_ms);
            self.outcome = Some(outcome);
        } else if self.current().nodes.is_empty() && self.current().ended_ms.is_none() {
            if self.current().no == attempt {
                self.current_mut().no = self.next_attempt();
            }
            self.end_attempt(outcome.clone(), now_ms);
            self.finish(RunState::Failed, now_ms);
            self.outcome = Some(outcome);
        }
    }

    /// Makes the number of the next attempt higher than this one.
    fn skip_attempts_to(&mut self, attempt: AttemptNo) {
        self.attempts_used = self.attempts_used.max(Some(attempt));
    }

    /// Returns the number of the next attempt: one that was never used, as far as is known.
    #[must_use]
    pub fn next_attempt(&self) -> AttemptNo {
        let last = self.attempts.last().map(|attempt| attempt.no);
        let used = last.max(self.attempts_used).map_or(0, |used| used.0);
        AttemptNo(used.saturating_add(1))
    }
}

impl Transition<'_> {
    /// Handles a restore from a backup, once per restore.
    pub(super) fn restored(&mut self, restored_ms: TimestampMs) {
        let run = &mut *self.run;
        if run.restored_ms >= Some(restored_ms) {
            return;
        }
        run.restored_ms = Some(restored_ms);
        run.skip_attempts_to(AttemptNo(run.current().no.0.saturating_add(SKIPPED_ATTEMPTS)));
        let current = run.current();
        let has_begun = current.nodes.iter().any(|task| task.phase >= NodePhase::Running);
        if run.state.is_final() || run.restart_at_ms.is_some() || current.ended_ms.is_some() || has_begun {
            return;
        }
        if current.nodes.is_empty() {
            run.current_mut().no = run.next_attempt();
            return self.find_nodes();
        }
        let start = AttemptStart {
            cause: "a backup was restored".into(),
            requested_by_user: current.requested_by_user,
            placement: Placement {
                placed_ms: None,
                ..current.placement.clone()
            },
        };
        let change = run.current_mut().knobs.change.take();
        run.current_mut().left_alone = true;
        let message = "a backup was restored that was made before this attempt had begun to run".to_owned();
        run.end_attempt(outcome(None, message), self.now_ms);
        if run.desired != DesiredState::Run {
            run.finish(RunState::Stopped, self.now_ms);
            run.outcome = Some(stopped());
            return;
        }
        self.begin_attempt(start);
        self.run.current_mut().knobs.change = change;
    }
}

fn outcome(node: Option<&NodeName>, message: String) -> Outcome {
    Outcome {
        node: node.map(ToString::to_string),
        ..Outcome::new(Cause::UnknownAttempt, message)
    }
}

#[cfg(test)]
mod tests;
