//! New attempts on request of a person, without one node or with all nodes.

use super::knobs::changed;
use super::*;
use crate::run::knob::{Change, Verdict};
use crate::run::state::{CannotChange, KnobRequest};

fn restart(without: &[&str]) -> KnobRequest {
    KnobRequest::Restart {
        without: without.iter().map(|name| node(name)).collect(),
    }
}

#[test]
fn a_node_that_a_user_excludes_stays_excluded() {
    let mut story = Story::running(2, 0);
    story.machine.checkpoints = vec![Checkpoint {
        path: "/c/step-4".into(),
        step: Some(4),
        complete: true,
        ..Checkpoint::default()
    }];
    assert_eq!(
        story.event(&changed(restart(&["n1"]))),
        ["stop n0 1000", "stop n1 1000"]
    );
    assert_eq!(story.event(&changed(restart(&["n1"]))), [""; 0], "asked again");
    story.end_all(1);
    let ended = story.machine.attempts[0].outcome.clone().unwrap();
    assert_eq!(
        (&ended.cause, ended.message.to_string().as_str()),
        (&Cause::Stopped, "ended for a restart without n1")
    );
    let second = story.machine.current();
    assert_eq!(second.cause, "node excluded by a person");
    assert_eq!(second.placement.resumed_from.as_ref().unwrap().step, Some(4));
    let excluded = &second.placement.excluded;
    assert_eq!(
        (excluded.len(), excluded[0].node.as_str(), excluded[0].fault.kind),
        (1, "n1", FaultKind::Person)
    );
    let stored = serde_json::to_string(&V1::from(&story.machine)).unwrap();
    let read = Machine::from(serde_json::from_str::<V1<'_>>(&stored).unwrap());
    assert_eq!(read, story.machine, "it is stored whole");

    story.run_attempt_on(&["n0".to_owned(), "n2".to_owned()]);
    assert!(
        story.machine.last_change().is_none(),
        "there is no knob to take back"
    );
}

#[test]
fn only_nodes_of_an_active_run_are_excluded() {
    let mut story = Story::running(1, 0);
    let refused = |story: &Story, request: &KnobRequest| {
        matches!(story.machine.change_for(request), Err(CannotChange::Now(_)))
    };
    assert!(refused(&story, &restart(&["n7"])), "it has no part in the run");
    story.end_all(0);
    assert!(refused(&story, &restart(&[])), "it has ended");
}

#[test]
fn a_restart_keeps_the_knobs_and_is_judged() {
    let mut story = Story::running(1, 0);
    story.event(&knobs::apply("lr_scale", "0.5"));
    knobs::go_over(&mut story);
    story.event(&changed(restart(&[])));
    assert_eq!(
        story.event(&knobs::apply("lr_scale", "0.25")),
        [""; 0],
        "one change at a time"
    );
    knobs::go_over(&mut story);
    assert_eq!(knobs::knobs(&story), ["lr_scale=0.5"]);
    let attempt = story.machine.current().no;
    story.event(&knobs::judged(attempt, crate::run::knob::Decision::Better));
    let change: &Change = story.machine.current().knobs.change.as_deref().unwrap();
    assert_eq!(
        change
            .verdict
            .as_ref()
            .map(|verdict: &Verdict| verdict.summary.as_str()),
        Some("numbers")
    );
    let (id, _) = story.machine.last_change().unwrap();
    assert_eq!(id.attempt, AttemptNo(2), "what can be taken back is the knob");
}
