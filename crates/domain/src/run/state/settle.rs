//! What follows from the situation a run is in: who is told to start or stop, whether the attempt is over, which state that is.

use crate::ident::NodeName;
use crate::run::knob::spec_with;
use crate::run::state::advance::{Action, Task};
use crate::run::state::attempt::{Attempt, Placement};
use crate::run::state::judge::{judge, stopped};
use crate::run::state::machine::{Looked, Machine, NodePhase, NodeTask, Wished};
use crate::run::state::patience::{FAILURE_GRACE_MS, LOST_AFTER_MS};
use crate::run::state::policy::{self, Next};
use crate::run::state::preflight::{compare, unshared, verdict};
use crate::run::state::protocol::{NodeCommand, Prepared, Start};
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// Asks the probe for the bytes of tensors kept for the backward pass, in a few steps: the one figure of activations' memory that ranks
/// without a GPU have, and a change of knobs is judged against what was before it.
const MEASURE_SAVED: &str = "LOCKSTEP_MEASURE_SAVED";

/// What an attempt begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) cause: String,
    pub(super) requested_by_user: bool,
    pub(super) placement: Placement,
}

impl Beginning {
    pub(super) fn requested(cause: &str, placement: Placement) -> Self {
        Self {
            cause: cause.into(),
            requested_by_user: true,
            placement,
        }
    }
}

impl Machine {
    /// Whether nothing of the current attempt is to be started any more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.wished != Wished::Run || self.current().progress.failing_since_ms.is_some()
    }

    /// Issues what the new situation asks for and derives the state from it.
    pub(super) fn settle(&mut self, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        if self.current().ended_ms.is_none() {
            self.pursue_stop(now_ms);
            self.put_live_back(actions);
            if !self.is_stopping() {
                self.start_when_prepared(now_ms, actions);
            }
            if self.is_stopping() {
                self.tell_to_stop(actions);
            }
            self.end_attempt_when_over(now_ms, actions);
        }
        if self.restart_at_ms.is_some() && self.wished != Wished::Run {
            self.restart_at_ms = None;
            self.finish(RunState::Stopped, now_ms);
            self.outcome = Some(stopped());
        }
        if !self.state.is_final() {
            self.state = self.derive_state(now_ms);
        }
    }

    pub(super) fn begin_attempt(
        &mut self,
        beginning: Beginning,
        now_ms: TimestampMs,
        actions: &mut Vec<Action>,
    ) {
        let mut attempt = Attempt::new(self.next_attempt(), beginning.cause, now_ms);
        self.unknown_attempt = None;
        if let Some(last) = self.attempts.last() {
            attempt.knobs.values.clone_from(&last.knobs.values);
        }
        attempt.requested_by_user = beginning.requested_by_user;
        attempt.placement = beginning.placement;
        actions.push(attempt.action(Task::Place {
            nodes: self.spec.node_count(),
        }));
        self.attempts.push(attempt);
    }

    fn tell_to_stop(&mut self, actions: &mut Vec<Action>) {
        let grace_ms = match self.wished {
            Wished::Stop { grace_ms } => grace_ms,
            Wished::Run => FAILURE_GRACE_MS,
        };
        let attempt = self.current_mut();
        let untold = |task: &NodeTask| {
            task.phase != NodePhase::Ended && task.stop_told_ms.is_none_or(|told| grace_ms < told)
        };
        let nodes: Vec<NodeName> = attempt
            .nodes
            .iter()
            .filter(|t| untold(t))
            .map(|t| t.node.clone())
            .collect();
        for node in nodes {
            if let Some(task) = attempt.task_mut(&node) {
                task.stop_told_ms = Some(grace_ms);
            }
            actions.push(attempt.command(&node, NodeCommand::Stop { grace_ms }));
        }
    }

    /// Once all nodes are prepared: what they found is compared, then the others look for what the first wrote, then they measure
    /// what goes between them if that is asked for, then all start.
    fn start_when_prepared(&mut self, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        let attempt = self.current();
        let all_prepared = attempt.nodes.iter().all(|task| task.phase == NodePhase::Prepared);
        let Some(first) = attempt
            .nodes
            .first()
            .and_then(|task| task.prepared.clone())
            .filter(|_| all_prepared)
        else {
            return;
        };
        let comparison = compare(&self.spec, attempt);
        if let Some(refusal) = comparison.refusal {
            let mismatch = Outcome {
                node: None,
                ..Outcome::at_node(Cause::Mismatch, &attempt.nodes[0].node, refusal)
            };
            return self.fail(Some(mismatch), now_ms);
        }
        if let Some(token) = &first.token
            && self.current_mut().have_looked_for(token, actions)
        {
            return;
        }
        let spec = self.spec.clone();
        if self.current_mut().measure(&spec, now_ms, actions) {
            return;
        }
        let verdict = verdict(&spec, self.current());
        let warnings = comparison
            .warnings
            .into_iter()
            .chain(unshared(&spec, self.current()))
            .chain(verdict.warnings);
        self.current_mut().findings.warnings = warnings.collect();
        if let Some((outcome, fault)) = verdict.refusal {
            if let Some((node, fault)) = fault
                && let Some(task) = self.current_mut().task_mut(&node)
            {
                task.fault.get_or_insert(fault);
            }
            return self.fail(Some(outcome), now_ms);
        }
        let spec = spec_with(&self.spec, &self.current().knobs.values);
        self.current_mut().findings.provenance =
            Some(first.provenance.clone().unwrap_or_default().with_spec(&spec));
        self.start(first, actions);
    }

    fn start(&mut self, first: Prepared, actions: &mut Vec<Action>) {
        let attempt = self.current();
        let Some(nproc) = attempt.nproc(&self.spec) else {
            return;
        };
        let nnodes = u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX);
        let start = Start {
            spec: spec_with(&self.spec, &attempt.knobs.values),
            node_rank: 0,
            nnodes,
            nproc,
            master_addr: if nnodes == 1 {
                "127.0.0.1".into()
            } else {
                first.address
            },
            master_port: first.port,
            resume_from: attempt
                .placement
                .resumed_from
                .as_ref()
                .map(|from| from.path.clone()),
            resume_step: attempt.placement.resumed_from.as_ref().and_then(|from| from.step),
            is_first: self.is_first_start(),
            ..Start::default()
        };
        let mut start = start;
        if attempt.nodes.iter().all(NodeTask::has_no_gpu) {
            start.spec.env.insert(MEASURE_SAVED.into(), "1".into());
        }
        let attempt = self.current_mut();
        for at in 0..attempt.nodes.len() {
            let task = &mut attempt.nodes[at];
            task.phase = NodePhase::Starting;
            let node_rank = u32::try_from(at).unwrap_or(u32::MAX);
            task.expect_ranks(node_rank * nproc, nproc);
            let node = task.node.clone();
            let start = Box::new(Start {
                node_rank,
                ..start.clone()
            });
            actions.push(attempt.command(&node, NodeCommand::Start(start)));
        }
    }

    /// Whether no attempt before the current one was started: one that was has its provenance.
    fn is_first_start(&self) -> bool {
        let (_, earlier) = self.attempts.split_last().expect("a run has its first attempt");
        earlier
            .iter()
            .all(|attempt| attempt.findings.provenance.is_none())
    }

    fn end_attempt_when_over(&mut self, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        let attempt = self.current();
        let unplaced = attempt.nodes.is_empty();
        let over = if unplaced {
            self.wished != Wished::Run
        } else {
            attempt.nodes.iter().all(|task| task.phase == NodePhase::Ended)
        };
        if !over {
            return;
        }
        let Some(outcome) = self.followed_by_change(judge(attempt, self.wished), now_ms, actions) else {
            return;
        };
        let outcome = self.with_stop_told(outcome);
        let next = policy::next(self, &outcome, now_ms);
        self.end_attempt(outcome.clone(), now_ms);
        let (state, outcome) = match next {
            Next::RestartAt(at_ms) => {
                self.restart_at_ms = Some(at_ms);
                self.outcome = Some(outcome);
                return;
            }
            Next::End(_) if outcome.cause == Cause::Succeeded => (RunState::Succeeded, outcome),
            Next::End(_) if self.wished != Wished::Run => (RunState::Stopped, stopped_after(outcome)),
            Next::End(None) => (RunState::Failed, outcome),
            Next::End(Some(why)) => (
                RunState::Failed,
                Outcome {
                    message: format!("{}; {why}", outcome.message).into(),
                    ..outcome
                },
            ),
        };
        self.finish(state, now_ms);
        self.outcome = Some(outcome);
    }

    pub(super) fn end_attempt(&mut self, outcome: Outcome, now_ms: TimestampMs) {
        self.leave_live(now_ms);
        let attempt = self.current_mut();
        attempt.ended_ms = Some(now_ms);
        attempt.outcome = Some(outcome);
        self.doubt_checkpoint();
    }

    pub(super) fn finish(&mut self, state: RunState, now_ms: TimestampMs) {
        self.state = state;
        self.ended_ms = Some(now_ms);
    }

    fn derive_state(&self, now_ms: TimestampMs) -> RunState {
        let attempt = self.current();
        let is_lost = |task: &NodeTask| task.is_silent(now_ms, LOST_AFTER_MS);
        if self.restart_at_ms.is_some() {
            RunState::Restarting
        } else if attempt.nodes.is_empty() {
            RunState::Queued
        } else if self.is_stopping() || self.stop_is_reached() {
            RunState::Stopping
        } else if attempt.nodes.iter().any(is_lost) {
            RunState::Lost
        } else if attempt.ranks().any(|(_, rank)| rank.pid.is_some()) {
            RunState::Running
        } else if attempt.nodes.iter().all(|task| task.phase > NodePhase::Prepared) {
            RunState::Starting
        } else {
            RunState::Preparing
        }
    }
}

impl NodeTask {
    fn has_no_gpu(&self) -> bool {
        self.prepared.as_ref().is_some_and(|found| found.gpus == 0)
    }
}

impl Attempt {
    /// Has the other nodes look for the first one's file; whether an answer is still to come. A node that wrote none itself is an
    /// older agent's, and would refuse to look.
    fn have_looked_for(&mut self, token: &str, actions: &mut Vec<Action>) -> bool {
        let can_look = |task: &NodeTask| task.prepared.as_ref().is_some_and(|found| found.token.is_some());
        for at in 1..self.nodes.len() {
            let task = &mut self.nodes[at];
            if can_look(task) && task.sees_first.is_none() {
                task.sees_first = Some(Looked::Asked);
                let (node, path) = (task.node.clone(), token.to_owned());
                actions.push(self.command(&node, NodeCommand::LookFor { path }));
            }
        }
        self.nodes
            .iter()
            .any(|task| task.sees_first == Some(Looked::Asked))
    }
}

/// A failure before the stop stays with its attempt; the run ends as wished, and says both.
fn stopped_after(outcome: Outcome) -> Outcome {
    if outcome.cause == Cause::Stopped {
        return outcome;
    }
    Outcome {
        message: format!("stopped as asked; before that, {}", outcome.message).into(),
        ..stopped()
    }
}
