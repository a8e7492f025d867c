#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::ident::{Rank, RunId};
use crate::run::spec::Spec;
use crate::run::state::{Action, EndCause, Event, NodeEnd, NodeReport, Prepared, Task, advance};

const RESTORED_MS: i64 = 1_000_000;

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn submitted(nodes: u32) -> Machine {
    let spec = Spec {
        recipe: Some("ddp".into()),
        nodes: Some(nodes),
        nproc_per_node: Some(1),
        max_restarts: 3,
        ..Spec::default()
    };
    Machine::submit(RunId::new("r-1").unwrap(), spec, 0).0
}

fn take(machine: &mut Machine, event: &Event) -> Vec<Action> {
    let (next, actions) = advance(machine, event, RESTORED_MS + 1);
    *machine = next;
    actions
}

fn report(machine: &mut Machine, name: &str, report: NodeReport) {
    let attempt = machine.current().no;
    let event = Event::Reported {
        attempt,
        node: node(name),
        report,
    };
    take(machine, &event);
}

fn placed(names: &[&str]) -> Machine {
    let mut machine = submitted(u32::try_from(names.len()).unwrap());
    let nodes = names.iter().map(|name| node(name)).collect();
    let attempt = AttemptNo(1);
    take(&mut machine, &Event::Placed { attempt, nodes });
    machine
}

fn running(names: &[&str]) -> Machine {
    let mut machine = placed(names);
    for name in names {
        report(&mut machine, name, NodeReport::Prepared(Prepared::default()));
    }
    for (rank, name) in (0..).zip(names) {
        let started = NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank: 0,
            pid: 7,
        };
        report(&mut machine, name, started);
    }
    assert_eq!(machine.state, RunState::Running);
    machine
}

fn restore(machine: &mut Machine) -> Vec<Action> {
    take(
        machine,
        &Event::Restored {
            restored_ms: RESTORED_MS,
        },
    )
}

fn held(machine: &mut Machine, name: &str, attempt: u32) -> Vec<Action> {
    let event = Event::UnknownAttempt {
        node: node(name),
        attempt: AttemptNo(attempt),
    };
    take(machine, &event)
}

fn came_back_empty(machine: &mut Machine, name: &str) -> Vec<Action> {
    let event = Event::NodeBack {
        node: node(name),
        holds: false,
    };
    take(machine, &event)
}

fn cause(machine: &Machine) -> &str {
    machine
        .outcome
        .as_ref()
        .map_or("", |outcome| outcome.cause.as_str())
}

#[test]
fn what_a_node_holds_is_current_over_or_unknown() {
    let live = running(&["a"]);
    let mut over = running(&["a"]);
    let end = NodeEnd {
        code: Some(1),
        cause: EndCause::Finished,
        ..NodeEnd::default()
    };
    report(&mut over, "a", NodeReport::Ended(end));
    let mut replaced = placed(&["a"]);
    restore(&mut replaced);
    for (machine, name, attempt, expected) in [
        (&live, "a", 1, HeldAttempt::Current),
        (&live, "b", 1, HeldAttempt::Unknown),
        (&live, "a", 2, HeldAttempt::Unknown),
        (&over, "a", 1, HeldAttempt::Over),
        (&over, "b", 1, HeldAttempt::Over),
        (&over, "a", 2, HeldAttempt::Unknown),
        (&submitted(1), "a", 1, HeldAttempt::Unknown),
        (&replaced, "a", 1, HeldAttempt::Unknown),
        (&replaced, "b", 1, HeldAttempt::Unknown),
    ] {
        assert_eq!(
            machine.held_attempt(&node(name), AttemptNo(attempt)),
            expected,
            "{name} holds attempt {attempt} of a run that is {}",
            machine.state.as_str()
        );
    }
}

#[test]
fn numbers_that_may_have_been_used_are_skipped() {
    let skipped = SKIPPED_ATTEMPTS + 2;
    // The run waits for nodes; at the time of the restore it may have had some.
    let mut queued = submitted(1);
    let actions = restore(&mut queued);
    assert_eq!(queued.current().no.0, skipped);
    assert!(
        matches!(&actions[..], [Action { attempt, task: Task::Place { nodes: 1 }, .. }] if attempt.0 == skipped)
    );
    assert_eq!(restore(&mut queued), [], "once per restore");
    assert_eq!(queued.current().no.0, skipped);

    // The attempt was about to begin.
    let mut preparing = placed(&["a"]);
    let actions = restore(&mut preparing);
    assert_eq!(preparing.state, RunState::Queued);
    assert_eq!(preparing.current().no.0, skipped);
    assert!(
        actions
            .iter()
            .all(|action| matches!(action.task, Task::Place { .. })),
        "nothing is stopped: {actions:?}"
    );

    // The attempt ran: it continues, and the next one gets a new number.
    let mut runs = running(&["a"]);
    assert_eq!(restore(&mut runs), []);
    assert_eq!((runs.current().no.0, runs.state), (1, RunState::Running));
    assert_eq!(runs.next_attempt().0, skipped);
}

#[test]
fn a_run_whose_newer_attempt_is_held_does_not_begin_another() {
    // Attempt 2 began after the backup; according to the backup, attempt 1 runs.
    let mut machine = running(&["a"]);
    restore(&mut machine);
    assert_eq!(held(&mut machine, "a", 2), []);
    assert_eq!(came_back_empty(&mut machine, "a"), [], "no stop, no place");
    assert_eq!(machine.state, RunState::Failed);
    let message = machine.outcome.as_ref().unwrap().message.to_string();
    assert!(message.contains("a node holds attempt 2 of it"), "{message}");
    assert_eq!(take(&mut machine, &Event::Tick), []);
}

#[test]
fn an_attempt_that_waits_ends_when_a_newer_one_is_held() {
    // The other node connected first: a restart is pending, then an attempt waits for nodes.
    for ticks in [0, 1] {
        let mut machine = running(&["a"]);
        restore(&mut machine);
        came_back_empty(&mut machine, "a");
        assert_eq!(machine.state, RunState::Restarting);
        for _ in 0..ticks {
            let (next, _) = advance(&machine, &Event::Tick, RESTORED_MS + 60_000);
            machine = next;
            assert_eq!(machine.state, RunState::Queued);
        }
        assert_eq!(held(&mut machine, "b", 2), []);
        assert_eq!(
            (machine.state, cause(&machine)),
            (RunState::Failed, "unknown_attempt")
        );
    }
}

#[test]
fn without_a_marker_of_a_restore_the_same_number_is_not_used_again() {
    // A data folder that was copied by hand: attempt 1 waits for nodes, and a node holds it.
    let mut machine = submitted(1);
    held(&mut machine, "a", 1);
    assert_eq!(machine.state, RunState::Failed);
    assert_eq!(
        machine.held_attempt(&node("b"), AttemptNo(1)),
        HeldAttempt::Unknown,
        "its other nodes are left alone, too"
    );
    take(
        &mut machine,
        &Event::ResumeRequested {
            from: None,
            from_start: true,
        },
    );
    assert_eq!((machine.state, machine.current().no.0), (RunState::Queued, 3));
    assert_eq!(machine.unknown_attempt, None, "a person has decided");
}

#[test]
fn the_next_number_exceeds_every_held_one() {
    let mut machine = running(&["a"]);
    restore(&mut machine);
    held(&mut machine, "a", 5_000);
    came_back_empty(&mut machine, "a");
    take(
        &mut machine,
        &Event::ResumeRequested {
            from: None,
            from_start: true,
        },
    );
    assert_eq!(machine.current().no.0, 5_001);
}

#[test]
fn an_attempt_that_runs_goes_on_beside_an_unknown_one() {
    let mut machine = running(&["a"]);
    restore(&mut machine);
    assert_eq!(held(&mut machine, "b", 2), []);
    assert_eq!(machine.state, RunState::Running);
}
