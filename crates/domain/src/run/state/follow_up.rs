//! Decides what follows from the situation of a run: which nodes must start or stop, whether the attempt is over, and the derived state.

use crate::run::knob::spec_with;
use crate::run::state::attempt::{Attempt, Placement};
use crate::run::state::judge::FAILURE_GRACE_MS;
use crate::run::state::judge::{judge, stopped};
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::{Looked, NodePhase, NodeTask};
use crate::run::state::policy::{self, Next};
use crate::run::state::preflight::{compare, unshared, verdict};
use crate::run::state::protocol::{NodeCommand, Prepared, Start};
use crate::run::state::timeouts::LOST_AFTER_MS;
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// Variable that makes the probe measure, in a few steps, the bytes of tensors saved for the backward pass. On ranks without a GPU this is
/// the only measure of activation memory, and the verdict on a knob change compares it with the value before.
const MEASURE_SAVED: &str = "LOCKSTEP_MEASURE_SAVED";

/// The data that an attempt begins with.
#[derive(Debug)]
pub(super) struct AttemptStart {
    pub(super) cause: String,
    pub(super) requested_by_user: bool,
    pub(super) placement: Placement,
}

impl AttemptStart {
    pub(super) fn requested(cause: &str, placement: Placement) -> Self {
        Self {
            cause: cause.into(),
            requested_by_user: true,
            placement,
        }
    }
}

impl Machine {
    /// Returns true if nothing of the current attempt may be started any more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.desired != DesiredState::Run || self.current().progress.failing_since_ms.is_some()
    }

    /// Returns true if no earlier attempt was started. An attempt that was started has its provenance.
    fn is_first_start(&self) -> bool {
        let (_, earlier) = self.attempts.split_last().expect("a run has its first attempt");
        earlier
            .iter()
            .all(|attempt| attempt.findings.provenance.is_none())
    }

    pub(super) fn end_attempt(&mut self, outcome: Outcome, now_ms: TimestampMs) {
        self.abandon_in_place_change(now_ms);
        let attempt = self.current_mut();
        attempt.ended_ms = Some(now_ms);
        attempt.outcome = Some(outcome);
        self.mark_checkpoint_unusable();
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

impl Transition<'_> {
    /// Adds the actions that the new situation requires, and derives the state from it.
    pub(super) fn follow_up(&mut self) {
        if self.run.current().ended_ms.is_none() {
            self.run.pursue_stop(self.now_ms);
            self.resend_old_value();
            if !self.run.is_stopping() {
                self.start_when_prepared();
            }
            if self.run.is_stopping() {
                self.send_stops();
            }
            self.end_attempt_when_over();
        }
        let run = &mut *self.run;
        if run.restart_at_ms.is_some() && run.desired != DesiredState::Run {
            run.restart_at_ms = None;
            run.finish(RunState::Stopped, self.now_ms);
            run.outcome = Some(stopped());
        }
        if !run.state.is_final() {
            run.state = run.derive_state(self.now_ms);
        }
    }

    pub(super) fn begin_attempt(&mut self, start: AttemptStart) {
        let run = &mut *self.run;
        let mut attempt = Attempt::new(run.next_attempt(), start.cause, self.now_ms);
        run.unknown_attempt = None;
        if let Some(last) = run.attempts.last() {
            attempt.knobs.values.clone_from(&last.knobs.values);
        }
        attempt.requested_by_user = start.requested_by_user;
        attempt.placement = start.placement;
        run.attempts.push(attempt);
        self.find_nodes();
    }

    fn send_stops(&mut self) {
        let grace_ms = match self.run.desired {
            DesiredState::Stop { grace_ms } => grace_ms,
            DesiredState::Run => FAILURE_GRACE_MS,
        };
        for at in 0..self.run.current().nodes.len() {
            let task = &mut self.run.current_mut().nodes[at];
            if task.phase != NodePhase::Ended && task.stop_grace_sent_ms.is_none_or(|told| grace_ms < told) {
                task.stop_grace_sent_ms = Some(grace_ms);
                let node = task.node.clone();
                self.command(&node, NodeCommand::Stop { grace_ms });
            }
        }
    }

    /// Continues once all nodes are prepared: compares what they found, then lets the other nodes look for the first node's file, then
    /// measures the network if the spec requests it, then starts all of them.
    fn start_when_prepared(&mut self) {
        let attempt = self.run.current();
        let all_prepared = attempt.nodes.iter().all(|task| task.phase == NodePhase::Prepared);
        let Some(first) = attempt
            .nodes
            .first()
            .and_then(|task| task.prepared.clone())
            .filter(|_| all_prepared)
        else {
            return;
        };
        let comparison = compare(&self.run.spec, attempt);
        if let Some(refusal) = comparison.refusal {
            let mismatch = Outcome {
                node: None,
                ..Outcome::at_node(Cause::Mismatch, &attempt.nodes[0].node, refusal)
            };
            return self.run.fail(Some(mismatch), self.now_ms);
        }
        if let Some(token) = &first.token
            && self.search_shared_file(token)
        {
            return;
        }
        if self.measure() {
            return;
        }
        let run = &mut *self.run;
        let verdict = verdict(&run.spec, run.current());
        let warnings = comparison
            .warnings
            .into_iter()
            .chain(unshared(&run.spec, run.current()))
            .chain(verdict.warnings);
        run.current_mut().findings.warnings = warnings.collect();
        if let Some(refusal) = verdict.refusal {
            return run.fail_at_node(refusal, self.now_ms);
        }
        let spec = spec_with(&run.spec, &run.current().knobs.values);
        run.current_mut().findings.provenance =
            Some(first.provenance.clone().unwrap_or_default().with_spec(&spec));
        self.start(first);
    }

    fn start(&mut self, first: Prepared) {
        let attempt = self.run.current();
        let Some(nproc) = attempt.nproc(&self.run.spec) else {
            return;
        };
        let nnodes = u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX);
        let mut start = Start {
            spec: spec_with(&self.run.spec, &attempt.knobs.values),
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
            is_first: self.run.is_first_start(),
            ..Start::default()
        };
        if attempt.nodes.iter().all(NodeTask::has_no_gpu) {
            start.spec.env.insert(MEASURE_SAVED.into(), "1".into());
        }
        for at in 0..self.run.current().nodes.len() {
            let task = &mut self.run.current_mut().nodes[at];
            task.phase = NodePhase::Starting;
            let node_rank = u32::try_from(at).unwrap_or(u32::MAX);
            task.expect_ranks(node_rank * nproc, nproc);
            let node = task.node.clone();
            let start = Box::new(Start {
                node_rank,
                ..start.clone()
            });
            self.command(&node, NodeCommand::Start(start));
        }
    }

    fn end_attempt_when_over(&mut self) {
        let attempt = self.run.current();
        let unplaced = attempt.nodes.is_empty();
        let over = if unplaced {
            self.run.desired != DesiredState::Run
        } else {
            attempt.nodes.iter().all(|task| task.phase == NodePhase::Ended)
        };
        if !over {
            return;
        }
        let Some(outcome) = self.followed_by_change(judge(attempt, self.run.desired)) else {
            return;
        };
        let run = &mut *self.run;
        let outcome = run.with_stop_point(outcome);
        let next = policy::next(run, &outcome, self.now_ms);
        run.end_attempt(outcome.clone(), self.now_ms);
        let (state, outcome) = match next {
            Next::RestartAt(at_ms) => {
                run.restart_at_ms = Some(at_ms);
                run.outcome = Some(outcome);
                return;
            }
            Next::End(_) if outcome.cause == Cause::Succeeded => (RunState::Succeeded, outcome),
            Next::End(_) if run.desired != DesiredState::Run => (RunState::Stopped, stopped_after(outcome)),
            Next::End(None) => (RunState::Failed, outcome),
            Next::End(Some(why)) => (
                RunState::Failed,
                Outcome {
                    message: format!("{}; {why}", outcome.message).into(),
                    ..outcome
                },
            ),
        };
        run.finish(state, self.now_ms);
        run.outcome = Some(outcome);
    }

    /// Lets the other nodes look for the first node's file. Returns true if an answer is still missing. A node that wrote no file itself
    /// has an older agent, which would refuse the command.
    fn search_shared_file(&mut self, token: &str) -> bool {
        let can_look = |task: &NodeTask| task.prepared.as_ref().is_some_and(|found| found.token.is_some());
        for at in 1..self.run.current().nodes.len() {
            let task = &mut self.run.current_mut().nodes[at];
            if can_look(task) && task.sees_first.is_none() {
                task.sees_first = Some(Looked::Asked);
                let (node, path) = (task.node.clone(), token.to_owned());
                self.command(&node, NodeCommand::LookFor { path });
            }
        }
        let mut nodes = self.run.current().nodes.iter();
        nodes.any(|task| task.sees_first == Some(Looked::Asked))
    }
}

impl NodeTask {
    fn has_no_gpu(&self) -> bool {
        self.prepared.as_ref().is_some_and(|found| found.gpus == 0)
    }
}

/// Returns the outcome of a stopped run. A failure before the stop stays the outcome of its attempt; the message names both.
fn stopped_after(outcome: Outcome) -> Outcome {
    if outcome.cause == Cause::Stopped {
        return outcome;
    }
    Outcome {
        message: format!("stopped as asked; before that, {}", outcome.message).into(),
        ..stopped()
    }
}
