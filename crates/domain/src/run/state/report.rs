//! Handles what a node reports about its task of an attempt, and what follows when its agent disconnects or connects.

use crate::ident::NodeName;
use crate::run::state::event::Event;
use crate::run::state::fault::{Exclusion, Fault, FaultKind, NodeFailure};
use crate::run::state::judge::trouble;
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::{Looked, NodePhase, NodeTask, RankTask, Stall};
use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport};
use crate::run::state::{Cause, Outcome};
use crate::time::TimestampMs;

impl Machine {
    pub(super) fn reported(&mut self, node: &NodeName, report: &NodeReport, now_ms: TimestampMs) {
        if self.stop_reported(report, now_ms) || self.apply_in_place_report(report, now_ms) {
            return;
        }
        let attempt = self.current_mut();
        let Some(task) = attempt.task_mut(node) else {
            return;
        };
        if task.phase == NodePhase::Ended {
            return;
        }
        task.away_since_ms = None;
        task.note(report, now_ms);
        let failed = match report {
            NodeReport::RankExited(exit) => exit.failed(),
            NodeReport::Ended(end) => end.code != Some(0),
            NodeReport::Refused { .. }
            | NodeReport::PrepareFailed { .. }
            | NodeReport::StartFailed { .. } => true,
            _ => false,
        };
        match report {
            NodeReport::RankStarted { .. } => {
                self.started_ms.get_or_insert(now_ms);
            }
            NodeReport::FirstStep { .. } => attempt.progress.last_progress_ms = Some(now_ms),
            NodeReport::RankExited(_) => {
                attempt.progress.last_progress_ms = Some(now_ms);
                if !failed {
                    attempt.complete_in_place_change(now_ms);
                }
            }
            NodeReport::KnobAnswered(answer) if answer.live.is_none() => attempt.knobs.note_answer(answer),
            NodeReport::Measured(measured) => attempt.measured(node, measured),
            _ => {}
        }
        if failed {
            self.fail(trouble(node, report), now_ms);
        }
    }

    /// Stores what ranks report about themselves. No decision depends on it, so it is accepted in any state of the run: the last such
    /// report may arrive after `Ended`.
    pub(super) fn record_rank_facts(&mut self, event: &Event) {
        let Event::Reported {
            attempt,
            node,
            report,
        } = event
        else {
            return;
        };
        let attempt = self.attempts.iter_mut().find(|known| known.no == *attempt);
        let Some(attempt) = attempt.filter(|known| known.nodes.iter().any(|task| task.node == *node)) else {
            return;
        };
        match report {
            NodeReport::RankMesh(told) => attempt.findings.mesh.get_or_insert_default().take(told),
            NodeReport::RankUnobserved(told) => attempt.findings.unobserved.take(told),
            _ => {}
        }
    }

    /// Marks the attempt as failing: it cannot succeed any more. A failure after a requested stop does not count.
    pub(super) fn fail(&mut self, trouble: Option<Outcome>, now_ms: TimestampMs) {
        if self.desired != DesiredState::Run || self.handle_failure_during_stop() {
            return;
        }
        let attempt = self.current_mut();
        attempt.progress.failing_since_ms.get_or_insert(now_ms);
        if attempt.progress.first_failure.is_none() && trouble.is_some() {
            attempt.progress.first_failure = trouble;
            attempt.progress.first_failure_ms = Some(now_ms);
        }
    }

    /// Like [`Self::fail`], for a failure that a node caused: the next attempt runs without that node.
    pub(super) fn fail_at_node(&mut self, failure: NodeFailure, now_ms: TimestampMs) {
        if let Some(Exclusion { node, fault }) = failure.exclusion
            && let Some(task) = self.current_mut().task_mut(&node)
        {
            task.fault.get_or_insert(fault);
        }
        self.fail(Some(failure.outcome), now_ms);
    }

    pub(super) fn node_lost(&mut self, node: &NodeName, now_ms: TimestampMs) {
        if let Some(task) = self.current_mut().task_mut(node)
            && task.phase != NodePhase::Ended
        {
            task.away_since_ms.get_or_insert(now_ms);
        }
    }

    pub(super) fn node_back(&mut self, node: &NodeName, holds: bool, now_ms: TimestampMs) {
        let Some(task) = self.current_mut().task_mut(node) else {
            return;
        };
        task.away_since_ms = None;
        if holds || matches!(task.phase, NodePhase::Preparing | NodePhase::Ended) {
            return;
        }
        // An agent keeps an attempt from its preflight to its end, so its data folder is lost. How the ranks ended cannot be known, but
        // they do not run any more, and the commands that the agent accepted will not be answered.
        let reason = "it came back without any trace of this run; it was reinstalled or lost its disk";
        task.end_unreported(FaultKind::Shim, reason.into());
        task.end = Some(NodeEnd {
            cause: EndCause::ShimDied,
            ..NodeEnd::default()
        });
        let message = format!("node {node}: {reason}");
        self.fail(Some(Outcome::at_node(Cause::ShimDied, node, message)), now_ms);
    }

    /// Restarts the time that nodes have to connect and to answer.
    pub(super) fn collector_started(&mut self, now_ms: TimestampMs) {
        let attempt = self.current_mut();
        attempt.placement.placed_ms = attempt.placement.placed_ms.map(|_| now_ms);
        if let Some(check) = &mut attempt.findings.bandwidth {
            check.since_ms = now_ms;
        }
        for task in attempt
            .nodes
            .iter_mut()
            .filter(|task| task.phase != NodePhase::Ended)
        {
            task.away_since_ms = Some(now_ms);
        }
    }
}

impl NodeTask {
    /// Ends the task without a report from the node; no report is expected any more.
    pub(super) fn end_unreported(&mut self, kind: FaultKind, reason: String) {
        self.phase = NodePhase::Ended;
        self.fault.get_or_insert(Fault { kind, reason });
    }

    fn note(&mut self, report: &NodeReport, now_ms: TimestampMs) {
        match report {
            NodeReport::Accepted { .. }
            | NodeReport::StopStep { .. }
            | NodeReport::Measured(_)
            | NodeReport::Watched(_)
            | NodeReport::KnobAnswered(_)
            | NodeReport::RankMesh(_)
            | NodeReport::RankUnobserved(_)
            | NodeReport::Checkpoints(_) => {}
            NodeReport::Refused { reason: message, .. }
            | NodeReport::PrepareFailed { message }
            | NodeReport::StartFailed { message } => {
                self.end_unreported(FaultKind::Unfit, message.clone());
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
            NodeReport::Looked { seen } => {
                self.sees_first = Some(if *seen { Looked::Seen } else { Looked::Missing });
            }
            NodeReport::ShimStarted { command, .. } => {
                self.phase = self.phase.max(NodePhase::Running);
                self.command.clone_from(command);
            }
            NodeReport::Ended(end) => {
                if end.cause == EndCause::ShimDied {
                    self.end_unreported(
                        FaultKind::Shim,
                        "the process that owned its ranks vanished".into(),
                    );
                }
                self.phase = NodePhase::Ended;
                self.end = Some(end.clone());
            }
            of_a_rank => self.note_rank(of_a_rank, now_ms),
        }
    }

    fn note_rank(&mut self, report: &NodeReport, now_ms: TimestampMs) {
        match report {
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
            NodeReport::RankStalled {
                rank,
                step,
                for_ms,
                cause,
            } => {
                let since_ms = now_ms.saturating_sub_unsigned(*for_ms);
                if let Some(task) = self.local(rank.0) {
                    task.stall = Some(Stall {
                        since_ms,
                        step: *step,
                        cause: cause.clone(),
                    });
                }
            }
            NodeReport::RankRecovered { rank } => {
                if let Some(task) = self.local(rank.0) {
                    task.stall = None;
                }
            }
            NodeReport::RankExited(exit) => {
                if let Some(task) = self.local(exit.rank.0) {
                    task.exit.get_or_insert_with(|| exit.clone());
                }
            }
            _ => {}
        }
    }

    /// Creates the ranks at the start, so that a page can show one that never started.
    pub(super) fn expect_ranks(&mut self, first: u32, nproc: u32) {
        self.first_rank = first;
        for local in 0..nproc {
            self.ranks.entry(local).or_default();
        }
    }

    /// Returns a rank of this node by its global rank; `None` if the rank does not belong to this node.
    fn local(&mut self, rank: u32) -> Option<&mut RankTask> {
        self.ranks.get_mut(&rank.checked_sub(self.first_rank)?)
    }
}
