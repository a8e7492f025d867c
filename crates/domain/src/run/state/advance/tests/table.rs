//! Every event in every state, with the resulting state and actions, compared with `testdata/run-transitions.txt`.
//!
//! A line of the file contains the state, the event, the resulting state, and the actions. `=` means that the machine did not change at
//! all. If the table differs, the test prints the whole current table. After an intended change, copy it into the file and review the
//! difference.

use std::fmt::Write as _;

use super::*;
use crate::run::knob::Decision;

const EXPECTED: &str = include_str!("../../../../../testdata/run-transitions.txt");

/// One scenario for each state, and several if a state waits for different things. All have 2 nodes × 2 ranks and one restart left.
fn situations() -> Vec<(&'static str, Story)> {
    let queued = || Story::submit(2, 1);
    let preparing = || {
        let mut story = queued();
        story.place();
        story
    };
    let measuring = || {
        let mut story = queued();
        story.machine.spec.preflight_bandwidth.seconds = 1.0;
        story.place();
        story.report("n0", prepared());
        story.report("n1", prepared());
        story.report("n0", NodeReport::Measured(Measured::default()));
        story
    };
    let starting = || {
        let mut story = preparing();
        story.report("n0", prepared());
        story.report("n1", prepared());
        story
    };
    let running = || {
        let mut story = Story::running(2, 1);
        story.report("n0", first_step(0));
        story
    };
    let lost = || {
        let mut story = running();
        story.event(&Event::NodeLost { node: node("n1") });
        story.wait(LOST_AFTER_MS + 1_000);
        story
    };
    let failing = || {
        let mut story = running();
        story.report("n1", failed_after(2, 5));
        story
    };
    let stop_requested = || {
        let mut story = running();
        story.event(&Event::StopRequested {
            grace_ms: 1_000,
            after: None,
        });
        story
    };
    let restarting = || {
        let mut story = failing();
        story.end_all(1);
        story
    };
    let stopped = || {
        let mut story = stop_requested();
        story.end_all(1);
        story
    };
    let succeeded = || {
        let mut story = running();
        story.end_all(0);
        story
    };
    let failed = || {
        let mut story = Story::running(2, 0);
        story.end_all(1);
        story
    };
    let changing = || {
        let mut story = running();
        story.event(&knobs::apply("lr_scale", "0.5"));
        story
    };
    let changed = || {
        let mut story = changing();
        story.end_all(1);
        story.run_attempt();
        story
    };
    let turning = || {
        let mut story = running();
        story.event(&knobs::apply("process_group_timeout_s", "600"));
        story
    };
    vec![
        ("queued", queued()),
        ("preparing", preparing()),
        ("measuring", measuring()),
        ("starting", starting()),
        ("running", running()),
        ("lost", lost()),
        ("stopping (failed)", failing()),
        ("stopping (user)", stop_requested()),
        ("stopping (change)", changing()),
        ("running (changed)", changed()),
        ("running (turning)", turning()),
        ("restarting", restarting()),
        ("stopped", stopped()),
        ("succeeded", succeeded()),
        ("failed", failed()),
    ]
}

/// Each kind of event; from n1 if the event has a node.
fn events(attempt: AttemptNo) -> Vec<(&'static str, Event)> {
    let said = |report| Event::Reported {
        attempt,
        node: node("n1"),
        report,
    };
    let late = |report| Event::Reported {
        attempt: AttemptNo(attempt.0 + 7),
        node: node("n1"),
        report,
    };
    let text = String::new;
    vec![
        (
            "placed",
            Event::Placed {
                attempt,
                nodes: vec![node("n0"), node("n1")],
            },
        ),
        (
            "cannot place",
            Event::CannotPlace {
                reason: "busy".into(),
                permanent: false,
            },
        ),
        ("accepted", said(NodeReport::Accepted { command: 1 })),
        (
            "refused",
            said(NodeReport::Refused {
                command: 1,
                reason: text(),
            }),
        ),
        ("prepared", said(prepared())),
        (
            "prepare failed",
            said(NodeReport::PrepareFailed { message: text() }),
        ),
        ("looked", said(NodeReport::Looked { seen: false })),
        (
            "measured",
            said(NodeReport::Measured(Measured {
                mib_s: Some(1.0),
                ..Measured::default()
            })),
        ),
        (
            "shim started",
            said(NodeReport::ShimStarted {
                pid: 1,
                command: text(),
                kept_by: text(),
            }),
        ),
        ("start failed", said(NodeReport::StartFailed { message: text() })),
        (
            "rank started",
            said(NodeReport::RankStarted {
                rank: Rank(2),
                local_rank: 0,
                pid: 9,
            }),
        ),
        ("first step", said(first_step(2))),
        (
            "rank stalled",
            said(NodeReport::RankStalled {
                rank: Rank(2),
                step: Some(5),
                for_ms: 100,
                cause: StallCause::Stopped,
            }),
        ),
        (
            "rank recovered",
            said(NodeReport::RankRecovered { rank: Rank(2) }),
        ),
        ("rank exited well", said(exited(3, 0, 1))),
        ("rank failed", said(exited(3, 1, 1))),
        ("ended well", said(ended(0))),
        ("ended badly", said(ended(1))),
        ("report of another attempt", late(ended(1))),
        (
            "stop requested",
            Event::StopRequested {
                grace_ms: 500,
                after: None,
            },
        ),
        (
            "resume requested",
            Event::ResumeRequested {
                from: None,
                from_start: false,
            },
        ),
        ("other knobs", knobs::apply("lr_scale", "0.25")),
        ("the same knobs", knobs::apply("lr_scale", "0.5")),
        ("knobs reverted", knobs::revert(None)),
        ("knobs judged", knobs::judged(attempt, Decision::Better)),
        ("knob answered", said(knobs::answered("lr_scale", true))),
        ("a knob in place", knobs::apply("process_group_timeout_s", "900")),
        (
            "a rank has it",
            said(knobs::turned(
                "process_group_timeout_s",
                Some("600"),
                (1, Rank(3), true),
            )),
        ),
        (
            "a rank cannot",
            said(knobs::turned(
                "process_group_timeout_s",
                Some("600"),
                (1, Rank(3), false),
            )),
        ),
        ("stepped", Event::Stepped { attempt, step: 9 }),
        ("collector started", Event::CollectorStarted),
        ("node lost", Event::NodeLost { node: node("n1") }),
        (
            "node back",
            Event::NodeBack {
                node: node("n1"),
                holds: true,
            },
        ),
        (
            "node back empty",
            Event::NodeBack {
                node: node("n1"),
                holds: false,
            },
        ),
        ("tick", Event::Tick),
        ("tick, minutes later", Event::Tick),
    ]
}

fn table() -> String {
    let mut lines = String::new();
    for (name, story) in situations() {
        for (word_of, event) in events(story.machine.current().no) {
            let later_ms = if word_of.ends_with("later") { 310_000 } else { 10 };
            let (after, actions) = advance(&story.machine, &event, story.now_ms + later_ms);
            let actions: Vec<String> = actions.iter().map(word).collect();
            let state = if after == story.machine {
                "="
            } else {
                after.state.as_str()
            };
            let line = format!("{name:17} │ {word_of:25} → {state:10} {}", actions.join(", "));
            writeln!(lines, "{}", line.trim_end()).unwrap();
        }
        lines.push('\n');
    }
    lines.trim_end().to_owned() + "\n"
}

#[test]
fn each_event_in_each_state() {
    let table = table();
    let differs = table.lines().zip(EXPECTED.lines()).find(|(is, was)| is != was);
    assert!(
        table == EXPECTED,
        "first at {differs:?}; when that is meant, put this into testdata/run-transitions.txt:\n{table}"
    );
}

#[test]
fn the_table_contains_each_state_that_a_run_can_reach() {
    let all = [
        RunState::Queued,
        RunState::Preparing,
        RunState::Starting,
        RunState::Running,
        RunState::Stopping,
        RunState::Stopped,
        RunState::Restarting,
        RunState::Succeeded,
        RunState::Failed,
        RunState::Lost,
    ];
    let there: Vec<RunState> = situations()
        .iter()
        .map(|(_, story)| story.machine.state)
        .collect();
    for state in all {
        assert!(there.contains(&state), "{state:?}");
    }
}

#[test]
fn an_ended_run_moves_only_when_it_is_resumed_or_changed() {
    for (name, story) in situations() {
        for (word_of, event) in events(story.machine.current().no) {
            let (after, actions) = advance(&story.machine, &event, story.now_ms + 400_000);
            let resumes = word_of == "resume requested";
            let changes = ["other knobs", "the same knobs", "a knob in place"].contains(&word_of);
            if story.machine.state.is_final() && !resumes && !changes
                || !story.machine.state.is_final() && resumes
            {
                assert_eq!((&after, actions.len()), (&story.machine, 0), "{name}: {word_of}");
            }
        }
    }
}
