//! Scenario tests of transitions; in the sub-modules also the table of all transitions, and random walks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::api::runs::RunView;
use crate::ident::Rank;
use crate::run::state::{
    ABANDON_AFTER_MS, ALL_AWAY_MS, EndCause, FaultKind, LOST_AFTER_MS, Measured, NodeEnd, NodeReport,
    PREPARE_TIMEOUT_MS, Prepared, RankExit, StallCause, StopPoint,
};
use crate::run::stored::V1;

mod in_place;
mod judging;
mod knobs;
mod larger_batch;
mod nodes;
mod preflight;
mod random_walks;
mod rank_facts;
mod restart;
mod resume;
mod table;

/// A run and its clock.
struct Story {
    machine: Machine,
    now_ms: i64,
    actions: Vec<Action>,
}

impl Story {
    fn submit(nodes: u32, max_restarts: u32) -> Self {
        let spec = Spec {
            recipe: Some("ddp".into()),
            nodes: Some(nodes),
            nproc_per_node: Some(2),
            max_restarts,
            ..Spec::default()
        };
        let (machine, actions) = Machine::submit(RunId::new("ddp-1").unwrap(), spec, 0);
        Self {
            machine,
            now_ms: 0,
            actions,
        }
    }

    fn event(&mut self, event: &Event) -> Vec<String> {
        self.now_ms += 10;
        let (machine, actions) = advance(&self.machine, event, self.now_ms);
        self.machine = machine;
        self.actions.extend(actions.clone());
        actions.iter().map(word).collect()
    }

    fn place(&mut self) -> Vec<String> {
        let nodes: Vec<String> = (0..self.machine.spec.node_count())
            .map(|n| format!("n{n}"))
            .collect();
        self.place_on(&nodes)
    }

    fn place_on(&mut self, names: &[String]) -> Vec<String> {
        let nodes = names.iter().map(|name| node(name)).collect();
        self.event(&Event::Placed {
            attempt: self.machine.current().no,
            nodes,
        })
    }

    fn report(&mut self, name: &str, report: NodeReport) -> Vec<String> {
        let attempt = self.machine.current().no;
        self.event(&Event::Reported {
            attempt,
            node: node(name),
            report,
        })
    }

    fn wait(&mut self, ms: i64) -> Vec<String> {
        self.now_ms += ms;
        self.event(&Event::Tick)
    }

    fn running(nodes: u32, max_restarts: u32) -> Self {
        let mut story = Self::submit(nodes, max_restarts);
        story.run_attempt();
        story
    }

    fn run_attempt(&mut self) {
        let names: Vec<String> = (0..self.machine.spec.node_count())
            .map(|n| format!("n{n}"))
            .collect();
        self.run_attempt_on(&names);
    }

    fn run_attempt_on(&mut self, names: &[String]) {
        self.place_on(names);
        for name in names {
            self.report(name, prepared());
        }
        for (n, name) in (0..).zip(names) {
            self.report(
                name,
                NodeReport::ShimStarted {
                    pid: 1,
                    command: "torchrun".into(),
                    kept_by: String::new(),
                },
            );
            for local_rank in 0..2 {
                let rank = Rank(n * 2 + local_rank);
                self.report(
                    name,
                    NodeReport::RankStarted {
                        rank,
                        local_rank,
                        pid: 100 + rank.0,
                    },
                );
            }
        }
    }

    /// All ranks end with this code, then their node tasks.
    fn end_all(&mut self, code: i32) {
        let tasks = self.machine.current().nodes.clone();
        for task in tasks {
            for local in task.ranks.keys() {
                self.report(
                    task.node.as_str(),
                    exited(task.first_rank + local, code, self.now_ms * 1_000_000),
                );
            }
            self.report(task.node.as_str(), ended(code));
        }
    }

    fn message(&self) -> String {
        self.machine.outcome.as_ref().unwrap().message.to_string()
    }

    fn outcome(&self) -> (RunState, &str, Option<&str>, Option<u32>) {
        let outcome = self.machine.outcome.as_ref().unwrap();
        (
            self.machine.state,
            outcome.cause.as_str(),
            outcome.node.as_deref(),
            outcome.rank.map(|rank| rank.0),
        )
    }
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn prepared() -> NodeReport {
    NodeReport::Prepared(Prepared {
        address: "10.0.0.1".into(),
        port: 29_500,
        nproc_default: 2,
        turns_live: true,
        ..Prepared::default()
    })
}

fn killed(rank: u32, signal: i32, at_ns: i64) -> NodeReport {
    NodeReport::RankExited(RankExit {
        rank: Rank(rank),
        signal: Some(signal),
        at_ns,
        ..RankExit::default()
    })
}

fn exited(rank: u32, code: i32, at_ns: i64) -> NodeReport {
    NodeReport::RankExited(RankExit {
        rank: Rank(rank),
        code: Some(code),
        at_ns,
        ..RankExit::default()
    })
}

fn raised(rank: u32, kind: &str, message: &str, at_ns: i64) -> NodeReport {
    NodeReport::RankExited(RankExit {
        rank: Rank(rank),
        code: Some(1),
        error_type: Some(kind.into()),
        message: Some(message.into()),
        at_ns,
        ..RankExit::default()
    })
}

/// The exit of a rank that failed after a step.
fn failed_after(rank: u32, step: u64) -> NodeReport {
    NodeReport::RankExited(RankExit {
        rank: Rank(rank),
        code: Some(1),
        error_type: Some("ValueError".into()),
        last_step: Some(step),
        at_ns: 1,
        ..RankExit::default()
    })
}

fn first_step(rank: u32) -> NodeReport {
    NodeReport::FirstStep {
        rank: Rank(rank),
        step: 1,
    }
}

fn ended(code: i32) -> NodeReport {
    NodeReport::Ended(NodeEnd {
        code: Some(code),
        ..NodeEnd::default()
    })
}

fn stop_now(grace_ms: u64) -> Event {
    Event::StopRequested {
        grace_ms,
        after: None,
    }
}

/// Returns an action in the form that the tests use: `prepare n0`, `stop n1 10000`.
fn word(action: &Action) -> String {
    match &action.task {
        Task::Place { nodes } => format!("place {nodes}"),
        Task::Command {
            node,
            command: NodeCommand::Prepare { .. },
        } => format!("prepare {node}"),
        Task::Command {
            node,
            command: NodeCommand::LookFor { path },
        } => format!("look {node} {path}"),
        Task::Command {
            node,
            command: NodeCommand::Measure(measure),
        } => {
            let does = if measure.listens { "listens" } else { "comes" };
            format!(
                "measure {} {node} {does} {}:{} for {}",
                measure.round, measure.address, measure.port, measure.peer
            )
        }
        Task::Command {
            node,
            command: NodeCommand::Start(start),
        } => {
            format!(
                "start {node} {}/{} x{} {}:{}",
                start.node_rank, start.nnodes, start.nproc, start.master_addr, start.master_port
            )
        }
        Task::Command {
            node,
            command: NodeCommand::Stop { grace_ms },
        } => format!("stop {node} {grace_ms}"),
        Task::Command {
            node,
            command: NodeCommand::StopAfter { step, .. },
        } => format!("stop {node} after {step}"),
        Task::Command {
            node,
            command: NodeCommand::TurnLive { live, set },
        } => {
            let value = |value: &Option<String>| value.clone().unwrap_or_default();
            let set = set.iter().map(|(knob, new)| format!("{knob}={}", value(new)));
            format!("turn {live} {node} {}", set.collect::<Vec<_>>().join(" "))
        }
        Task::Command {
            node,
            command: NodeCommand::Remove(order),
        } => format!("remove {node} {}", order.remove.join(" ")),
        Task::Command {
            command: NodeCommand::Checkpoints(_),
            ..
        } => panic!("the old order is not given any more"),
    }
}

#[test]
fn a_run_goes_its_way() {
    let mut story = Story::submit(2, 0);
    assert_eq!(story.actions.iter().map(word).collect::<Vec<_>>(), ["place 2"]);
    assert_eq!(story.machine.state, RunState::Queued);
    assert_eq!(story.place(), ["prepare n0", "prepare n1"]);
    assert_eq!(story.report("n1", prepared()), [""; 0]);
    assert_eq!(story.machine.state, RunState::Preparing);
    assert_eq!(
        story.report("n0", prepared()),
        ["start n0 0/2 x2 10.0.0.1:29500", "start n1 1/2 x2 10.0.0.1:29500"]
    );
    assert_eq!(story.machine.state, RunState::Starting);
    story.report(
        "n0",
        NodeReport::RankStarted {
            rank: Rank(0),
            local_rank: 0,
            pid: 7,
        },
    );
    assert_eq!(
        (story.machine.state, story.machine.started_ms),
        (RunState::Running, Some(story.now_ms))
    );
    story.report(
        "n0",
        NodeReport::FirstStep {
            rank: Rank(0),
            step: 1,
        },
    );
    for (name, first) in [("n0", 0), ("n1", 2)] {
        story.report(name, exited(first, 0, 5));
        story.report(name, exited(first + 1, 0, 5));
        assert_eq!(story.report(name, ended(0)), [""; 0]);
    }
    assert_eq!(story.outcome(), (RunState::Succeeded, "succeeded", None, None));
    let view = RunView::from(&story.machine);
    assert_eq!(
        (view.summary.world_size, view.attempts[0].nodes[1].ranks[0].rank),
        (4, Rank(2))
    );
}

#[test]
fn a_state_has_the_time_at_which_it_began() {
    let mut story = Story::submit(1, 0);
    assert_eq!(story.machine.state_since_ms, Some(0));
    story.run_attempt();
    let running = &story.machine;
    assert_eq!(
        (running.state, running.started_ms.is_some()),
        (RunState::Running, true)
    );
    assert_eq!(
        running.state_since_ms, running.started_ms,
        "its second rank changes nothing"
    );
    story.end_all(0);
    let ended_ms = story.machine.ended_ms;
    assert!(ended_ms.is_some());
    assert_eq!(RunView::from(&story.machine).state_since_ms, ended_ms);
    // A run that an older version stored.
    story.machine.state_since_ms = None;
    assert_eq!(RunView::from(&story.machine).state_since_ms, ended_ms);
}

#[test]
fn the_first_rank_that_fails_is_the_cause_and_all_nodes_stop_at_once() {
    let mut story = Story::running(2, 0);
    assert_eq!(
        story.report("n1", exited(3, 1, 2_000)),
        ["stop n0 10000", "stop n1 10000"]
    );
    assert_eq!(story.machine.state, RunState::Stopping);
    assert_eq!(story.report("n0", killed(1, 9, 1_000)), [""; 0]);
    story.report("n0", killed(0, 15, 3_000));
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Stopping);
    story.report("n1", ended(1));
    assert_eq!(story.outcome(), (RunState::Failed, "signal", Some("n0"), Some(1)));
    assert!(
        story
            .message()
            .contains("rank 1 on node n0 was killed by signal 9 (SIGKILL)")
    );
}

#[test]
fn an_exception_is_named_with_its_type_and_message() {
    let mut story = Story::running(1, 0);
    let exit = RankExit {
        rank: Rank(1),
        code: Some(1),
        error_type: Some("ValueError".into()),
        message: Some("bad batch".into()),
        at_ns: 1,
        ..RankExit::default()
    };
    story.report("n0", NodeReport::RankExited(exit));
    story.report("n0", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "exception", Some("n0"), Some(1))
    );
    assert_eq!(story.message(), "rank 1 on node n0 raised ValueError: bad batch");
}

#[test]
fn a_requested_stop_ends_as_stopped_though_ranks_die_by_signals() {
    let mut story = Story::running(1, 5);
    assert_eq!(story.event(&stop_now(30_000)), ["stop n0 30000"]);
    assert_eq!(story.event(&stop_now(60_000)), [""; 0]);
    assert_eq!(story.event(&stop_now(0)), ["stop n0 0"]);
    story.report("n0", killed(0, 15, 1));
    story.report("n0", killed(1, 9, 2));
    story.report("n0", ended(1));
    assert_eq!(story.outcome(), (RunState::Stopped, "stopped", None, None));
    assert_eq!(story.wait(100_000), [""; 0]);
}

#[test]
fn a_failure_before_the_stop_stays_with_its_attempt_and_the_run_ends_as_requested() {
    let mut story = Story::running(1, 5);
    story.report("n0", killed(1, 9, 1));
    story.event(&stop_now(30_000));
    story.report("n0", ended(1));
    assert_eq!(story.outcome(), (RunState::Stopped, "stopped", None, None));
    assert_eq!(
        story.message(),
        "stopped as asked; before that, rank 1 on node n0 was killed by signal 9 (SIGKILL)"
    );
    let attempt = story.machine.current().outcome.as_ref().unwrap();
    assert_eq!(attempt.cause, Cause::Signal);
}

#[test]
fn a_queued_run_stops_at_once_and_a_late_placement_changes_nothing() {
    let mut story = Story::submit(1, 0);
    story.event(&Event::CannotPlace {
        reason: "no node accepts runs".into(),
        permanent: false,
    });
    assert_eq!(story.outcome(), (RunState::Queued, "no_nodes", None, None));
    story.event(&stop_now(0));
    assert_eq!(story.machine.state, RunState::Stopped);
    assert_eq!(story.place(), [""; 0]);
}

#[test]
fn restarts_wait_longer_each_time_and_end_with_the_budget() {
    let mut story = Story::running(1, 2);
    for pause in [1_000, 2_000] {
        story.report(
            "n0",
            NodeReport::FirstStep {
                rank: Rank(0),
                step: 1,
            },
        );
        story.report("n0", killed(0, 9, 1));
        story.report("n0", ended(1));
        assert_eq!(story.machine.state, RunState::Restarting);
        assert_eq!(story.wait(pause - 100), [""; 0]);
        assert_eq!(story.wait(100), ["place 1"]);
        assert_eq!(story.machine.current().cause, "restart after signal");
        story.run_attempt();
        assert_eq!(story.machine.state, RunState::Running);
    }
    story.report("n0", killed(0, 9, 1));
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Failed);
    assert_eq!(story.machine.attempts.len(), 3);
    assert!(story.message().ends_with("all 2 restarts are used up"));
}

#[test]
fn restarts_without_a_single_step_are_given_up() {
    let mut story = Story::running(1, 1_000);
    for _ in 0..2 {
        story.report("n0", exited(0, 1, 1));
        story.report("n0", ended(1));
        story.wait(60_000);
        story.run_attempt();
    }
    story.report("n0", exited(0, 1, 1));
    story.report("n0", ended(1));
    assert_eq!(
        (story.machine.state, story.machine.attempts.len()),
        (RunState::Failed, 3)
    );
    assert_eq!(
        story.message(),
        "rank 0 on node n0 exited with 1; 3 attempts in a row ended without a single step, so it is not tried again"
    );
}

#[test]
fn two_failures_at_the_same_step_end_a_run_and_the_step_is_named() {
    let mut story = Story::running(1, 1_000);
    for step in [30, 41] {
        story.report("n0", first_step(0));
        story.report("n0", failed_after(0, step));
        story.report("n0", ended(1));
        assert_eq!(story.machine.state, RunState::Restarting);
        story.wait(60_000);
        story.run_attempt();
    }
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 41));
    story.report("n0", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "exception", Some("n0"), Some(0))
    );
    assert!(
        story
            .message()
            .ends_with("2 attempts in a row failed after the same step, 41, so it is not tried again"),
        "{}",
        story.message()
    );
}

#[test]
fn a_port_in_use_costs_no_restart_but_is_not_tried_forever() {
    let taken = || {
        NodeReport::Ended(NodeEnd {
            code: Some(1),
            message: "The server socket has failed to listen on any local network address. name: EADDRINUSE"
                .into(),
            ..NodeEnd::default()
        })
    };
    let mut story = Story::running(1, 0);
    for attempt in 2..=4 {
        story.report("n0", taken());
        assert_eq!(story.machine.state, RunState::Restarting);
        assert_eq!(story.wait(60_000), ["place 1"]);
        assert_eq!(story.machine.current().no, AttemptNo(attempt));
        story.run_attempt();
    }
    story.report("n0", taken());
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "port_in_use", Some("n0"), None)
    );
    assert!(
        story
            .message()
            .ends_with("the port was taken in 4 attempts, so it is not tried again")
    );
}

#[test]
fn an_agent_that_is_away_loses_the_run_only_from_sight() {
    let mut story = Story::running(1, 0);
    story.event(&Event::NodeLost { node: node("n0") });
    story.wait(LOST_AFTER_MS - 100);
    assert_eq!(story.machine.state, RunState::Running);
    story.wait(200);
    assert_eq!(story.machine.state, RunState::Lost);
    story.event(&Event::NodeBack {
        node: node("n0"),
        holds: true,
    });
    assert_eq!(story.machine.state, RunState::Running);
}

#[test]
fn a_node_that_reconnects_without_the_attempt_has_lost_its_ranks() {
    let mut story = Story::running(2, 0);
    assert_eq!(
        story.event(&Event::NodeBack {
            node: node("n1"),
            holds: false
        }),
        ["stop n0 10000"]
    );
    story.report("n0", ended(0));
    assert_eq!(story.outcome(), (RunState::Failed, "shim_died", Some("n1"), None));
}

#[test]
fn a_prepared_node_that_reconnects_without_the_attempt_is_not_waited_for() {
    for all_prepared in [false, true] {
        let mut story = Story::submit(2, 0);
        story.place();
        story.report("n1", prepared());
        if all_prepared {
            story.report("n0", prepared());
        }
        let back = Event::NodeBack {
            node: node("n1"),
            holds: false,
        };
        assert_eq!(
            story.event(&back),
            ["stop n0 10000"],
            "all prepared: {all_prepared}"
        );
        story.report("n0", ended(0));
        assert_eq!(story.outcome(), (RunState::Failed, "shim_died", Some("n1"), None));
    }
}

#[test]
fn a_stop_ends_without_a_node_that_never_returns() {
    let mut story = Story::running(2, 0);
    story.event(&Event::NodeLost { node: node("n1") });
    story.event(&stop_now(1_000));
    story.report("n0", ended(1));
    story.wait(ABANDON_AFTER_MS - 1_000);
    assert_eq!(story.machine.state, RunState::Stopping);
    story.wait(2_000);
    assert_eq!(story.machine.state, RunState::Stopped);
}

#[test]
fn reports_of_an_older_attempt_change_nothing() {
    let mut story = Story::running(1, 1);
    story.report(
        "n0",
        NodeReport::FirstStep {
            rank: Rank(0),
            step: 1,
        },
    );
    story.report("n0", killed(0, 9, 1));
    story.report("n0", ended(1));
    story.wait(2_000);
    story.run_attempt();
    let before = story.machine.clone();
    let late = Event::Reported {
        attempt: AttemptNo(1),
        node: node("n0"),
        report: ended(1),
    };
    assert_eq!(story.event(&late), [""; 0]);
    assert_eq!(story.machine, before);
}
