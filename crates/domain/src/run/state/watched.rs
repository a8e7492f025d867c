//! A run that is only watched: it was started by `lockstep exec` on its nodes, or by hand and found there. Lockstep neither stops nor
//! restarts it.
//!
//! ```text
//!  a node's Watched ──▶ Running ──all nodes Ended──▶ Succeeded │ Failed │ Stopped (the command was ended by a signal)
//!                        ▲    │ node away for long
//!               node back│    ▼
//!                         Lost ──away for a day──▶ Failed
//! ```
//! There are no commands and no requests: events are recorded, and the outcome is judged as for any run. A later start under the same id is
//! the next attempt.

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::spec::Spec;
use crate::run::state::attempt::Attempt;
use crate::run::state::event::Event;
use crate::run::state::judge::{judge, trouble};
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::{NodePhase, NodeTask};
use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport, Watched};
use crate::run::state::timeouts::LOST_AFTER_MS;
use crate::run::state::{Cause, Outcome, RunState};
use crate::time::TimestampMs;

/// A node that is away for longer is given up: how the command ended will not be known any more.
const GIVE_UP_AFTER_MS: i64 = 24 * 3_600_000;

impl Watched {
    fn cause(&self, started: &str) -> String {
        let by = if self.found {
            "by hand, found on its node"
        } else {
            "by lockstep exec"
        };
        format!("{started} {by}")
    }
}

impl Machine {
    /// Creates the run when its first node reports it.
    #[must_use]
    pub fn watch(id: RunId, attempt: AttemptNo, watched: &Watched, now_ms: TimestampMs) -> Self {
        let spec = Spec {
            name: watched.name.clone(),
            script: Some(watched.program.clone()),
            ..Spec::default()
        };
        let (mut machine, _nothing_to_do) = Self::submit(id, spec, now_ms);
        machine.attempts = vec![Attempt::new(attempt, watched.cause("started"), now_ms)];
        machine.watched = true;
        machine.state = RunState::Running;
        machine.started_ms = Some(now_ms);
        machine
    }
}

/// Applies an event to a watched run.
pub(super) fn advance(run: &mut Machine, event: &Event, now_ms: TimestampMs) {
    match event {
        Event::Reported {
            attempt,
            node,
            report: NodeReport::Watched(watched),
        } => run.joined(*attempt, node, watched, now_ms),
        Event::Reported {
            attempt,
            node,
            report,
        } if run.is_live(*attempt) => run.told(node, report, now_ms),
        Event::NodeLost { node } => {
            if let Some(task) = run.living(node) {
                task.away_since_ms.get_or_insert(now_ms);
            }
        }
        Event::NodeBack { node, holds } => run.came_back(node, *holds, now_ms),
        Event::Tick => run.give_up_away_nodes(now_ms),
        _ => {}
    }
    run.settle_watched(now_ms);
    run.record_rank_facts(event);
}

impl Machine {
    fn joined(&mut self, attempt: AttemptNo, node: &NodeName, watched: &Watched, now_ms: TimestampMs) {
        let current = self.current();
        if attempt > current.no && current.ended_ms.is_some() {
            let cause = watched.cause("started again");
            self.attempts.push(Attempt::new(attempt, cause, now_ms));
            (self.state, self.ended_ms, self.outcome) = (RunState::Running, None, None);
        }
        if !self.is_live(attempt) || self.current_mut().task_mut(node).is_some() {
            return;
        }
        let mut task = NodeTask::new(node.clone());
        task.phase = NodePhase::Running;
        task.command.clone_from(&watched.command);
        self.current_mut().nodes.push(task);
    }

    fn told(&mut self, node: &NodeName, report: &NodeReport, now_ms: TimestampMs) {
        let Some(task) = self.living(node) else { return };
        task.away_since_ms = None;
        let failed = match report {
            NodeReport::RankStarted {
                rank,
                local_rank,
                pid,
            } => {
                task.first_rank = rank.0.saturating_sub(*local_rank);
                let rank = task.ranks.entry(*local_rank).or_default();
                // Torchrun may have started the rank again.
                (rank.pid, rank.exit) = (Some(*pid), None);
                false
            }
            NodeReport::FirstStep { rank, step } => {
                if let Some(rank) = rank
                    .0
                    .checked_sub(task.first_rank)
                    .and_then(|local| task.ranks.get_mut(&local))
                {
                    rank.first_step.get_or_insert(*step);
                }
                false
            }
            NodeReport::RankExited(exit) => {
                let local = exit.rank.0.checked_sub(task.first_rank);
                if let Some(rank) = local.and_then(|local| task.ranks.get_mut(&local)) {
                    rank.exit.get_or_insert_with(|| exit.clone());
                }
                false
            }
            NodeReport::Ended(end) => {
                task.phase = NodePhase::Ended;
                task.end = Some(end.clone());
                end.code != Some(0) && end.cause != EndCause::Stopped
            }
            _ => false,
        };
        if failed {
            self.failed(
                unknown_end(node, report).or_else(|| trouble(node, report)),
                now_ms,
            );
        }
    }

    fn failed(&mut self, what: Option<Outcome>, now_ms: TimestampMs) {
        let attempt = self.current_mut();
        attempt.progress.failing_since_ms.get_or_insert(now_ms);
        attempt.progress.first_failure = attempt.progress.first_failure.take().or(what);
    }

    fn came_back(&mut self, node: &NodeName, holds: bool, now_ms: TimestampMs) {
        let Some(task) = self.living(node) else { return };
        task.away_since_ms = None;
        if !holds {
            self.mark_lost(
                node,
                "its agent came back without any trace of the command",
                now_ms,
            );
        }
    }

    fn give_up_away_nodes(&mut self, now_ms: TimestampMs) {
        let silent = self.current().nodes.iter().find(|task| {
            task.phase != NodePhase::Ended
                && task
                    .away_since_ms
                    .is_some_and(|since| now_ms - since > GIVE_UP_AFTER_MS)
        });
        if let Some(node) = silent.map(|task| task.node.clone()) {
            self.mark_lost(&node, "its agent has not been heard for a day", now_ms);
        }
    }

    fn mark_lost(&mut self, node: &NodeName, why: &str, now_ms: TimestampMs) {
        if let Some(task) = self.living(node) {
            task.phase = NodePhase::Ended;
            task.end = Some(NodeEnd {
                cause: EndCause::ShimDied,
                ..NodeEnd::default()
            });
        }
        let message = format!("node {node}: {why}, so how it ended is not known");
        self.failed(Some(Outcome::at_node(Cause::AgentLost, node, message)), now_ms);
    }

    fn living(&mut self, node: &NodeName) -> Option<&mut NodeTask> {
        self.current_mut()
            .task_mut(node)
            .filter(|task| task.phase != NodePhase::Ended)
    }

    fn settle_watched(&mut self, now_ms: TimestampMs) {
        let attempt = self.current();
        if attempt.ended_ms.is_some() || attempt.nodes.is_empty() {
            return;
        }
        if attempt.nodes.iter().any(|task| task.phase != NodePhase::Ended) {
            let lost = |task: &NodeTask| {
                task.phase != NodePhase::Ended
                    && task
                        .away_since_ms
                        .is_some_and(|since| now_ms - since > LOST_AFTER_MS)
            };
            self.state = if attempt.nodes.iter().any(lost) {
                RunState::Lost
            } else {
                RunState::Running
            };
            return;
        }
        let (state, outcome) = ending(attempt);
        self.state = state;
        self.ended_ms = Some(now_ms);
        self.outcome = Some(outcome.clone());
        let attempt = self.current_mut();
        (attempt.ended_ms, attempt.outcome) = (Some(now_ms), Some(outcome));
    }
}

/// Only the process that started a job learns how it ended. If the exits of its ranks are known, they say more and take precedence.
fn unknown_end(node: &NodeName, report: &NodeReport) -> Option<Outcome> {
    let NodeReport::Ended(end) = report else {
        return None;
    };
    let unknown = end.cause == EndCause::Finished && end.code.is_none() && end.signal.is_none();
    unknown.then(|| {
        let message = format!("it ended on node {node}, and only the process that started it knows how");
        Outcome::at_node(Cause::Unknown, node, message)
    })
}

/// Returns how a watched run ended. A signal that a user sent ends it on all nodes; ranks that fail because of it are not a failure of the
/// training.
fn ending(attempt: &Attempt) -> (RunState, Outcome) {
    let stopped = |task: &&NodeTask| {
        task.end
            .as_ref()
            .is_some_and(|end| end.cause == EndCause::Stopped)
    };
    if let Some(task) = attempt.nodes.iter().find(stopped) {
        let message = format!("ended by a signal on node {}", task.node);
        return (
            RunState::Stopped,
            Outcome::at_node(Cause::Stopped, &task.node, message),
        );
    }
    let outcome = judge(attempt, DesiredState::Run);
    let state = match outcome.cause {
        Cause::Succeeded => RunState::Succeeded,
        _ => RunState::Failed,
    };
    (state, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::runs::RunView;
    use crate::ident::Rank;
    use crate::run::state::RankExit;
    use crate::run::stored::V1;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).expect("a name")
    }

    fn started() -> Machine {
        let id = RunId::new("train-1").expect("a name");
        let machine = Machine::watch(id, AttemptNo(1), &watched(), 0);
        told(&machine, "n1", NodeReport::Watched(watched()), 0)
    }

    #[test]
    fn a_found_job_ends_like_its_ranks_or_with_an_unknown_result() {
        let ended_somehow = || ended(None, EndCause::Finished);
        let machine = told(&started(), "n1", rank(0, 0), 1);
        let unknown = told(&machine, "n1", ended_somehow(), 2);
        let outcome = unknown.outcome.expect("why");
        assert_eq!((unknown.state, outcome.cause), (RunState::Failed, Cause::Unknown));
        let message = outcome.message.to_string();
        assert!(
            message.contains("only the process that started it knows how"),
            "{message}"
        );
        let exit = RankExit {
            code: Some(3),
            ..RankExit::default()
        };
        let failed = told(&machine, "n1", NodeReport::RankExited(exit), 2);
        let failed = told(&failed, "n1", ended_somehow(), 3);
        assert_eq!(failed.outcome.expect("why").cause, Cause::ExitCode);
        let found = Watched {
            found: true,
            ..watched()
        };
        let id = RunId::new("nightly").expect("a name");
        let machine = Machine::watch(id, AttemptNo(1), &found, 0);
        assert_eq!(machine.current().cause, "started by hand, found on its node");
    }

    fn watched() -> Watched {
        Watched {
            name: "train".into(),
            program: "train.py".into(),
            command: "torchrun train.py".into(),
            pid: 7,
            found: false,
        }
    }

    fn told(machine: &Machine, name: &str, report: NodeReport, now_ms: i64) -> Machine {
        let event = Event::Reported {
            attempt: AttemptNo(1),
            node: node(name),
            report,
        };
        crate::run::state::advance(machine, &event, now_ms).0
    }

    fn ended(code: Option<i32>, cause: EndCause) -> NodeReport {
        NodeReport::Ended(NodeEnd {
            code,
            cause,
            ..NodeEnd::default()
        })
    }

    fn rank(rank: u32, local_rank: u32) -> NodeReport {
        NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank,
            pid: 100 + rank,
        }
    }

    #[test]
    fn two_nodes_are_one_run_that_ends_when_both_have() {
        let machine = told(&started(), "n2", NodeReport::Watched(watched()), 1);
        let machine = told(&machine, "n2", rank(2, 0), 2);
        assert_eq!(machine.current().nodes.len(), 2);
        assert_eq!(
            RunView::from(&machine).attempts[0].nodes[1].ranks[0].rank,
            Rank(2)
        );
        let machine = told(&machine, "n1", ended(Some(0), EndCause::Finished), 3);
        assert_eq!(machine.state, RunState::Running);
        let machine = told(&machine, "n2", ended(Some(0), EndCause::Finished), 4);
        assert_eq!((machine.state, machine.ended_ms), (RunState::Succeeded, Some(4)));
        assert!(RunView::from(&machine).watched);
    }

    #[test]
    fn the_rank_that_failed_is_named_and_a_signal_from_outside_is_no_failure() {
        let machine = told(&told(&started(), "n1", rank(0, 0), 1), "n1", rank(1, 1), 1);
        let exit = RankExit {
            rank: Rank(1),
            code: Some(1),
            error_type: Some("ValueError".into()),
            at_ns: 5,
            ..RankExit::default()
        };
        let failed = told(&machine, "n1", NodeReport::RankExited(exit), 2);
        assert_eq!(failed.state, RunState::Running, "torchrun may start it again");
        let failed = told(&failed, "n1", ended(Some(1), EndCause::Finished), 3);
        let outcome = failed.outcome.clone().expect("why");
        assert_eq!((failed.state, outcome.rank), (RunState::Failed, Some(Rank(1))));
        let stopped = told(&machine, "n1", ended(None, EndCause::Stopped), 3);
        assert_eq!(stopped.state, RunState::Stopped);
    }

    #[test]
    fn a_rank_that_was_started_again_has_not_failed() {
        let machine = told(&started(), "n1", rank(0, 0), 1);
        let exit = RankExit {
            code: Some(1),
            ..RankExit::default()
        };
        let machine = told(&machine, "n1", NodeReport::RankExited(exit), 2);
        let machine = told(&machine, "n1", rank(0, 0), 3);
        let machine = told(&machine, "n1", ended(Some(0), EndCause::Finished), 4);
        assert_eq!(machine.state, RunState::Succeeded);
    }

    #[test]
    fn an_agent_that_is_away_loses_sight_and_no_more() {
        let step = |machine: &Machine, event: Event, at| crate::run::state::advance(machine, &event, at).0;
        let away = step(&started(), Event::NodeLost { node: node("n1") }, 0);
        let lost = step(&away, Event::Tick, LOST_AFTER_MS + 1);
        assert_eq!(lost.state, RunState::Lost);
        let back = |holds| {
            step(
                &lost,
                Event::NodeBack {
                    node: node("n1"),
                    holds,
                },
                LOST_AFTER_MS + 2,
            )
        };
        assert_eq!(back(true).state, RunState::Running);
        assert_eq!(back(false).state, RunState::Failed);
        assert_eq!(
            step(&lost, Event::Tick, GIVE_UP_AFTER_MS + 1).state,
            RunState::Failed
        );
    }

    #[test]
    fn a_node_gets_no_command_and_a_second_start_is_the_next_attempt() {
        let stop = Event::StopRequested {
            grace_ms: 0,
            after: None,
        };
        let (after, actions) = crate::run::state::advance(&started(), &stop, 1);
        assert_eq!((after, actions), (started(), vec![]));
        let over = told(&started(), "n1", ended(Some(0), EndCause::Finished), 2);
        let late = told(&over, "n1", rank(0, 0), 3);
        assert_eq!(late, over, "what comes late changes nothing");
        let again = Event::Reported {
            attempt: AttemptNo(2),
            node: node("n1"),
            report: NodeReport::Watched(watched()),
        };
        let again = crate::run::state::advance(&over, &again, 4).0;
        assert_eq!((again.state, again.attempts.len()), (RunState::Running, 2));
        let json = serde_json::to_string(&V1::from(&again)).expect("JSON");
        let stored: V1<'_> = serde_json::from_str(&json).expect("a machine");
        assert_eq!(Machine::from(stored), again);
    }
}
