//! One step of a run: takes an event and returns the actions that follow.
//!
//! [`report`](super::report) handles reports of nodes, [`timeouts`](super::timeouts) handles timeouts, and [`follow_up`](super::follow_up)
//! decides what follows from the new situation.

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::ResumedFrom;
use crate::run::checkpoint::{Checkpoint, Storage, resume_point};
use crate::run::knob::{ChangeId, spec_with};
use crate::run::spec::Spec;
use crate::run::state::attempt::Placement;
use crate::run::state::event::Event;
use crate::run::state::fault::FaultKind;
use crate::run::state::follow_up::AttemptStart;
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::{NodePhase, NodeTask};
use crate::run::state::protocol::NodeCommand;
use crate::run::state::transition::{Action, Task, Transition};
use crate::run::state::{Cause, Outcome, RunState, watched};
use crate::time::TimestampMs;

impl Machine {
    /// Returns true if a command that was not accepted yet must still be sent. It is dropped if its attempt has ended, or if it would start
    /// something in an attempt that is stopping.
    #[must_use]
    pub fn is_due(&self, action: &Action, now_ms: TimestampMs) -> bool {
        let Task::Command { command, .. } = &action.task else {
            return false;
        };
        match command {
            // May belong to any attempt. It is valid for a while, as long as none of its checkpoints was pinned or resumed from.
            NodeCommand::Remove(order) => order.remaining_ms(now_ms) > 0 && self.may_still_remove(order),
            // Older collectors gave this order without checking who wrote the checkpoints.
            NodeCommand::Checkpoints(_) => false,
            NodeCommand::Stop { .. } => self.is_live(action.attempt),
            _ => self.is_live(action.attempt) && !self.is_stopping(),
        }
    }

    /// Returns true if the agent of a node that has not ended its task is away.
    #[must_use]
    pub fn has_node_away(&self) -> bool {
        let away = |task: &NodeTask| task.phase != NodePhase::Ended && task.away_since_ms.is_some();
        self.current().nodes.iter().any(away)
    }

    /// Creates a run and returns its first actions. The spec must have no problems.
    #[must_use]
    pub fn submit(id: RunId, spec: Spec, now_ms: TimestampMs) -> (Self, Vec<Action>) {
        let mut machine = Self {
            id,
            spec,
            owner: None,
            submitted_by: None,
            desired: DesiredState::Run,
            state: RunState::Queued,
            state_since_ms: Some(now_ms),
            submitted_ms: now_ms,
            started_ms: None,
            ended_ms: None,
            outcome: None,
            restart_at_ms: None,
            attempts: Vec::new(),
            checkpoints: Vec::new(),
            stop: None,
            watched: false,
            storage: Storage::default(),
            pending: None,
            attempts_used: None,
            unknown_attempt: None,
            restored_ms: None,
        };
        let mut transition = Transition::new(&mut machine, now_ms);
        transition.begin_attempt(AttemptStart::requested("submitted", Placement::default()));
        let actions = transition.into_actions();
        machine.current_mut().knobs.values = machine.spec.knobs_set();
        (machine, actions)
    }
}

/// Returns the run after an event, and the actions to carry out. See [`Machine::advance`].
#[must_use]
pub fn advance(machine: &Machine, event: &Event, now_ms: TimestampMs) -> (Machine, Vec<Action>) {
    let mut next = machine.clone();
    let actions = next.advance(event, now_ms);
    (next, actions)
}

impl Machine {
    /// Applies an event and returns the actions to carry out. An event that does not concern the run (late, repeated, of another attempt)
    /// changes nothing.
    #[must_use = "actions must be stored with the run and carried out"]
    pub fn advance(&mut self, event: &Event, now_ms: TimestampMs) -> Vec<Action> {
        let before = self.state;
        let actions = self.apply(event, now_ms);
        if self.state != before {
            self.state_since_ms = Some(now_ms);
        }
        actions
    }

    fn apply(&mut self, event: &Event, now_ms: TimestampMs) -> Vec<Action> {
        if self.watched {
            watched::advance(self, event, now_ms);
            return Vec::new();
        }
        let is_taken = match event {
            Event::ResumeRequested { .. } => self.state.is_final(),
            Event::KnobsChanged { .. }
            | Event::KnobsJudged { .. }
            | Event::LossDiverged { .. }
            | Event::Restored { .. }
            | Event::UnknownAttempt { .. } => true,
            _ => !self.state.is_final(),
        };
        let mut transition = Transition::new(self, now_ms);
        if is_taken {
            transition.take(event);
            transition.follow_up();
        }
        transition.apply_checkpoint_event(event);
        let actions = transition.into_actions();
        self.record_rank_facts(event);
        actions
    }
}

impl Transition<'_> {
    fn take(&mut self, event: &Event) {
        let now_ms = self.now_ms;
        match event {
            Event::Placed { attempt, nodes } => self.placed(*attempt, nodes),
            Event::CannotPlace { reason, permanent } => self.run.cannot_place(reason, *permanent, now_ms),
            Event::Reported {
                attempt,
                node,
                report,
            } if self.run.is_live(*attempt) => self.run.reported(node, report, now_ms),
            Event::Reported { .. } => {}
            Event::StopRequested { grace_ms, after } => {
                self.run.pending = None;
                self.stop_requested(*grace_ms, *after);
            }
            Event::ResumeRequested { from, from_start } => self.resume(from.clone(), *from_start),
            Event::KnobsChanged {
                request,
                grace_ms,
                after,
            } => self.knobs_changed(request, *grace_ms, *after),
            Event::KnobsJudged {
                attempt,
                live,
                verdict,
            } => {
                let (attempt, live) = (*attempt, *live);
                self.run.knobs_judged(ChangeId { attempt, live }, verdict);
            }
            Event::LossDiverged { attempt, divergence } => {
                self.run.loss_diverged(*attempt, divergence.as_ref());
            }
            Event::NoLargerBatch { attempt, why } => self.run.no_larger_batch(*attempt, why),
            Event::Stepped { attempt, step } if self.run.is_live(*attempt) => self.run.stepped(*step, now_ms),
            Event::Stepped { .. } => {}
            Event::CollectorStarted => self.run.collector_started(now_ms),
            Event::NodeLost { node } => self.run.node_lost(node, now_ms),
            Event::NodeBack { node, holds } => self.run.node_back(node, *holds, now_ms),
            Event::Restored { restored_ms } => self.restored(*restored_ms),
            Event::UnknownAttempt { node, attempt } => self.run.unknown_attempt(node, *attempt, now_ms),
            Event::Tick => self.tick(),
            // See `apply_checkpoint_event`.
            Event::CheckpointPinned { .. }
            | Event::PinnedByOthers { .. }
            | Event::PruneRequested { .. }
            | Event::RemovalDropped { .. } => {}
        }
    }

    fn placed(&mut self, attempt: AttemptNo, nodes: &[NodeName]) {
        let run = &mut *self.run;
        let waits =
            run.is_live(attempt) && run.current().nodes.is_empty() && run.desired == DesiredState::Run;
        if !waits || nodes.is_empty() {
            return;
        }
        run.outcome = None;
        let spec = Box::new(spec_with(&run.spec, &run.current().knobs.values));
        let nnodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let current = run.current_mut();
        current.placement.placed_ms = Some(self.now_ms);
        current.nodes = nodes.iter().cloned().map(NodeTask::new).collect();
        // An excluded node that was placed anyway was allowed again because there were too few others.
        current
            .placement
            .excluded
            .retain(|excluded| !nodes.contains(&excluded.node));
        let resume_from = current
            .placement
            .resumed_from
            .as_ref()
            .map(|from| from.path.clone());
        for (node_rank, node) in (0..).zip(nodes) {
            let prepare = NodeCommand::Prepare {
                spec: spec.clone(),
                node_rank,
                nnodes,
                resume_from: resume_from.clone(),
            };
            self.command(node, prepare);
        }
    }

    fn resume(&mut self, from: Option<ResumedFrom>, from_start: bool) {
        let chosen = from_start || from.is_some();
        let resumed_from = match from {
            _ if from_start => None,
            None => self.run.resume_point(),
            chosen => chosen,
        };
        self.run.queue_again();
        let placement = Placement {
            resumed_from,
            start_chosen_by_user: chosen,
            ..Placement::default()
        };
        let start = AttemptStart::requested("resumed by a person", placement);
        self.begin_attempt(start);
    }

    fn tick(&mut self) {
        let run = &mut *self.run;
        if run.restart_at_ms.is_some_and(|at| at <= self.now_ms) && run.desired == DesiredState::Run {
            run.restart_at_ms = None;
            let cause = run
                .outcome
                .take()
                .map_or_else(|| "restart".into(), |o| format!("restart after {}", o.cause));
            let start = AttemptStart {
                cause,
                requested_by_user: false,
                placement: Placement {
                    excluded: super::policy::exclusions(run.current()),
                    resumed_from: run.resume_point(),
                    ..Placement::default()
                },
            };
            self.begin_attempt(start);
        }
        self.run.check_timeouts(self.now_ms);
    }
}

impl Machine {
    /// Waits for nodes. Fails the run instead if the only existing nodes cannot run it: then waiting would not help.
    fn cannot_place(&mut self, reason: &str, permanent: bool, now_ms: TimestampMs) {
        let current = self.current();
        if !current.nodes.is_empty() || current.ended_ms.is_some() || self.restart_at_ms.is_some() {
            return;
        }
        let unfit = current
            .placement
            .excluded
            .iter()
            .find(|excluded| excluded.fault.kind == FaultKind::Unfit);
        let Some(unfit) = unfit.filter(|_| permanent) else {
            self.outcome = Some(Outcome::new(Cause::NoNodes, reason));
            return;
        };
        let (node, why) = (&unfit.node, &unfit.fault.reason);
        let failed_before = self
            .attempts
            .iter()
            .rev()
            .find_map(|attempt| attempt.outcome.clone());
        let cause = failed_before.map_or(Cause::PrepareFailed, |before| before.cause);
        let message = format!("{why}; no other node can take the place of {node}");
        let outcome = Outcome::at_node(cause, node, message);
        self.end_attempt(outcome.clone(), now_ms);
        self.finish(RunState::Failed, now_ms);
        self.outcome = Some(outcome);
    }

    /// Returns where the next attempt resumes: from a checkpoint of this run, otherwise from the one that a person named last. After a
    /// person has chosen a start, older checkpoints do not count, because the person may have wanted to go back behind the newest one.
    #[must_use]
    pub fn resume_point(&self) -> Option<ResumedFrom> {
        let named = || {
            let chosen = self
                .attempts
                .iter()
                .rev()
                .find(|attempt| attempt.placement.start_chosen_by_user);
            chosen.and_then(|attempt| attempt.placement.resumed_from.clone())
        };
        let asked = self
            .attempts
            .iter()
            .rev()
            .find(|attempt| attempt.requested_by_user);
        let Some(chosen) = asked.filter(|attempt| attempt.placement.start_chosen_by_user) else {
            let doubted = |path: &str| {
                let mut all = self.checkpoints.iter();
                all.any(|checkpoint| checkpoint.path == path && checkpoint.is_doubted())
            };
            let named = || named().filter(|from| !doubted(&from.path));
            return resume_point(&self.checkpoints).or_else(named);
        };
        let newer = |checkpoint: &&Checkpoint| {
            checkpoint
                .finished_ms
                .is_some_and(|finished| finished >= chosen.started_ms)
        };
        let since: Vec<Checkpoint> = self.checkpoints.iter().filter(newer).cloned().collect();
        resume_point(&since).or_else(named)
    }

    /// Queues another attempt after the run had ended or was about to end.
    pub(super) fn queue_again(&mut self) {
        (self.desired, self.state) = (DesiredState::Run, RunState::Queued);
        (self.ended_ms, self.outcome, self.restart_at_ms) = (None, None, None);
    }

    fn stepped(&mut self, step: u64, now_ms: TimestampMs) {
        let attempt = self.current_mut();
        let began = attempt.ranks().next().is_some();
        if began && attempt.progress.highest_step.is_none_or(|before| before < step) {
            attempt.progress.highest_step = Some(step);
            attempt.progress.last_progress_ms = Some(now_ms);
        }
    }
}

impl DesiredState {
    /// A second stop can only shorten the grace period.
    pub(super) fn or_stop(self, grace_ms: u64) -> Self {
        match self {
            Self::Run => Self::Stop { grace_ms },
            Self::Stop { grace_ms: before } => Self::Stop {
                grace_ms: before.min(grace_ms),
            },
        }
    }
}

#[cfg(test)]
mod tests;
