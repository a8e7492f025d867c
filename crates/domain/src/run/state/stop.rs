//! A stop that waits for a good moment: a step that all ranks reach, or a checkpoint.
//!
//! ```text
//!  StopRequested ──▶ plan: step S    ──▶ StopAfter to each node ──▶ ranks end by themselves at S ──▶ Stopped
//!                │                    a rank fails before S, a node refuses, or grace ends after the first reached S ──┐
//!                └▶ plan: checkpoint ──▶ the next complete one is seen, or a rank fails ────────────────────────────────┴▶ ordinary stop
//! ```
//! The nodes agree on S without a collective: the collector chooses it far enough ahead that every node receives it in time, and no rank
//! waits for another. While a plan waits, the run continues, and no failure counts as a failure any more, because the end was requested.

mod plan;

pub use plan::{StopPlan, StopPoint};

use crate::ident::NodeName;
use crate::run::checkpoint::{Checkpoint, resume_point};
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::NodePhase;
use crate::run::state::protocol::{NodeCommand, NodeReport};
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// Minimum number of steps ahead: one step may be in progress when the command arrives.
const STEPS_AHEAD_MIN: u64 = 2;
/// Minimum time ahead, in seconds. Under load, a command takes one second to reach a node, and ranks check for it four times per second.
const AHEAD_S: f64 = 3.0;
/// Maximum age of the highest step that the collector has seen, in seconds: both pooling and sending of steps take about one second.
const REPORTED_LATE_S: f64 = 3.0;

/// Returns a step that no rank has reached yet and that every node receives in time, from the highest reported step and the shortest
/// duration of a step.
#[must_use]
pub fn agreed_step(highest: u64, step_s: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a count"
    )]
    let ahead = ((AHEAD_S + REPORTED_LATE_S) / step_s.max(1e-6)).ceil() as u64;
    highest.saturating_add(ahead.max(STEPS_AHEAD_MIN))
}

// === what happens ===

impl Transition<'_> {
    /// Stops the run at once, or plans the stop if there is a stop point to wait for.
    pub(super) fn stop_requested(&mut self, grace_ms: u64, after: Option<StopPoint>) {
        let run = &mut *self.run;
        match after {
            Some(point) if run.trains() && !run.is_stopping() => self.plan_stop(point, grace_ms),
            _ => run.desired = run.desired.or_stop(grace_ms),
        }
    }

    /// An agreed step does not change, because ranks may have read it already.
    pub(super) fn plan_stop(&mut self, point: StopPoint, grace_ms: u64) {
        let known = self.run.stop_plan().map(|plan| plan.point);
        if matches!(known, Some(StopPoint::Step(_))) {
            return;
        }
        let mut plan = StopPlan {
            attempt: self.run.current().no,
            point,
            grace_ms,
            reached_ms: None,
            known: Vec::new(),
            orders: Vec::new(),
        };
        match point {
            StopPoint::Checkpoint => plan.known.clone_from(&self.run.checkpoints),
            StopPoint::Step(step) => {
                let nodes: Vec<NodeName> = self.run.busy_nodes().cloned().collect();
                let command = |node| self.command(node, NodeCommand::StopAfter { step, grace_ms });
                plan.orders = nodes.iter().map(command).collect();
            }
        }
        self.run.stop = Some(plan);
    }
}

impl Machine {
    /// Returns the stop that waits, or waited, in the current attempt.
    pub(crate) fn stop_plan(&self) -> Option<&StopPlan> {
        let no = self.current().no;
        self.stop.as_ref().filter(|plan| plan.attempt == no)
    }

    fn stop_plan_mut(&mut self) -> Option<&mut StopPlan> {
        let no = self.current().no;
        self.stop.as_mut().filter(|plan| plan.attempt == no)
    }

    /// Returns true if ranks run that can reach a step or save a checkpoint.
    #[must_use]
    pub fn trains(&self) -> bool {
        self.is_live(self.current().no) && self.current().ranks().any(|(_, rank)| rank.pid.is_some())
    }

    /// Applies a report to the plan. Returns true if the report concerns only the plan.
    pub(super) fn stop_reported(&mut self, report: &NodeReport, now_ms: TimestampMs) -> bool {
        let Some(plan) = self.stop_plan_mut() else {
            return false;
        };
        match (report, plan.point) {
            (NodeReport::Refused { command, .. }, _) => {
                let ours = plan.orders.iter().any(|order| u64::from(*order) == *command);
                if ours {
                    self.stop_at_once();
                }
                return ours;
            }
            (NodeReport::StopStep { .. }, _) => _ = plan.reached_ms.get_or_insert(now_ms),
            // The report that the rank reached the step was lost.
            (NodeReport::RankExited(exit), StopPoint::Step(step))
                if exit.last_step.is_some_and(|last| last >= step) =>
            {
                plan.reached_ms.get_or_insert(now_ms);
            }
            _ => {}
        }
        false
    }

    /// Handles a failure. Returns true if it does not count as a failure, because the run is to end anyway.
    pub(super) fn handle_failure_during_stop(&mut self) -> bool {
        let Some(plan) = self.stop_plan() else {
            return false;
        };
        // After the stop step, ranks may end in any way. If a rank fails before it, the others would wait for a rank that never reaches the
        // step.
        if plan.reached_ms.is_none() {
            self.stop_at_once();
        }
        true
    }

    /// Turns a plan into an ordinary stop when its moment has come.
    pub(super) fn pursue_stop(&mut self, now_ms: TimestampMs) {
        let all_ended = self.busy_nodes().next().is_none();
        let Some(plan) = self.stop_plan().filter(|_| self.desired == DesiredState::Run) else {
            return;
        };
        let grace_ms = i64::try_from(plan.grace_ms).unwrap_or(i64::MAX);
        let due = match plan.point {
            StopPoint::Step(_) => plan
                .reached_ms
                .is_some_and(|at| all_ended || now_ms - at > grace_ms),
            StopPoint::Checkpoint => self.checkpoints.iter().any(|found| plan.waited_for(found)),
        };
        if due {
            if let Some(plan) = self.stop_plan_mut() {
                plan.reached_ms.get_or_insert(now_ms);
            }
            self.stop_at_once();
        }
    }

    fn stop_at_once(&mut self) {
        if let Some(plan) = self.stop_plan() {
            self.desired = self.desired.or_stop(plan.grace_ms);
        }
    }

    /// Returns true if ranks have reached the stop step and are ending.
    pub(super) fn stop_is_reached(&self) -> bool {
        self.stop_plan().is_some_and(|plan| plan.reached_ms.is_some())
    }

    /// Adds where in the training the run was stopped to the outcome of a stopped run.
    pub(super) fn with_stop_point(&self, mut outcome: Outcome) -> Outcome {
        if outcome.cause == Cause::Stopped
            && let Some(when) = self.when_stopped()
        {
            outcome.message = format!("stopped as asked, {when}").into();
        }
        outcome
    }

    /// Returns where in its training the run was stopped, if a stop point was planned.
    pub(super) fn when_stopped(&self) -> Option<String> {
        let plan = self.stop_plan()?;
        let is_reached = plan.reached_ms.is_some();
        Some(match plan.point {
            StopPoint::Step(step) if is_reached => format!("after step {step}"),
            StopPoint::Step(step) => format!("before step {step}"),
            StopPoint::Checkpoint if is_reached => "after a complete checkpoint".into(),
            StopPoint::Checkpoint => "before the next checkpoint was complete".into(),
        })
    }
}

impl StopPlan {
    /// Returns true if the checkpoint was not complete when the stop was requested.
    fn waited_for(&self, found: &Checkpoint) -> bool {
        let usable = found.complete && !found.model_only;
        let before = self
            .known
            .iter()
            .find(|known| known.path == found.path && known.complete);
        // A file that is overwritten under the same name is identified by its step, or by its time if the step is not known.
        usable
            && before.is_none_or(|known| {
                found.step > known.step || (found.step.is_none() && found.finished_ms > known.finished_ms)
            })
    }
}

// === how it looks ===

impl Machine {
    /// Returns the number of steps that a resumed run would repeat if this run ended now: the steps since the furthest complete checkpoint,
    /// or all steps if there is none. `None` if the step of that checkpoint is not known.
    #[must_use]
    pub fn steps_since_checkpoint(&self, last_step: Option<u64>) -> Option<u64> {
        let last_step = last_step?;
        match resume_point(&self.checkpoints) {
            Some(at) => Some(last_step.saturating_sub(at.step?)),
            None => Some(last_step),
        }
    }

    /// Returns why a stop cannot wait for a stop point now, as text; `None` if it can.
    #[must_use]
    pub fn cannot_wait(&self) -> Option<String> {
        let away = self
            .current()
            .nodes
            .iter()
            .find(|task| task.phase != NodePhase::Ended && task.away_since_ms.is_some());
        if self.is_stopping() {
            Some("it is stopping already".into())
        } else if let Some(task) = away {
            Some(format!("node {} cannot be reached now", task.node))
        } else if !self.trains() || self.state == RunState::Lost {
            Some("none of its ranks is running".into())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
