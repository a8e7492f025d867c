//! One step of a run: what happened, and what is to be done about it.

use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::spec::Spec;
use crate::run::state::judge::{judge, may_restart, trouble};
use crate::run::state::machine::{Attempt, Machine, NodePhase, NodeTask, RankTask, Wished};
use crate::run::state::protocol::{EndCause, NodeCommand, NodeEnd, NodeReport, Start};
use crate::run::state::{Outcome, RunState};
use crate::time::TimestampMs;

/// An agent away for longer makes the run `Lost`: several reconnects with back-off fit in.
pub const LOST_AFTER_MS: i64 = 30_000;
/// A node away for longer while everything else has stopped is given up: the run must come to an end.
pub const ABANDON_AFTER_MS: i64 = 600_000;
/// Importing PyTorch from a busy network file system takes minutes, not more.
pub const PREPARE_TIMEOUT_MS: i64 = 300_000;
/// Time for the other ranks to end after one has failed; they have nothing left to wait for.
const FAILURE_GRACE_MS: u64 = 10_000;
/// The pause before the first restart; doubled each time, so that a broken run does not hammer its nodes.
const RESTART_PAUSE_MS: i64 = 1_000;
/// The longest pause before a restart.
const RESTART_PAUSE_MAX_MS: i64 = 60_000;

/// Something happened to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Nodes were found for an attempt, by node rank.
    Placed {
        /// The attempt they were looked for.
        attempt: AttemptNo,
        /// The nodes.
        nodes: Vec<NodeName>,
    },
    /// There are no nodes for it now.
    CannotPlace {
        /// What it waits for.
        reason: String,
    },
    /// A node reports.
    Reported {
        /// The attempt the report is about.
        attempt: AttemptNo,
        /// Who reports.
        node: NodeName,
        /// What.
        report: NodeReport,
    },
    /// A person wants it to stop.
    StopRequested {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// A node's agent lost its connection.
    NodeLost {
        /// The node.
        node: NodeName,
    },
    /// A node's agent is connected.
    NodeBack {
        /// The node.
        node: NodeName,
        /// Whether it still knows the current attempt.
        holds: bool,
    },
    /// Time passed.
    Tick,
}

/// Something to do, after the state that asked for it is stored. `(run, attempt, n)` names it for good.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The attempt it belongs to.
    pub attempt: AttemptNo,
    /// Its number within the attempt, from 1.
    pub n: u32,
    /// What to do.
    pub task: Task,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Find this many nodes, then tell by `Placed`.
    Place {
        /// How many.
        nodes: u32,
    },
    /// Bring a command to a node, again and again until it accepts or refuses.
    Command {
        /// The node.
        node: NodeName,
        /// The command.
        command: NodeCommand,
    },
}

impl Machine {
    /// A new run, and the first thing to do for it. The spec has no problems.
    #[must_use]
    pub fn submit(id: RunId, spec: Spec, now_ms: TimestampMs) -> (Self, Vec<Action>) {
        let mut machine = Self {
            id,
            spec,
            wished: Wished::Run,
            state: RunState::Queued,
            submitted_ms: now_ms,
            started_ms: None,
            ended_ms: None,
            outcome: None,
            restart_at_ms: None,
            attempts: Vec::new(),
            checkpoints: Vec::new(),
        };
        let mut actions = Vec::new();
        machine.begin_attempt("submitted".into(), now_ms, &mut actions);
        (machine, actions)
    }
}

/// What a run becomes by an event, and what is to be done. An event that means nothing to it (late, repeated, of another
/// attempt) changes nothing.
#[must_use]
pub fn advance(machine: &Machine, event: &Event, now_ms: TimestampMs) -> (Machine, Vec<Action>) {
    let mut next = machine.clone();
    let mut actions = Vec::new();
    if !machine.state.is_final() {
        next.take(event, now_ms, &mut actions);
        next.settle(now_ms, &mut actions);
    }
    (next, actions)
}

// === what happened ===

impl Machine {
    fn take(&mut self, event: &Event, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        match event {
            Event::Placed { attempt, nodes } => self.placed(*attempt, nodes, actions),
            Event::CannotPlace { reason } => self.cannot_place(reason),
            Event::Reported {
                attempt,
                node,
                report,
            } if self.is_live(*attempt) => {
                self.reported(node, report, now_ms);
            }
            Event::Reported { .. } => {}
            Event::StopRequested { grace_ms } => self.wished = self.wished.or_stop(*grace_ms),
            Event::NodeLost { node } => self.node_lost(node, now_ms),
            Event::NodeBack { node, holds } => self.node_back(node, *holds, now_ms),
            Event::Tick => self.tick(now_ms, actions),
        }
    }

    fn placed(&mut self, attempt: AttemptNo, nodes: &[NodeName], actions: &mut Vec<Action>) {
        let waits = self.is_live(attempt) && self.current().nodes.is_empty() && self.wished == Wished::Run;
        if !waits || nodes.is_empty() {
            return;
        }
        self.outcome = None;
        let spec = Box::new(self.spec.clone());
        let nnodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let current = self.current_mut();
        current.nodes = nodes.iter().cloned().map(NodeTask::new).collect();
        for (node_rank, node) in (0..).zip(nodes) {
            actions.push(current.command(
                node,
                NodeCommand::Prepare {
                    spec: spec.clone(),
                    node_rank,
                    nnodes,
                },
            ));
        }
    }

    fn cannot_place(&mut self, reason: &str) {
        if self.current().nodes.is_empty() && self.current().ended_ms.is_none() {
            self.outcome = Some(Outcome {
                cause: "no_nodes".into(),
                node: None,
                rank: None,
                message: reason.into(),
            });
        }
    }

    fn reported(&mut self, node: &NodeName, report: &NodeReport, now_ms: TimestampMs) {
        let attempt = self.current_mut();
        let Some(task) = attempt.task_mut(node) else {
            return;
        };
        if task.phase == NodePhase::Ended {
            return;
        }
        task.away_since_ms = None;
        task.note(report);
        let failed = match report {
            NodeReport::RankExited(exit) => exit.failed(),
            NodeReport::Ended(end) => end.code != Some(0),
            NodeReport::Refused { .. }
            | NodeReport::PrepareFailed { .. }
            | NodeReport::StartFailed { .. } => true,
            _ => false,
        };
        if matches!(report, NodeReport::RankStarted { .. }) {
            self.started_ms.get_or_insert(now_ms);
        }
        if failed {
            self.fail(trouble(node, report), now_ms);
        }
    }

    /// The attempt cannot end well any more. Only what came before a wished stop counts as a failure.
    fn fail(&mut self, trouble: Option<Outcome>, now_ms: TimestampMs) {
        if self.wished != Wished::Run {
            return;
        }
        let attempt = self.current_mut();
        attempt.failing_since_ms.get_or_insert(now_ms);
        attempt.trouble = attempt.trouble.take().or(trouble);
    }

    fn node_lost(&mut self, node: &NodeName, now_ms: TimestampMs) {
        if let Some(task) = self.current_mut().task_mut(node)
            && task.phase != NodePhase::Ended
        {
            task.away_since_ms.get_or_insert(now_ms);
        }
    }

    fn node_back(&mut self, node: &NodeName, holds: bool, now_ms: TimestampMs) {
        let Some(task) = self.current_mut().task_mut(node) else {
            return;
        };
        task.away_since_ms = None;
        if holds || matches!(task.phase, NodePhase::Preparing | NodePhase::Ended) {
            return;
        }
        // An agent holds an attempt from its preparation to its end, so its data folder is gone: what became of the ranks cannot
        // be known, but they are not there, and no answer to what it accepted will come.
        task.phase = NodePhase::Ended;
        task.end = Some(NodeEnd {
            cause: EndCause::ShimDied,
            ..NodeEnd::default()
        });
        let message = format!(
            "node {node} came back without any trace of this run; it was reinstalled or lost its disk"
        );
        self.fail(
            Some(Outcome {
                cause: "shim_died".into(),
                node: Some(node.to_string()),
                rank: None,
                message,
            }),
            now_ms,
        );
    }

    fn tick(&mut self, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        if self.restart_at_ms.is_some_and(|at| at <= now_ms) && self.wished == Wished::Run {
            self.restart_at_ms = None;
            let cause = self
                .outcome
                .take()
                .map_or_else(|| "restart".into(), |o| format!("restart after {}", o.cause));
            self.begin_attempt(cause, now_ms, actions);
        }
        self.give_up_silent_nodes(now_ms);
    }

    fn give_up_silent_nodes(&mut self, now_ms: TimestampMs) {
        let stopping = self.is_stopping();
        let attempt = self.current_mut();
        let asked_ms = attempt.started_ms;
        let all_else_ended = attempt
            .nodes
            .iter()
            .all(|task| task.phase == NodePhase::Ended || task.away_since_ms.is_some());
        let mut silent = None;
        for task in attempt
            .nodes
            .iter_mut()
            .filter(|task| task.phase != NodePhase::Ended)
        {
            let away_ms = task.away_since_ms.map_or(0, |since| now_ms - since);
            if stopping && all_else_ended && away_ms > ABANDON_AFTER_MS {
                task.phase = NodePhase::Ended;
                silent = Some((
                    "agent_lost",
                    task.node.clone(),
                    "its agent has not been heard for 10 minutes",
                ));
            } else if task.phase == NodePhase::Preparing
                && now_ms - asked_ms > PREPARE_TIMEOUT_MS
                && !stopping
            {
                silent = Some((
                    "prepare_failed",
                    task.node.clone(),
                    "it did not finish its checks in 5 minutes",
                ));
            }
        }
        if let Some((cause, node, message)) = silent {
            let message = format!("node {node} was given up: {message}");
            self.fail(
                Some(Outcome {
                    cause: cause.into(),
                    node: Some(node.into()),
                    rank: None,
                    message,
                }),
                now_ms,
            );
        }
    }
}

impl Wished {
    /// A second stop can only be more impatient.
    fn or_stop(self, grace_ms: u64) -> Self {
        match self {
            Self::Run => Self::Stop { grace_ms },
            Self::Stop { grace_ms: before } => Self::Stop {
                grace_ms: before.min(grace_ms),
            },
        }
    }
}

impl NodeTask {
    fn note(&mut self, report: &NodeReport) {
        match report {
            NodeReport::Accepted { .. } => {}
            NodeReport::Refused { reason: message, .. }
            | NodeReport::PrepareFailed { message }
            | NodeReport::StartFailed { message } => {
                self.phase = NodePhase::Ended;
                self.end = Some(NodeEnd {
                    cause: EndCause::NeverStarted,
                    message: message.clone(),
                    ..NodeEnd::default()
                });
            }
            NodeReport::Prepared(found) => {
                self.phase = self.phase.max(NodePhase::Prepared);
                self.prepared = Some(found.clone());
            }
            NodeReport::ShimStarted { command, .. } => {
                self.phase = self.phase.max(NodePhase::Running);
                self.command.clone_from(command);
            }
            NodeReport::RankStarted { local_rank, pid, .. } => {
                self.phase = self.phase.max(NodePhase::Running);
                if let Some(rank) = self.ranks.get_mut(local_rank) {
                    rank.pid = Some(*pid);
                }
            }
            NodeReport::FirstStep { rank, step } => {
                if let Some(task) = self.local(rank.0) {
                    task.first_step.get_or_insert(*step);
                }
            }
            NodeReport::RankExited(exit) => {
                if let Some(task) = self.local(exit.rank.0) {
                    task.exit.get_or_insert_with(|| exit.clone());
                }
            }
            NodeReport::Ended(end) => {
                self.phase = NodePhase::Ended;
                self.end = Some(end.clone());
            }
        }
    }
}

// === what follows ===

impl Machine {
    /// Whether nothing of the current attempt is to be started any more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.wished != Wished::Run || self.current().failing_since_ms.is_some()
    }

    /// Issues what the new situation asks for and derives the state from it.
    fn settle(&mut self, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        if self.current().ended_ms.is_none() {
            if self.is_stopping() {
                self.tell_to_stop(actions);
            } else {
                self.start_when_prepared(actions);
            }
            self.end_attempt_when_over(now_ms);
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

    fn start_when_prepared(&mut self, actions: &mut Vec<Action>) {
        let attempt = self.current();
        let all_prepared = attempt.nodes.iter().all(|task| task.phase == NodePhase::Prepared);
        let Some(found) = attempt
            .nodes
            .first()
            .and_then(|task| task.prepared.clone())
            .filter(|_| all_prepared)
        else {
            return;
        };
        let Some(nproc) = attempt.nproc(&self.spec) else {
            return;
        };
        let nnodes = u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX);
        let master_addr = if nnodes == 1 {
            "127.0.0.1".into()
        } else {
            found.address
        };
        let start = Start {
            spec: self.spec.clone(),
            node_rank: 0,
            nnodes,
            nproc,
            master_addr,
            master_port: found.port,
        };
        let attempt = self.current_mut();
        for at in 0..attempt.nodes.len() {
            let task = &mut attempt.nodes[at];
            task.phase = NodePhase::Starting;
            let first = u32::try_from(at).unwrap_or(u32::MAX);
            task.expect_ranks(first * nproc, nproc);
            let node = task.node.clone();
            let start = Box::new(Start {
                node_rank: first,
                ..start.clone()
            });
            actions.push(attempt.command(&node, NodeCommand::Start(start)));
        }
    }

    fn end_attempt_when_over(&mut self, now_ms: TimestampMs) {
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
        let outcome = judge(attempt, self.wished);
        let restart_at = may_restart(self, &outcome).then(|| now_ms + restart_pause_ms(self.attempts.len()));
        let attempt = self.current_mut();
        attempt.ended_ms = Some(now_ms);
        attempt.outcome = Some(outcome.clone());
        self.restart_at_ms = restart_at;
        if restart_at.is_none() {
            let state = match outcome.cause.as_str() {
                "succeeded" => RunState::Succeeded,
                "stopped" => RunState::Stopped,
                _ => RunState::Failed,
            };
            self.finish(state, now_ms);
        }
        self.outcome = Some(outcome);
    }

    fn finish(&mut self, state: RunState, now_ms: TimestampMs) {
        self.state = state;
        self.ended_ms = Some(now_ms);
    }

    fn derive_state(&self, now_ms: TimestampMs) -> RunState {
        let attempt = self.current();
        let lost = |task: &NodeTask| {
            task.phase != NodePhase::Ended
                && task
                    .away_since_ms
                    .is_some_and(|since| now_ms - since > LOST_AFTER_MS)
        };
        if self.restart_at_ms.is_some() {
            RunState::Restarting
        } else if attempt.nodes.is_empty() {
            RunState::Queued
        } else if self.is_stopping() {
            RunState::Stopping
        } else if attempt.nodes.iter().any(lost) {
            RunState::Lost
        } else if attempt.ranks().any(|(_, rank)| rank.pid.is_some()) {
            RunState::Running
        } else if attempt.nodes.iter().all(|task| task.phase > NodePhase::Prepared) {
            RunState::Starting
        } else {
            RunState::Preparing
        }
    }

    fn begin_attempt(&mut self, cause: String, now_ms: TimestampMs, actions: &mut Vec<Action>) {
        let no = self.attempts.last().map_or(1, |last| last.no.0 + 1);
        let mut attempt = Attempt::new(AttemptNo(no), cause, now_ms);
        actions.push(attempt.action(Task::Place {
            nodes: self.spec.node_count(),
        }));
        self.attempts.push(attempt);
    }
}

impl Attempt {
    fn action(&mut self, task: Task) -> Action {
        let n = self.next_action;
        self.next_action += 1;
        Action {
            attempt: self.no,
            n,
            task,
        }
    }

    fn command(&mut self, node: &NodeName, command: NodeCommand) -> Action {
        self.action(Task::Command {
            node: node.clone(),
            command,
        })
    }
}

impl NodeTask {
    /// Ranks are known from the start, so that a page can show the one that never came.
    fn expect_ranks(&mut self, first: u32, nproc: u32) {
        self.first_rank = first;
        for local in 0..nproc {
            self.ranks.entry(local).or_default();
        }
    }

    /// A rank of this node by its place in the world; `None` for a rank that does not belong here.
    fn local(&mut self, rank: u32) -> Option<&mut RankTask> {
        self.ranks.get_mut(&rank.checked_sub(self.first_rank)?)
    }
}

fn restart_pause_ms(attempts: usize) -> i64 {
    let doublings = u32::try_from(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(16);
    (RESTART_PAUSE_MS << doublings).min(RESTART_PAUSE_MAX_MS)
}

pub(super) fn stopped() -> Outcome {
    Outcome {
        cause: "stopped".into(),
        node: None,
        rank: None,
        message: "stopped as asked".into(),
    }
}

#[cfg(test)]
mod tests;
