//! Computes which actions are possible now.

use super::cost::{self, ranks_words};
use super::preview::UNDO_EXCLUSION;
use super::value::{self, Loading};
use super::{Action, ActionKind, Hint};
use crate::bytes::DisplayBytes;
use crate::ident::{AttemptNo, NodeName};
use crate::incident::{CulpritKind, NamedCulprit};
use crate::run::knob::{current, known};
use crate::run::state::{Cause, KnobRequest, Machine};
use crate::time::TimestampMs;

/// Maximum time between a change of knobs and a diagnosis for which the change may be the cause.
const CHANGED_BEFORE_MS: i64 = 3_600_000;
/// Numbers of newest checkpoints to keep, if the run itself keeps all. The largest number that frees space is chosen.
const KEEP_LAST: [u32; 3] = [3, 2, 1];

/// Measurements at this time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements {
    /// How the run loads its data.
    pub loading: Option<Loading>,
    /// Median gradient norm of the run before the diagnosis.
    pub usual_grad_norm: Option<f64>,
    /// Largest batch of any rank.
    pub micro_batch: Option<u32>,
    /// Highest step of any rank.
    pub last_step: Option<u64>,
    /// Usual duration of a step in seconds.
    pub step_s: Option<f64>,
    /// Number of nodes that could replace one of the run's nodes.
    pub spare_nodes: u32,
}

/// A diagnosis and its run.
#[derive(Debug, Clone, Copy)]
pub struct ActionContext<'a> {
    /// Actions that the rule suggests.
    pub hints: &'a [Hint],
    /// Culprit of the diagnosis.
    pub culprit: &'a NamedCulprit,
    /// When the diagnosis began to fire.
    pub fired_ms: TimestampMs,
    /// State of the run.
    pub run: &'a Machine,
    /// Measurements at this time.
    pub measurements: &'a Measurements,
}

/// Returns the actions that are possible now, in the order of the rule's hints. Returns none for a run that is only watched.
#[must_use]
pub fn propose(context: &ActionContext<'_>) -> Vec<Action> {
    let run = context.run;
    if run.watched || run.pending.is_some() || run.unknown_attempt.is_some() {
        return Vec::new();
    }
    let mut actions = Vec::new();
    // The last change is the most likely cause.
    actions.extend(context.revert());
    for hint in context.all_hints() {
        actions.extend(match hint {
            Hint::ExcludeNode => context.exclude(),
            Hint::Restart => context.restart(),
            Hint::PruneCheckpoints => context.prune(),
            Hint::Trace => context.trace(),
            Hint::Knob(name) => context.knob(name),
        });
    }
    actions
}

impl ActionContext<'_> {
    /// Returns the hints of the rule, and those for the cause of a failure.
    fn all_hints(&self) -> Vec<Hint> {
        let mut hints = self.hints.to_vec();
        let cause = self.run.outcome.as_ref().map(|outcome| &outcome.cause);
        if self.run.state.is_final() && cause == Some(&Cause::OutOfMemory) {
            let saves = ["activation_checkpointing", "micro_batch"].map(Hint::Knob);
            hints.splice(0..0, saves);
        }
        let mut seen = Vec::new();
        hints.retain(|hint| {
            let is_new = !seen.contains(hint);
            seen.push(*hint);
            is_new
        });
        hints
    }

    /// Returns an action that restarts the run, and what that costs.
    fn restarting(&self, kind: ActionKind, id: String, title: String) -> Action {
        let cost = cost::of_restart(self.run, self.measurements, false);
        Action {
            cost: cost.words,
            steps_lost: cost.steps_lost,
            ranks: cost.ranks,
            ..Action::new(kind, id, title)
        }
    }

    fn attempt_began_ms(&self, no: AttemptNo) -> Option<TimestampMs> {
        let attempt = self.run.attempts.iter().find(|attempt| attempt.no == no)?;
        Some(attempt.started_ms)
    }

    fn revert(&self) -> Option<Action> {
        let (id, change) = self.run.last_change()?;
        let live = self
            .run
            .attempts
            .iter()
            .find(|attempt| attempt.no == id.attempt)?
            .knobs
            .live
            .iter();
        let changed_ms = match id.live {
            0 => self.attempt_began_ms(id.attempt)?,
            no => live.into_iter().find(|live| live.no == no)?.asked_ms,
        };
        let is_recent = changed_ms <= self.fired_ms && self.fired_ms - changed_ms <= CHANGED_BEFORE_MS;
        let request = KnobRequest::revert(id, None);
        if !is_recent || !matches!(self.run.change_for(&request), Ok(Some(_))) {
            return None;
        }
        let words = change.words();
        Some(Action {
            undo: format!("Apply {words} again."),
            ..self.restarting(
                ActionKind::RevertKnobs,
                format!("revert_knobs:{}.{}", id.attempt, id.live),
                format!("Revert {words}"),
            )
        })
    }

    fn exclude(&self) -> Option<Action> {
        let node = match self.culprit.kind {
            CulpritKind::Unknown | CulpritKind::Volume => return None,
            CulpritKind::Rank | CulpritKind::Node | CulpritKind::Gpu | CulpritKind::Link => {
                NodeName::new(self.culprit.node.clone()?).ok()?
            }
        };
        let request = KnobRequest::Restart {
            without: vec![node.clone()],
        };
        // Without another node the run would only wait.
        if self.measurements.spare_nodes == 0 || !matches!(self.run.change_for(&request), Ok(Some(_))) {
            return None;
        }
        let left = cost::after_exclusion(self.run, node.as_str(), self.measurements.spare_nodes);
        let (id, title) = (
            format!("exclude_node:{node}"),
            format!("Exclude {node} and resume"),
        );
        let restart = self.restarting(ActionKind::ExcludeNode, id, title);
        Some(Action {
            cost: format!("{} {left}", restart.cost),
            undo: UNDO_EXCLUSION.to_owned(),
            node: Some(node.to_string()),
            ..restart
        })
    }

    fn restart(&self) -> Option<Action> {
        let is_possible = if self.run.state.is_final() {
            self.run.resume_point().is_some()
        } else {
            let request = KnobRequest::Restart { without: Vec::new() };
            // An attempt without nodes cannot be restarted.
            !self.run.current().nodes.is_empty() && matches!(self.run.change_for(&request), Ok(Some(_)))
        };
        if !is_possible {
            return None;
        }
        Some(Action {
            undo: "A restart cannot be undone; log and checkpoints of the attempt are kept.".to_owned(),
            ..self.restarting(
                ActionKind::Restart,
                "restart".to_owned(),
                "Restart from the last checkpoint".to_owned(),
            )
        })
    }

    fn prune(&self) -> Option<Action> {
        let by_rule = std::iter::once(None);
        let choices = by_rule.chain(KEEP_LAST.into_iter().map(Some));
        let (keep_last, answer) = choices
            .map(|keep_last| (keep_last, self.run.prune_answer(keep_last)))
            .find(|(_, answer)| !answer.removed.is_empty())?;
        let bytes: u64 = answer.removed.iter().map(|line| line.own_bytes).sum();
        let count = match answer.removed.len() {
            1 => "1 checkpoint".to_owned(),
            count => format!("{count} checkpoints"),
        };
        let rule = keep_last.map_or_else(
            || "by the run's own retention rules".to_owned(),
            |last| format!("keeping the last {last}"),
        );
        let id = keep_last.map_or_else(
            || "prune_checkpoints".to_owned(),
            |last| format!("prune_checkpoints:keep_last={last}"),
        );
        Some(Action {
            cost: format!(
                "Permanently removes {count} that this run wrote, {}, {rule}. The run continues.",
                DisplayBytes(bytes)
            ),
            steps_lost: Some(0),
            undo: "Removed checkpoints cannot be restored.".to_owned(),
            keep_last,
            removes: answer.removed,
            ..Action::new(ActionKind::PruneCheckpoints, id, format!("Remove {count}"))
        })
    }

    fn trace(&self) -> Option<Action> {
        if !self.run.spec.kineto || !self.run.trains() || self.run.is_stopping() {
            return None;
        }
        let rank = self.culprit.rank;
        let (whom, ranks) = match rank {
            Some(rank) => (format!("rank {rank}"), 1),
            None => {
                let ranks = u32::try_from(self.run.current().ranks().count()).unwrap_or(u32::MAX);
                (ranks_words(ranks), ranks)
            }
        };
        Some(Action {
            cost: format!(
                "Records two seconds of {whom} with PyTorch's profiler. The run continues, slightly slower during that time."
            ),
            steps_lost: Some(0),
            ranks,
            undo: "There is nothing to undo.".to_owned(),
            rank,
            ..Action::new(
                ActionKind::Trace,
                rank.map_or_else(|| "trace".to_owned(), |rank| format!("trace:rank={rank}")),
                format!("Record a trace of {whom}"),
            )
        })
    }

    fn knob(&self, name: &'static str) -> Option<Action> {
        let now = current(&self.run.spec, &self.run.current().knobs.values, name);
        let proposed = value::proposed(name, now.as_deref(), self.measurements)?;
        let request = KnobRequest::set(name, proposed.value.clone(), None);
        let Ok(Some(pending)) = self.run.change_for(&request) else {
            return None;
        };
        let what = known(name).map_or("", |knob| knob.what);
        let setting = format!("{name}={}", proposed.value);
        let (id, title) = (format!("apply_knob:{setting}"), format!("Set {setting}"));
        let restart = self.restarting(ActionKind::ApplyKnob, id, title);
        Some(Action {
            cost: format!("{} Sets {what}.", restart.cost),
            undo: format!(
                "`lockstep run revert {}` reverts it; it is reverted automatically if the verdict is worse.",
                self.run.id
            ),
            knob: Some(name.to_owned()),
            warnings: proposed
                .warning
                .into_iter()
                .chain(pending.change.warnings)
                .collect(),
            value: Some(proposed.value),
            ..restart
        })
    }
}
