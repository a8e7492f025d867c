//! The transitions as stories, and random walks that no story thought of.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::ident::Rank;
use crate::run::state::{Prepared, RankExit};

/// A run and the clock it lives by.
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
        let nodes = (0..self.machine.spec.node_count())
            .map(|n| node(&format!("n{n}")))
            .collect();
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
        self.place();
        for n in 0..self.machine.spec.node_count() {
            self.report(&format!("n{n}"), prepared());
        }
        for n in 0..self.machine.spec.node_count() {
            let name = format!("n{n}");
            self.report(
                &name,
                NodeReport::ShimStarted {
                    pid: 1,
                    command: "torchrun".into(),
                },
            );
            for local_rank in 0..2 {
                let rank = Rank(n * 2 + local_rank);
                self.report(
                    &name,
                    NodeReport::RankStarted {
                        rank,
                        local_rank,
                        pid: 100 + rank.0,
                    },
                );
            }
        }
    }

    fn outcome(&self) -> (RunState, &str, Option<&str>, Option<u32>) {
        let outcome = self.machine.outcome.as_ref().unwrap();
        (
            self.machine.state,
            &outcome.cause,
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

fn ended(code: i32) -> NodeReport {
    NodeReport::Ended(NodeEnd {
        code: Some(code),
        ..NodeEnd::default()
    })
}

/// An action as the stories write it: `prepare n0`, `stop n1 10000`.
fn word(action: &Action) -> String {
    match &action.task {
        Task::Place { nodes } => format!("place {nodes}"),
        Task::Command {
            node,
            command: NodeCommand::Prepare { .. },
        } => format!("prepare {node}"),
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
    let view = story.machine.view();
    assert_eq!(
        (view.summary.world_size, view.attempts[0].nodes[1].ranks[0].rank),
        (4, Rank(2))
    );
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
            .machine
            .outcome
            .as_ref()
            .unwrap()
            .message
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
    assert_eq!(
        story.machine.outcome.unwrap().message,
        "rank 1 on node n0 raised ValueError: bad batch"
    );
}

#[test]
fn a_wished_stop_ends_as_stopped_though_ranks_die_by_signals() {
    let mut story = Story::running(1, 5);
    assert_eq!(
        story.event(&Event::StopRequested { grace_ms: 30_000 }),
        ["stop n0 30000"]
    );
    assert_eq!(story.event(&Event::StopRequested { grace_ms: 60_000 }), [""; 0]);
    assert_eq!(story.event(&Event::StopRequested { grace_ms: 0 }), ["stop n0 0"]);
    story.report("n0", killed(0, 15, 1));
    story.report("n0", killed(1, 9, 2));
    story.report("n0", ended(1));
    assert_eq!(story.outcome(), (RunState::Stopped, "stopped", None, None));
    assert_eq!(story.wait(100_000), [""; 0]);
}

#[test]
fn a_failure_before_the_stop_stays_a_failure_but_is_not_restarted() {
    let mut story = Story::running(1, 5);
    story.report("n0", killed(1, 9, 1));
    story.event(&Event::StopRequested { grace_ms: 30_000 });
    story.report("n0", ended(1));
    assert_eq!(story.outcome(), (RunState::Failed, "signal", Some("n0"), Some(1)));
}

#[test]
fn a_queued_run_stops_at_once_and_a_late_placement_changes_nothing() {
    let mut story = Story::submit(1, 0);
    story.event(&Event::CannotPlace {
        reason: "no node accepts runs".into(),
    });
    assert_eq!(story.outcome(), (RunState::Queued, "no_nodes", None, None));
    story.event(&Event::StopRequested { grace_ms: 0 });
    assert_eq!(story.machine.state, RunState::Stopped);
    assert_eq!(story.place(), [""; 0]);
}

#[test]
fn a_node_that_cannot_prepare_stops_the_others_and_is_not_tried_again() {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", prepared());
    assert_eq!(
        story.report(
            "n1",
            NodeReport::PrepareFailed {
                message: "no torch".into()
            }
        ),
        ["stop n0 10000"]
    );
    story.report(
        "n0",
        NodeReport::Ended(NodeEnd {
            cause: EndCause::NeverStarted,
            ..NodeEnd::default()
        }),
    );
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "prepare_failed", Some("n1"), None)
    );
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
fn a_node_that_comes_back_empty_has_lost_its_ranks() {
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
fn a_node_that_was_prepared_and_comes_back_empty_is_not_waited_for() {
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
fn a_stop_comes_to_an_end_without_a_node_that_never_returns() {
    let mut story = Story::running(2, 0);
    story.event(&Event::NodeLost { node: node("n1") });
    story.event(&Event::StopRequested { grace_ms: 1_000 });
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

fn some_report() -> impl Strategy<Value = NodeReport> {
    prop_oneof![
        1 => Just(NodeReport::Accepted { command: 1 }),
        1 => Just(NodeReport::Refused { command: 1, reason: String::new() }),
        4 => Just(prepared()),
        1 => Just(NodeReport::PrepareFailed { message: String::new() }),
        4 => Just(NodeReport::ShimStarted { pid: 1, command: String::new() }),
        1 => Just(NodeReport::StartFailed { message: String::new() }),
        4 => (0..6u32, 0..2u32).prop_map(|(rank, local_rank)| NodeReport::RankStarted { rank: Rank(rank), local_rank, pid: 1 }),
        1 => (0..6u32).prop_map(|rank| NodeReport::FirstStep { rank: Rank(rank), step: 1 }),
        1 => (0..6u32, 0..2).prop_map(|(rank, code)| exited(rank, code, 1)),
        1 => (0..2).prop_map(ended),
    ]
}

fn some_event() -> impl Strategy<Value = Event> {
    let name = || (0..3u32).prop_map(|n| node(&format!("n{n}")));
    let attempt = || (1..4u32).prop_map(AttemptNo);
    prop_oneof![
        3 => attempt().prop_map(|attempt| Event::Placed { attempt, nodes: vec![node("n0"), node("n1")] }),
        1 => Just(Event::CannotPlace { reason: "busy".into() }),
        16 => (attempt(), name(), some_report())
            .prop_map(|(attempt, node, report)| Event::Reported { attempt, node, report }),
        1 => (0..3u64).prop_map(|grace_ms| Event::StopRequested { grace_ms }),
        1 => name().prop_map(|node| Event::NodeLost { node }),
        1 => (name(), any::<bool>()).prop_map(|(node, holds)| Event::NodeBack { node, holds }),
        4 => Just(Event::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_run_stays_sane(
        walk in prop::collection::vec((some_event(), 0..70_000i64), 1..120),
    ) {
        let mut story = Story::submit(2, 2);
        let mut keys = BTreeSet::from([(1, 1)]);
        for (event, pause_ms) in walk {
            story.now_ms += pause_ms;
            let before = story.machine.clone();
            let from = story.actions.len();
            story.event(&event);
            let machine = &story.machine;
            if before.state.is_final() {
                prop_assert_eq!(&before, machine, "a final state moved");
            }
            for action in &story.actions[from..] {
                prop_assert!(keys.insert((action.attempt.0, action.n)), "action {:?} twice", action);
                prop_assert_eq!(action.attempt, machine.current().no);
            }
            let live = machine.attempts.iter().filter(|attempt| attempt.ended_ms.is_none()).count();
            prop_assert!(live <= 1, "two attempts live at once");
            prop_assert_eq!(machine.state.is_final(), machine.ended_ms.is_some());
            prop_assert!(machine.attempts.len() <= 3, "more attempts than the budget allows");
            for attempt in machine.attempts.iter().filter(|attempt| attempt.ended_ms.is_some()) {
                prop_assert!(attempt.nodes.iter().all(|task| task.phase == NodePhase::Ended));
            }
            if machine.state == RunState::Stopping {
                let told = |task: &NodeTask| task.phase == NodePhase::Ended || task.stop_told_ms.is_some();
                prop_assert!(machine.current().nodes.iter().all(told), "a node was not told to stop");
            }
            let text = serde_json::to_string(machine).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Machine>(&text).unwrap(), machine);
        }
        let no = story.machine.current().no;
        story.event(&Event::StopRequested { grace_ms: 0 });
        for name in ["n0", "n1"] {
            story.event(&Event::Reported { attempt: no, node: node(name), report: ended(1) });
        }
        prop_assert!(story.machine.state.is_final(), "a stopped run whose nodes have ended is not over");
    }
}
