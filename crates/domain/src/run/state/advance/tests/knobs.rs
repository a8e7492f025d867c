//! Attempts with changed knobs, and their revert.

use std::collections::BTreeMap;

use super::*;
use crate::run::knob::{ChangeId, Decision, KnobAnswer, Median, PerformanceSummary, Verdict};
use crate::run::state::{CannotChange, KnobRequest};

pub(super) fn apply(knob: &str, value: &str) -> Event {
    changed(request(knob, value))
}

pub(super) fn revert(attempt: Option<u32>) -> Event {
    changed(KnobRequest::Revert {
        attempt: attempt.map(AttemptNo),
        live: None,
        reason: None,
        from_start: false,
        restart: false,
    })
}

pub(super) fn judged(attempt: AttemptNo, decision: Decision) -> Event {
    let samples = Median {
        value: 8.0,
        low: 7.0,
        high: 9.0,
    };
    Event::KnobsJudged {
        attempt,
        live: 0,
        verdict: Box::new(Verdict {
            decision,
            summary: "numbers".into(),
            after: PerformanceSummary {
                samples_per_second: Some(samples),
                ..PerformanceSummary::default()
            },
            ..Verdict::default()
        }),
    }
}

pub(super) fn answered(knob: &str, applied: bool) -> NodeReport {
    NodeReport::KnobAnswered(KnobAnswer {
        knob: knob.into(),
        value: "0.5".into(),
        applied,
        detail: "as it is".into(),
        rank: Rank(2),
        live: None,
    })
}

/// A rank's answer to a change in place: number of the change, rank, whether the change was applied.
pub(super) fn turned(
    knob: &str,
    value: Option<&str>,
    (live, rank, applied): (u32, Rank, bool),
) -> NodeReport {
    NodeReport::KnobAnswered(KnobAnswer {
        knob: knob.into(),
        value: value.unwrap_or_default().into(),
        applied,
        detail: if applied {
            "in 1 process group"
        } else {
            "no process group"
        }
        .into(),
        rank,
        live: Some(live),
    })
}

pub(super) fn changed(request: KnobRequest) -> Event {
    Event::KnobsChanged {
        request,
        grace_ms: 1_000,
        after: None,
    }
}

pub(super) fn request(knob: &str, value: &str) -> KnobRequest {
    KnobRequest::Apply {
        set: BTreeMap::from([(knob.to_owned(), value.to_owned())]),
        auto_revert: None,
        from_start: false,
        restart: false,
        try_larger_batch: None,
        follows: None,
    }
}

/// Ends the running attempt, then runs the next one.
pub(super) fn go_over(story: &mut Story) {
    story.end_all(1);
    story.run_attempt();
}

pub(super) fn knobs(story: &Story) -> Vec<String> {
    let knobs = story.machine.current().knobs.values.iter();
    knobs.map(|(name, value)| format!("{name}={value}")).collect()
}

pub(super) fn commands(story: &Story) -> Vec<Spec> {
    let started = |action: &Action| match &action.task {
        Task::Command {
            command: NodeCommand::Start(start),
            ..
        } => Some(start.spec.clone()),
        _ => None,
    };
    story.actions.iter().filter_map(started).collect()
}

#[test]
fn a_running_run_continues_with_another_value_and_returns_to_its_first_command_line() {
    let mut story = Story::running(1, 0);
    story.machine.checkpoints = vec![Checkpoint {
        path: "/c/step-4".into(),
        step: Some(4),
        complete: true,
        ..Checkpoint::default()
    }];
    assert_eq!(story.event(&apply("grad_clip_norm", "0.50")), ["stop n0 1000"]);
    assert_eq!(story.machine.state, RunState::Stopping);
    let view = RunView::from(&story.machine);
    assert_eq!(view.pending.unwrap().words(), "grad_clip_norm=0.5");
    assert_eq!(
        story.event(&apply("grad_clip_norm", "0.5")),
        [""; 0],
        "asked again"
    );
    go_over(&mut story);
    assert_eq!(
        (story.machine.state, story.machine.current().no),
        (RunState::Running, AttemptNo(2))
    );
    let ended = story.machine.attempts[0].outcome.clone().unwrap();
    assert_eq!(
        (&ended.cause, ended.message.to_string().as_str()),
        (&Cause::Stopped, "ended to apply grad_clip_norm=0.5")
    );
    let second = story.machine.current();
    assert_eq!(second.cause, "knob applied");
    assert_eq!(second.placement.resumed_from.as_ref().unwrap().step, Some(4));
    assert_eq!(knobs(&story), ["grad_clip_norm=0.5"]);

    assert_eq!(
        story.event(&apply("grad_clip_norm", "0.5")),
        [""; 0],
        "it is so already"
    );
    story.event(&revert(Some(2)));
    go_over(&mut story);
    assert_eq!(story.machine.current().cause, "knob reverted");
    assert_eq!(story.event(&revert(Some(2))), [""; 0], "taken back already");
    let specs = commands(&story);
    assert_eq!(specs[0], specs[2]);
    assert_eq!(specs[1].set["grad_clip"], "0.5");
    assert_eq!(knobs(&story), [""; 0]);
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Succeeded);
}

#[test]
fn the_last_change_is_reverted_first_and_each_once() {
    let mut story = Story::running(1, 0);
    for (knob, value) in [("lr_scale", "0.5"), ("num_workers", "2"), ("lr_scale", "0.25")] {
        story.event(&apply(knob, value));
        go_over(&mut story);
    }
    assert_eq!(knobs(&story), ["lr_scale=0.25", "num_workers=2"]);
    let wrong = story
        .machine
        .change_for(&KnobRequest::revert(ChangeId::of(AttemptNo(2)), None));
    assert!(matches!(wrong, Err(CannotChange::Now(why)) if why.contains("attempt 4")));
    let first = ChangeId::of(AttemptNo(1));
    let none = story.machine.change_for(&KnobRequest::revert(first, None));
    assert!(matches!(none, Err(CannotChange::Now(why)) if why.contains("attempt 1 made no change")));
    for expected in [
        vec!["lr_scale=0.5", "num_workers=2"],
        vec!["lr_scale=0.5"],
        vec![],
    ] {
        story.event(&revert(None));
        go_over(&mut story);
        assert_eq!(knobs(&story), expected);
    }
    let before = story.machine.clone();
    assert_eq!(story.event(&revert(None)), [""; 0]);
    assert_eq!(story.machine, before);
    assert_eq!(story.machine.attempts.len(), 7);
}

#[test]
fn a_named_change_is_reverted_out_of_order_if_no_other_change_set_its_knobs() {
    let mut story = Story::running(1, 0);
    for (knob, value) in [("lr_scale", "0.5"), ("num_workers", "2")] {
        story.event(&apply(knob, value));
        go_over(&mut story);
    }
    story.event(&revert(Some(2)));
    go_over(&mut story);
    assert_eq!(knobs(&story), ["num_workers=2"]);
    story.event(&revert(None));
    go_over(&mut story);
    assert_eq!(knobs(&story), [""; 0]);
}

#[test]
fn an_ended_run_without_a_checkpoint_starts_from_the_beginning_with_the_change() {
    let mut story = Story::running(1, 0);
    story.end_all(1);
    assert_eq!(story.machine.state, RunState::Failed);
    assert_eq!(story.event(&apply("num_workers", "2")), ["place 1"]);
    assert_eq!(story.machine.current().placement.resumed_from, None);
    story.run_attempt();
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Succeeded);
}

#[test]
fn a_change_costs_no_restart_and_failures_before_it_count_no_more() {
    let mut story = Story::running(1, 1);
    story.report("n0", failed_after(0, 5));
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Restarting);
    assert_eq!(
        story.event(&apply("lr_scale", "0.5")),
        ["place 1"],
        "without the pause"
    );
    story.run_attempt();
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 5));
    story.report("n0", ended(1));
    assert_eq!(
        story.machine.state,
        RunState::Restarting,
        "the same step again, with another rate"
    );
    story.wait(60_000);
    assert_eq!(knobs(&story), ["lr_scale=0.5"], "a restart keeps what is set");
}

#[test]
fn a_person_who_stops_the_run_wins_over_a_change_that_waits() {
    let mut story = Story::running(1, 3);
    story.event(&apply("lr_scale", "0.5"));
    story.event(&stop_now(500));
    story.end_all(1);
    assert_eq!(story.outcome(), (RunState::Stopped, "stopped", None, None));
    assert_eq!(story.message(), "stopped as asked");
    let mut stopping = Story::running(1, 3);
    stopping.event(&stop_now(500));
    let before = stopping.machine.clone();
    stopping.event(&apply("lr_scale", "0.5"));
    assert_eq!(stopping.machine, before);
    assert!(matches!(
        before.change_for(&request("lr_scale", "0.5")),
        Err(CannotChange::Now(why)) if why.contains("is being stopped")
    ));
}

#[test]
fn a_training_that_ends_before_the_change_has_succeeded() {
    let mut story = Story::running(1, 0);
    story.report("n0", first_step(0));
    let after = Some(StopPoint::Step(50));
    let words = story.event(&Event::KnobsChanged {
        request: request("lr_scale", "0.5"),
        grace_ms: 9,
        after,
    });
    assert_eq!(words, ["stop n0 after 50"]);
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Succeeded);
    assert!(story.message().ends_with("before lr_scale=0.5 could be applied"));
    assert_eq!(story.machine.pending, None);
}

#[test]
fn after_an_agreed_step_the_change_follows() {
    let mut story = Story::running(1, 0);
    story.report("n0", first_step(0));
    story.event(&Event::KnobsChanged {
        request: request("lr_scale", "0.5"),
        grace_ms: 9,
        after: Some(StopPoint::Step(50)),
    });
    for rank in [0, 1] {
        story.report(
            "n0",
            NodeReport::StopStep {
                rank: Rank(rank),
                step: 50,
            },
        );
    }
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Queued);
    let ended = story.machine.attempts[0].outcome.as_ref().unwrap();
    assert_eq!(
        ended.message.to_string(),
        "ended to apply lr_scale=0.5, after step 50"
    );
}

#[test]
fn a_verdict_against_a_change_is_a_reason_to_take_it_back_once() {
    for (auto_revert, decision, expected) in [
        (None, Decision::Rejected, true),
        (None, Decision::Kept, false),
        (Some(false), Decision::Rejected, false),
        (Some(true), Decision::Worse, true),
    ] {
        let mut story = Story::running(1, 0);
        let set = BTreeMap::from([("activation_checkpointing".to_owned(), "block".to_owned())]);
        story.event(&changed(KnobRequest::Apply {
            set,
            auto_revert,
            from_start: false,
            restart: false,
            try_larger_batch: None,
            follows: None,
        }));
        go_over(&mut story);
        assert_eq!(story.machine.change_to_revert(), None, "no verdict yet");
        story.event(&judged(AttemptNo(2), decision));
        let due = story.machine.change_to_revert();
        assert_eq!(
            due,
            expected.then(|| (ChangeId::of(AttemptNo(2)), "numbers".to_owned()))
        );
        let Some((id, reason)) = due else { continue };
        story.event(&changed(KnobRequest::revert(id, Some(reason))));
        assert_eq!(story.machine.change_to_revert(), None, "it is under way");
        go_over(&mut story);
        assert_eq!(story.machine.current().cause, "knob reverted by itself");
        assert_eq!(story.machine.change_to_revert(), None);
        assert_eq!(knobs(&story), [""; 0]);
    }
}

#[test]
fn answers_of_ranks_about_a_knob_are_kept_once() {
    let mut story = Story::running(2, 0);
    for (name, applied) in [("n0", true), ("n1", true), ("n1", false)] {
        story.report(name, answered("lr_scale", applied));
    }
    let answers = &story.machine.current().knobs.answers;
    assert_eq!(
        answers.iter().map(|answer| answer.applied).collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn what_a_person_chose_to_begin_from_stays_chosen() {
    let mut story = Story::running(1, 0);
    let saved = |step: u64, finished_ms| Checkpoint {
        path: format!("/c/step-{step}"),
        step: Some(step),
        complete: true,
        finished_ms: Some(finished_ms),
        ..Checkpoint::default()
    };
    story.machine.checkpoints = vec![saved(10, 1), saved(20, 2)];
    story.end_all(1);
    story.event(&Event::ResumeRequested {
        from: Some(ResumedFrom {
            path: "/c/step-10".into(),
            step: Some(10),
        }),
        from_start: false,
    });
    story.run_attempt();
    for value in ["0.5", "0.25"] {
        story.event(&apply("lr_scale", value));
        go_over(&mut story);
        let from = story.machine.current().placement.resumed_from.as_ref().unwrap();
        assert_eq!(from.step, Some(10), "not behind what was chosen");
    }
}

#[test]
fn knobs_given_with_the_run_are_in_its_first_attempt_and_nodes_get_none_to_know_of() {
    let set = [("num_workers", "02"), ("lr_scale", "0.5"), ("steps", "9")];
    let spec = Spec {
        recipe: Some("ddp".into()),
        set: set
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        auto_revert: Some(true),
        ..Spec::default()
    };
    assert_eq!(spec.problems(), []);
    let (machine, _) = Machine::submit(RunId::new("ddp-1").unwrap(), spec, 0);
    let mut story = Story {
        machine,
        now_ms: 0,
        actions: Vec::new(),
    };
    story.run_attempt();
    let sent = &commands(&story)[0];
    assert_eq!(
        sent.set
            .iter()
            .map(|(n, v)| format!("{n}={v}"))
            .collect::<Vec<_>>(),
        ["num_workers=2", "steps=9"]
    );
    assert_eq!(sent.env["LOCKSTEP_KNOBS"], r#"{"lr_scale":"0.5"}"#);
    let text = serde_json::to_string(sent).unwrap();
    assert!(!text.contains("knobs") && !text.contains("auto_revert"), "{text}");
}
