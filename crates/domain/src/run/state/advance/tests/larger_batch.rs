//! The automatic trial of a doubled batch.

use super::knobs::{apply, changed, go_over, judged, knobs};
use super::*;
use crate::run::knob::{Decision, Verdict};
use crate::run::state::{CannotChange, KnobRequest};

fn checkpointing(knob: &str, value: &str, try_larger_batch: Option<bool>) -> KnobRequest {
    KnobRequest::Apply {
        set: std::collections::BTreeMap::from([(knob.to_owned(), value.to_owned())]),
        auto_revert: None,
        from_start: false,
        restart: false,
        try_larger_batch,
        follows: None,
    }
}

/// Activation checkpointing is kept, and a batch of 32 is being tried.
fn trying() -> Story {
    let mut story = kept(Some(true));
    let request = story.machine.larger_batch(AttemptNo(2), 16).unwrap();
    story.event(&changed(request));
    assert_eq!(story.machine.larger_batch_due(), None, "it is under way");
    go_over(&mut story);
    assert_eq!(
        knobs(&story),
        ["activation_checkpointing=block", "micro_batch=32"]
    );
    assert_eq!(
        story.machine.current().cause,
        "larger micro_batch tried by itself"
    );
    assert_eq!(story.machine.larger_batch_due(), None, "it is tried");
    story
}

fn kept(try_larger_batch: Option<bool>) -> Story {
    let mut story = Story::running(1, 0);
    story.event(&changed(checkpointing(
        "activation_checkpointing",
        "block",
        try_larger_batch,
    )));
    go_over(&mut story);
    assert_eq!(story.machine.larger_batch_due(), None, "no verdict yet");
    story.event(&judged(AttemptNo(2), Decision::Kept));
    story
}

#[test]
fn a_larger_batch_is_tried_once_and_only_on_request() {
    assert_eq!(kept(None).machine.larger_batch_due(), None);
    assert_eq!(
        kept(Some(true)).machine.larger_batch_due(),
        Some((AttemptNo(2), None))
    );
    let mut story = trying();
    story.event(&judged(AttemptNo(3), Decision::Rejected));
    let (id, _) = story.machine.change_to_revert().unwrap();
    story.event(&changed(KnobRequest::revert(id, Some("no more samples".into()))));
    go_over(&mut story);
    assert_eq!(knobs(&story), ["activation_checkpointing=block"]);
    assert_eq!(story.machine.larger_batch_due(), None, "not again");
}

#[test]
fn the_spec_may_ask_for_it_and_other_changes_cannot() {
    let mut story = Story::running(1, 0);
    story.machine.spec.try_larger_batch = Some(true);
    let asked = story
        .machine
        .change_for(&checkpointing("activation_checkpointing", "block", None));
    assert!(asked.unwrap().unwrap().change.try_larger_batch);
    let other = story.machine.change_for(&checkpointing("num_workers", "2", None));
    assert!(!other.unwrap().unwrap().change.try_larger_batch);
    let refused = story
        .machine
        .change_for(&checkpointing("num_workers", "2", Some(true)));
    assert!(matches!(refused, Err(CannotChange::Knob { knob, .. }) if knob == "try_larger_batch"));
}

#[test]
fn an_attempt_that_fails_with_it_is_followed_by_one_without_it() {
    let mut story = trying();
    story.end_all(1);
    assert_eq!(
        story.machine.state,
        RunState::Queued,
        "though no restart is allowed"
    );
    let tried = story.machine.attempts[2].knobs.change.as_ref().unwrap();
    assert_eq!(tried.verdict.as_ref().unwrap().decision, Decision::Rejected);
    story.run_attempt();
    let change = story.machine.current().knobs.change.as_ref().unwrap();
    assert_eq!(
        (story.machine.current().cause.as_str(), change.reverts),
        ("knob reverted by itself", Some(AttemptNo(3)))
    );
    assert!(change.reason.as_ref().unwrap().contains("larger batch failed"));
    assert_eq!(knobs(&story), ["activation_checkpointing=block"]);
    story.end_all(1);
    assert_eq!(story.machine.state, RunState::Failed, "that was not the batch");
}

#[test]
fn a_change_in_place_prevents_neither_the_trial_nor_its_revert() {
    let mut story = kept(Some(true));
    let due = story.machine.larger_batch_due();
    story.event(&apply("process_group_timeout_s", "600"));
    assert_eq!(story.machine.current().knobs.live.len(), 1);
    assert_eq!(story.machine.larger_batch_due(), due);

    let mut story = trying();
    story.event(&apply("process_group_timeout_s", "600"));
    go_over(&mut story);
    assert_eq!(story.machine.current().cause, "knob reverted by itself");
    assert_eq!(
        knobs(&story),
        ["activation_checkpointing=block", "process_group_timeout_s=600"]
    );
}

#[test]
fn a_trial_that_a_lost_node_ends_gives_no_verdict_on_the_batch() {
    let mut story = trying();
    let shim_died = NodeReport::Ended(NodeEnd {
        cause: EndCause::ShimDied,
        ..NodeEnd::default()
    });
    story.report("n0", shim_died);
    let tried = story.machine.attempts[2].knobs.change.as_ref().unwrap();
    let verdict = tried.verdict.as_ref().unwrap();
    assert_eq!(verdict.decision, Decision::Undecided);
    assert!(verdict.summary.contains("shim_died"), "{}", verdict.summary);
    story.run_attempt();
    assert_eq!(knobs(&story), ["activation_checkpointing=block"]);
}

#[test]
fn without_samples_a_second_none_is_tried() {
    let mut story = kept(Some(true));
    let verdict = Box::new(Verdict {
        decision: Decision::Kept,
        ..Verdict::default()
    });
    story.event(&Event::KnobsJudged {
        attempt: AttemptNo(2),
        live: 0,
        verdict,
    });
    let why = story.machine.larger_batch(AttemptNo(2), 16).unwrap_err();
    assert!(why.contains("no samples per second"), "{why}");
}

#[test]
fn a_batch_that_proved_itself_is_not_blamed_for_a_later_failure_nor_is_one_that_is_stopped() {
    let mut story = trying();
    story.event(&judged(AttemptNo(3), Decision::Kept));
    story.end_all(1);
    assert_eq!(story.machine.state, RunState::Failed);
    let mut stopped = trying();
    stopped.event(&stop_now(5));
    stopped.end_all(1);
    assert_eq!(stopped.machine.state, RunState::Stopped);
}

#[test]
fn why_none_can_be_tried_is_kept() {
    let mut story = kept(Some(true));
    story.event(&Event::NoLargerBatch {
        attempt: AttemptNo(2),
        why: "no batch is known".into(),
    });
    assert_eq!(story.machine.larger_batch_due(), None);
    let change = story.machine.current().knobs.change.as_ref().unwrap();
    assert_eq!(change.no_larger_batch.as_deref(), Some("no batch is known"));
}
