//! Runs that have ended and are resumed.

use super::*;
use crate::run::checkpoint::{CheckpointOnNode, CheckpointReport};

fn saved(step: u64, finished_ms: i64) -> Checkpoint {
    Checkpoint {
        path: format!("/ckpt/step-{step}"),
        step: Some(step),
        complete: true,
        finished_ms: Some(finished_ms),
        ..Checkpoint::default()
    }
}

fn resume(from: Option<u64>, from_start: bool) -> Event {
    Event::ResumeRequested {
        from: from.map(|step| ResumedFrom {
            path: format!("/ckpt/step-{step}"),
            step: Some(step),
        }),
        from_start,
    }
}

/// A run that failed without restarts, with checkpoints at steps 10 and 20.
fn failed() -> Story {
    let mut story = Story::running(1, 0);
    story.machine.checkpoints = vec![saved(10, 1), saved(20, 2)];
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 25));
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Failed);
    story
}

fn resumed_step(story: &Story) -> Option<u64> {
    story
        .machine
        .current()
        .placement
        .resumed_from
        .as_ref()
        .and_then(|from| from.step)
}

#[test]
fn a_run_that_has_ended_resumes_as_another_attempt() {
    for (event, step) in [
        (resume(None, false), Some(20)),
        (resume(Some(10), false), Some(10)),
        (resume(None, true), None),
    ] {
        let mut story = failed();
        assert_eq!(story.event(&event), ["place 1"]);
        assert_eq!(
            (story.machine.state, story.machine.ended_ms),
            (RunState::Queued, None)
        );
        assert_eq!(
            (story.machine.current().no, resumed_step(&story)),
            (AttemptNo(2), step)
        );
        let before = story.machine.clone();
        assert_eq!(story.event(&event), [""; 0], "asked again");
        assert_eq!(story.machine, before);
        story.run_attempt();
        story.end_all(0);
        assert_eq!(story.machine.state, RunState::Succeeded);
    }
}

#[test]
fn a_stopped_run_resumes_without_its_stop() {
    let mut story = Story::running(1, 0);
    story.event(&Event::StopRequested {
        grace_ms: 0,
        after: None,
    });
    story.report("n0", ended(1));
    assert_eq!(story.machine.state, RunState::Stopped);
    story.event(&resume(None, true));
    story.run_attempt();
    assert_eq!(story.machine.state, RunState::Running);
}

#[test]
fn restarts_and_repeated_steps_are_counted_from_zero() {
    let mut story = failed();
    story.machine.spec.max_restarts = 1;
    story.event(&resume(None, false));
    story.run_attempt();
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 25));
    story.report("n0", ended(1));
    assert_eq!(
        story.machine.state,
        RunState::Restarting,
        "{:?}",
        story.machine.outcome
    );
    story.wait(60_000);
    assert_eq!(resumed_step(&story), Some(20));
    story.run_attempt();
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 26));
    story.report("n0", ended(1));
    assert!(story.message().ends_with("the one restart it had is used up"));
}

#[test]
fn an_automatic_restart_does_not_go_past_what_a_person_chose() {
    let mut story = failed();
    story.machine.spec.max_restarts = 5;
    story.event(&resume(Some(10), false));
    for (saved_step, expected) in [(None, Some(10)), (Some(14), Some(14))] {
        story.run_attempt();
        story.report("n0", first_step(0));
        let now_ms = story.now_ms;
        story
            .machine
            .checkpoints
            .extend(saved_step.map(|step| saved(step, now_ms)));
        story.report("n0", failed_after(0, 15 + saved_step.unwrap_or(0)));
        story.report("n0", ended(1));
        story.wait(60_000);
        assert_eq!(resumed_step(&story), expected);
    }
}

#[test]
fn an_earlier_attempt_still_reports_the_last_steps_of_its_ranks() {
    let mut story = failed();
    story.event(&resume(None, false));
    let attempts = RunView::from(&story.machine).attempts;
    assert_eq!(attempts[0].nodes[0].ranks[0].step, Some(25));
    assert_eq!((attempts[0].last_step, attempts[1].last_step), (Some(25), None));
}

/// The current attempt fails before its first step.
fn fails_at_once(story: &mut Story, kind: &str, message: &str) {
    story.run_attempt();
    story.report("n0", raised(0, kind, message, 1));
    story.report("n0", ended(1));
    story.wait(60_000);
}

#[test]
fn an_unreadable_checkpoint_is_not_resumed_from_again() {
    let mut story = failed();
    story.machine.spec.max_restarts = 5;
    story.event(&resume(None, false));
    assert_eq!(resumed_step(&story), Some(20));
    fails_at_once(
        &mut story,
        "RuntimeError",
        "PytorchStreamReader failed reading zip archive",
    );
    assert_eq!(resumed_step(&story), Some(10));
    let list = story.machine.checkpoint_list(None).checkpoints;
    let of_20 = list.iter().find(|one| one.step == Some(20)).unwrap();
    assert_eq!(
        (of_20.complete, of_20.problem.as_deref()),
        (false, Some("attempt 2 could not read it"))
    );
    // When it is saved again, it counts again.
    let again = CheckpointReport {
        checkpoints: vec![Checkpoint {
            seen: [(
                "n0".to_owned(),
                CheckpointOnNode {
                    complete: true,
                    ..CheckpointOnNode::default()
                },
            )]
            .into(),
            ..saved(20, 3)
        }],
        partial: true,
        ..CheckpointReport::default()
    };
    story.run_attempt();
    story.report("n0", NodeReport::Checkpoints(again));
    assert_eq!(story.machine.resume_point().and_then(|at| at.step), Some(20));
}

#[test]
fn two_attempts_without_a_step_make_their_checkpoint_doubtful() {
    let mut story = failed();
    story.machine.spec.max_restarts = 5;
    story.event(&resume(None, false));
    fails_at_once(&mut story, "ValueError", "shape");
    assert_eq!(resumed_step(&story), Some(20), "once is an accident");
    fails_at_once(&mut story, "ValueError", "shape");
    assert_eq!(resumed_step(&story), Some(10));
    story.run_attempt();
    story.report("n0", first_step(0));
    story.report("n0", failed_after(0, 12));
    story.report("n0", ended(1));
    story.wait(60_000);
    assert_eq!(resumed_step(&story), Some(10), "it did come to a step");
}

#[test]
fn a_lost_node_makes_no_checkpoint_doubtful() {
    let mut story = failed();
    story.machine.spec.max_restarts = 5;
    story.event(&resume(None, false));
    for _ in 0..2 {
        story.run_attempt();
        story.report("n0", NodeReport::StartFailed { message: "no".into() });
        story.wait(60_000);
        assert!(story.machine.checkpoints.iter().all(Checkpoint::is_usable));
    }
}
