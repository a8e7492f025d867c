//! Which actions are possible now.

use std::collections::BTreeMap;

use super::cost::{self, RestartCost, ranks_words};
use super::value::{self, Loading};
use super::{Action, ActionKind, Hint};
use crate::bytes::DisplayBytes;
use crate::ident::{AttemptNo, NodeName};
use crate::incident::{CulpritKind, NamedCulprit};
use crate::run::knob::{current, known};
use crate::run::state::{Cause, Machine, Wish};
use crate::time::TimestampMs;

/// How long before a diagnosis a change of knobs may be its cause.
const CHANGED_BEFORE_MS: i64 = 3_600_000;
/// How many of the last checkpoints are kept when the run itself keeps all, the most that makes room.
const KEEP_LAST: [u32; 3] = [3, 2, 1];

/// What is measured now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// How the run loads its data.
    pub loading: Option<Loading>,
    /// The median norm of its gradients before the diagnosis.
    pub usual_grad_norm: Option<f64>,
    /// The largest batch of any rank.
    pub micro_batch: Option<u32>,
    /// The highest step of any rank.
    pub last_step: Option<u64>,
    /// The usual time of a step.
    pub step_s: Option<f64>,
    /// Nodes that could take the place of one of the run's.
    pub spare_nodes: u32,
}

/// A diagnosis and the run that it is about.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// What the rule suggests.
    pub hints: &'a [Hint],
    /// Whom the diagnosis blames.
    pub culprit: &'a NamedCulprit,
    /// When it began to fire.
    pub fired_ms: TimestampMs,
    /// The run as it stands.
    pub run: &'a Machine,
    /// What is measured now.
    pub facts: &'a Facts,
}

/// Actions that are possible now, in the order of the rule's hints; none of a run that is only watched.
#[must_use]
pub fn propose(situation: &Situation<'_>) -> Vec<Action> {
    let run = situation.run;
    if run.watched || run.pending.is_some() || run.unknown_attempt.is_some() {
        return Vec::new();
    }
    let mut actions = Vec::new();
    // What was changed last is the first to be doubted.
    actions.extend(situation.revert());
    for hint in situation.all_hints() {
        actions.extend(match hint {
            Hint::ExcludeNode => situation.exclude(),
            Hint::Restart => situation.restart(),
            Hint::PruneCheckpoints => situation.prune(),
            Hint::Trace => situation.trace(),
            Hint::Knob(name) => situation.knob(name),
        });
    }
    actions
}

impl Situation<'_> {
    /// Those of the rule, and what the cause of a failure suggests.
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

    fn restart_cost(&self) -> RestartCost {
        cost::of_restart(self.run, self.facts.last_step, self.facts.step_s)
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
        let wish = Wish::Revert {
            attempt: Some(id.attempt),
            live: (id.live > 0).then_some(id.live),
            reason: None,
            from_start: false,
            restart: false,
        };
        if !is_recent || !matches!(self.run.change_for(&wish), Ok(Some(_))) {
            return None;
        }
        let cost = self.restart_cost();
        let words = change.words();
        Some(Action {
            cost: cost.words,
            steps_lost: cost.steps_lost,
            ranks: cost.ranks,
            undo: format!("Apply {words} again."),
            ..Action::new(
                ActionKind::RevertKnobs,
                format!("revert_knobs:{}.{}", id.attempt, id.live),
                format!("Take {words} back"),
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
        let wish = Wish::Restart {
            without: vec![node.clone()],
        };
        // Without another node the run would only wait.
        if self.facts.spare_nodes == 0 || !matches!(self.run.change_for(&wish), Ok(Some(_))) {
            return None;
        }
        let cost = self.restart_cost();
        let spare = match self.facts.spare_nodes {
            1 => "1 other node is free".to_owned(),
            spare => format!("{spare} other nodes are free"),
        };
        Some(Action {
            cost: format!("{} {node} gets no more of this run; {spare}.", cost.words),
            steps_lost: cost.steps_lost,
            ranks: cost.ranks,
            undo: "Stop the run and resume it: a resumed run may use every node.".to_owned(),
            node: Some(node.to_string()),
            ..Action::new(
                ActionKind::ExcludeNode,
                format!("exclude_node:{node}"),
                format!("Exclude {node} and resume"),
            )
        })
    }

    fn restart(&self) -> Option<Action> {
        let is_possible = if self.run.state.is_final() {
            self.run.resume_point().is_some()
        } else {
            let wish = Wish::Restart { without: Vec::new() };
            // Of an attempt that has no nodes yet there is nothing to restart.
            !self.run.current().nodes.is_empty() && matches!(self.run.change_for(&wish), Ok(Some(_)))
        };
        if !is_possible {
            return None;
        }
        let cost = self.restart_cost();
        Some(Action {
            cost: cost.words,
            steps_lost: cost.steps_lost,
            ranks: cost.ranks,
            undo: "A restart cannot be undone; the log and the checkpoints of the attempt stay.".to_owned(),
            ..Action::new(
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
            || "as the run's own rules say".to_owned(),
            |last| format!("keeping the last {last}"),
        );
        let id = keep_last.map_or_else(
            || "prune_checkpoints".to_owned(),
            |last| format!("prune_checkpoints:keep_last={last}"),
        );
        Some(Action {
            cost: format!(
                "Removes {count} that this run wrote, {}, for good, {rule}. The run goes on.",
                DisplayBytes(bytes)
            ),
            steps_lost: Some(0),
            undo: "What is removed cannot be brought back.".to_owned(),
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
                "Records two seconds of {whom} with PyTorch's profiler. The run goes on, a little slower for that time."
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
        let proposed = value::proposed(name, now.as_deref(), self.facts)?;
        let wish = Wish::Apply {
            set: BTreeMap::from([(name.to_owned(), proposed.value.clone())]),
            auto_revert: Some(true),
            from_start: false,
            restart: false,
            try_larger_batch: None,
            follows: None,
        };
        let Ok(Some(pending)) = self.run.change_for(&wish) else {
            return None;
        };
        let cost = self.restart_cost();
        let what = known(name).map_or("", |knob| knob.what);
        let setting = format!("{name}={}", proposed.value);
        Some(Action {
            cost: format!("{} Sets {what}.", cost.words),
            steps_lost: cost.steps_lost,
            ranks: cost.ranks,
            undo: format!(
                "`lockstep run revert {}` takes it back; it is taken back by itself if the verdict is against it.",
                self.run.id
            ),
            knob: Some(name.to_owned()),
            warnings: proposed
                .warning
                .into_iter()
                .chain(pending.change.warnings)
                .collect(),
            value: Some(proposed.value),
            ..Action::new(
                ActionKind::ApplyKnob,
                format!("apply_knob:{setting}"),
                format!("Set {setting}"),
            )
        })
    }
}
