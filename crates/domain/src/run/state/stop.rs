//! A stop that waits for a good moment: a step that all ranks come to, or a checkpoint.
//!
//! ```text
//!  StopRequested ──▶ plan: step S    ──▶ StopAfter to each node ──▶ ranks end by themselves at S ──▶ Stopped
//!                │                          a rank fails before S, a node refuses, or grace after the first rank came to S ──┐
//!                └▶ plan: checkpoint ──▶ the next complete one is seen, or a rank fails ──────────────────────────────────────┴▶ ordinary stop
//! ```
//! S is agreed without a collective: the collector takes it far enough ahead that every node knows it in time, and no rank waits
//! for another. While a plan waits the run goes on, and nothing that fails is a failure any more: the end was wished.

mod plan;

pub use plan::{StopPlan, StopPoint};

use crate::ident::NodeName;
use crate::run::checkpoint::{Checkpoint, resume_point};
use crate::run::state::machine::{Machine, Wished};
use crate::run::state::node_task::NodePhase;
use crate::run::state::protocol::{NodeCommand, NodeReport};
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// Steps ahead at least: one may be under way when the order comes.
const STEPS_AHEAD_MIN: u64 = 2;
/// How far ahead at least, in time: an order takes a second to reach a node under load, ranks look four times a second.
const AHEAD_S: f64 = 3.0;
/// How old the highest step that the collector knows may be: steps are pooled and sent about once a second each.
const REPORTED_LATE_S: f64 = 3.0;

/// A step that no rank has reached yet and every node will hear of in time; from the highest that was reported and the time of a
/// step at its fastest.
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
    /// A person wants it to stop: now, or at a good moment when there is one to wait for.
    pub(super) fn stop_requested(&mut self, grace_ms: u64, after: Option<StopPoint>) {
        let run = &mut *self.run;
        match after {
            Some(point) if run.trains() && !run.is_stopping() => self.plan_stop(point, grace_ms),
            _ => run.wished = run.wished.or_stop(grace_ms),
        }
    }

    /// A step once agreed stays: ranks may have read it.
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
    /// The stop that waits, or waited, in the current attempt.
    pub(crate) fn stop_plan(&self) -> Option<&StopPlan> {
        let no = self.current().no;
        self.stop.as_ref().filter(|plan| plan.attempt == no)
    }

    fn stop_plan_mut(&mut self) -> Option<&mut StopPlan> {
        let no = self.current().no;
        self.stop.as_mut().filter(|plan| plan.attempt == no)
    }

    /// Whether ranks run that can come to a step or save.
    #[must_use]
    pub fn trains(&self) -> bool {
        self.is_live(self.current().no) && self.current().ranks().any(|(_, rank)| rank.pid.is_some())
    }

    /// What a report means to a plan. True when it was about the plan alone.
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
            // Its word that it has come there was lost.
            (NodeReport::RankExited(exit), StopPoint::Step(step))
                if exit.last_step.is_some_and(|last| last >= step) =>
            {
                plan.reached_ms.get_or_insert(now_ms);
            }
            _ => {}
        }
        false
    }

    /// Something failed. True when that is no failure, because the run is to end anyway.
    pub(super) fn stop_excuses_failure(&mut self) -> bool {
        let Some(plan) = self.stop_plan() else {
            return false;
        };
        // Behind the step ranks end as they like; before it the others would wait for one that will not come.
        if plan.reached_ms.is_none() {
            self.stop_at_once();
        }
        true
    }

    /// Makes an ordinary stop of a plan whose time has come.
    pub(super) fn pursue_stop(&mut self, now_ms: TimestampMs) {
        let all_ended = self.busy_nodes().next().is_none();
        let Some(plan) = self.stop_plan().filter(|_| self.wished == Wished::Run) else {
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
            self.wished = self.wished.or_stop(plan.grace_ms);
        }
    }

    /// Whether ranks have come to the step and are ending.
    pub(super) fn stop_is_reached(&self) -> bool {
        self.stop_plan().is_some_and(|plan| plan.reached_ms.is_some())
    }

    /// The outcome of a run that was stopped, with what became of the plan.
    pub(super) fn with_stop_told(&self, mut outcome: Outcome) -> Outcome {
        if outcome.cause == Cause::Stopped
            && let Some(when) = self.when_stopped()
        {
            outcome.message = format!("stopped as asked, {when}").into();
        }
        outcome
    }

    /// Where in its training the run was stopped, if a point was planned.
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
    /// Whether a checkpoint is one that was not complete when the stop was asked for.
    fn waited_for(&self, found: &Checkpoint) -> bool {
        let usable = found.complete && !found.model_only;
        let before = self
            .known
            .iter()
            .find(|known| known.path == found.path && known.complete);
        // A file that is written again and again under one name is told by what it holds.
        usable
            && before.is_none_or(|known| {
                found.step > known.step || (found.step.is_none() && found.finished_ms > known.finished_ms)
            })
    }
}

// === how it looks ===

impl Machine {
    /// What a resumed run would have to repeat if this one ended now: the steps since the furthest complete checkpoint, all of them
    /// without one. `None` where it is not known at which step a checkpoint was made.
    #[must_use]
    pub fn steps_since_checkpoint(&self, last_step: Option<u64>) -> Option<u64> {
        let last_step = last_step?;
        match resume_point(&self.checkpoints) {
            Some(at) => Some(last_step.saturating_sub(at.step?)),
            None => Some(last_step),
        }
    }

    /// Why a stop cannot wait now, in words; `None` when it can.
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
