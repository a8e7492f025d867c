//! Nodes that fail a run, are replaced, and come back.

use super::*;
use crate::run::state::FaultKind;

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

fn excluded(story: &Story) -> Vec<(String, FaultKind)> {
    let excluded = &story.machine.current().placement.excluded;
    excluded
        .iter()
        .map(|exclusion| (exclusion.node.to_string(), exclusion.fault.kind))
        .collect()
}

fn away(name: &str) -> Event {
    Event::NodeLost { node: node(name) }
}

#[test]
fn a_lost_node_stops_the_attempt_and_the_next_one_resumes_on_other_nodes() {
    let mut story = Story::running(2, 3);
    story.report("n0", first_step(0));
    story.machine.checkpoints.push(Checkpoint {
        path: "/ckpt/step-40".into(),
        step: Some(40),
        complete: true,
        ..Checkpoint::default()
    });
    story.event(&away("n1"));
    assert_eq!(story.wait(119_000), [""; 0]);
    assert_eq!(story.machine.state, RunState::Lost);
    assert_eq!(story.wait(2_000), ["stop n0 10000", "stop n1 10000"]);
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Stopping);
    story.wait(1_000);
    assert_eq!(
        story.outcome(),
        (RunState::Restarting, "node_lost", Some("n1"), None)
    );
    assert_eq!(
        story.message(),
        "node n1 was lost: its agent has not been heard for 2 minutes, and no step was seen since"
    );
    assert_eq!(story.wait(1_000), ["place 2"]);
    assert_eq!(excluded(&story), [("n1".to_owned(), FaultKind::Away)]);
    let from = story.machine.current().placement.resumed_from.as_ref().unwrap();
    assert_eq!((from.path.as_str(), from.step), ("/ckpt/step-40", Some(40)));
    let from = story.actions.len();
    story.run_attempt_on(&names(&["n0", "n2"]));
    let paths: Vec<_> = story.actions[from..]
        .iter()
        .filter_map(|action| match &action.task {
            Task::Command {
                command: NodeCommand::Prepare { resume_from, .. },
                ..
            } => Some(resume_from.clone()),
            Task::Command {
                command: NodeCommand::Start(start),
                ..
            } => Some(start.resume_from.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(paths, vec![Some("/ckpt/step-40".to_owned()); 4]);
    assert_eq!(story.machine.state, RunState::Running);
}

#[test]
fn while_the_others_step_a_node_is_only_out_of_sight() {
    let mut story = Story::running(2, 3);
    story.event(&away("n1"));
    for step in 1..20 {
        let attempt = story.machine.current().no;
        story.event(&Event::Stepped { attempt, step });
        assert_eq!(story.wait(60_000), [""; 0]);
        assert_eq!(story.machine.state, RunState::Lost);
    }
    assert_eq!(story.wait(70_000), ["stop n0 10000", "stop n1 10000"]);
    assert_eq!(story.machine.current().last_step(), Some(19));
}

#[test]
fn an_attempt_whose_nodes_are_all_away_is_stopped_late_and_only_if_a_restart_is_left() {
    for (max_restarts, told) in [
        (0, vec![]),
        (1, vec!["stop n0 10000".to_owned(), "stop n1 10000".to_owned()]),
    ] {
        let mut story = Story::running(2, max_restarts);
        story.event(&away("n0"));
        story.event(&away("n1"));
        assert_eq!(story.wait(ALL_AWAY_MS - 1_000), [""; 0]);
        assert_eq!(story.wait(2_000), told);
    }
}

#[test]
fn a_collector_that_was_away_itself_gives_nodes_their_time() {
    let mut story = Story::running(2, 3);
    story.event(&away("n1"));
    story.wait(100_000);
    story.now_ms += 3_600_000;
    story.event(&Event::CollectorStarted);
    assert_eq!(story.wait(100_000), [""; 0]);
    let back = |name| Event::NodeBack {
        node: node(name),
        holds: true,
    };
    story.event(&back("n0"));
    story.event(&back("n1"));
    assert_eq!(story.machine.state, RunState::Running);
    story.event(&away("n1"));
    assert!(!story.wait(121_000).is_empty());
}

#[test]
fn a_node_that_reconnects_while_its_attempt_stops_is_waited_for() {
    let mut story = Story::running(2, 3);
    story.event(&away("n1"));
    story.wait(121_000);
    story.event(&Event::NodeBack {
        node: node("n1"),
        holds: true,
    });
    story.report("n0", ended(1));
    story.wait(ABANDON_AFTER_MS * 3);
    assert_eq!(story.machine.state, RunState::Stopping);
    story.report("n1", ended(1));
    assert_eq!(story.machine.state, RunState::Restarting);
}

#[test]
fn a_node_that_cannot_prepare_is_replaced_where_there_are_others() {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", prepared());
    let failed = NodeReport::PrepareFailed {
        message: "no torch".into(),
    };
    assert_eq!(story.report("n1", failed), ["stop n0 10000"]);
    story.report("n0", ended(0));
    assert_eq!(
        story.outcome(),
        (RunState::Restarting, "prepare_failed", Some("n1"), None)
    );
    story.wait(1_000);
    assert_eq!(excluded(&story), [("n1".to_owned(), FaultKind::Unfit)]);
    story.event(&Event::CannotPlace {
        reason: "waits for 2 nodes".into(),
        permanent: false,
    });
    assert_eq!(story.machine.state, RunState::Queued);
    story.event(&Event::CannotPlace {
        reason: "waits for 2 nodes".into(),
        permanent: true,
    });
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "prepare_failed", Some("n1"), None)
    );
    assert_eq!(
        story.message(),
        "no torch; no other node can take the place of n1"
    );
    assert_eq!(story.place(), [""; 0]);
}

#[test]
fn a_node_that_was_included_again_is_no_longer_excluded() {
    let mut story = Story::running(2, 3);
    story.report(
        "n1",
        NodeReport::Ended(NodeEnd {
            cause: EndCause::ShimDied,
            ..NodeEnd::default()
        }),
    );
    story.report("n0", ended(1));
    story.wait(1_000);
    assert_eq!(excluded(&story), [("n1".to_owned(), FaultKind::Shim)]);
    story.place();
    assert_eq!(excluded(&story), []);
}

#[test]
fn broken_hardware_under_a_rank_excludes_its_node_for_good() {
    let mut story = Story::running(2, 3);
    story.report("n0", first_step(0));
    story.report(
        "n1",
        raised(
            2,
            "RuntimeError",
            "CUDA error: uncorrectable ECC error encountered",
            1,
        ),
    );
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    story.wait(1_000);
    assert_eq!(excluded(&story), [("n1".to_owned(), FaultKind::Hardware)]);
    story.run_attempt_on(&names(&["n0", "n2"]));
    story.report("n2", killed(2, 9, 1));
    story.report("n0", ended(1));
    story.report("n2", ended(1));
    story.wait(2_000);
    assert_eq!(excluded(&story), [("n1".to_owned(), FaultKind::Hardware)]);
}

#[test]
fn checks_are_waited_for_from_when_the_nodes_were_found() {
    let mut story = Story::submit(2, 0);
    story.wait(PREPARE_TIMEOUT_MS * 2);
    story.place();
    assert_eq!(story.wait(1_000), [""; 0]);
    story.report("n0", prepared());
    assert_eq!(story.wait(PREPARE_TIMEOUT_MS), ["stop n0 10000", "stop n1 10000"]);
    story.report("n0", ended(0));
    story.report("n1", ended(0));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "prepare_failed", Some("n1"), None)
    );
}
