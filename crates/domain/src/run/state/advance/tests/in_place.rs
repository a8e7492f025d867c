//! A knob that ranks change in place.

use super::knobs::{apply, changed, commands, go_over, judged, knobs, request, revert, turned};
use super::*;
use crate::run::knob::{ChangeId, Decision, InPlaceState, Verdict};
use crate::run::state::KnobRequest;

const KNOB: &str = "process_group_timeout_s";

fn answer(value: Option<&str>, live: u32, rank: u32, applied: bool) -> NodeReport {
    turned(KNOB, value, (live, Rank(rank), applied))
}

/// All ranks of `n0` and `n1` answer.
fn take(story: &mut Story, value: Option<&str>, live: u32) {
    for rank in 0..4 {
        let name = ["n0", "n1"][rank as usize / 2];
        story.report(name, answer(value, live, rank, true));
    }
}

fn last(story: &Story) -> (u32, InPlaceState, usize) {
    let live = story.machine.current().knobs.live.last().unwrap();
    (live.no, live.state, live.ranks.len())
}

#[test]
fn ranks_take_it_over_without_another_attempt_and_back() {
    let mut story = Story::running(2, 1);
    story.event(&Event::Stepped {
        attempt: AttemptNo(1),
        step: 340,
    });
    assert_eq!(
        story.event(&apply(KNOB, "0600")),
        [
            "turn 1 n0 process_group_timeout_s=600",
            "turn 1 n1 process_group_timeout_s=600"
        ]
    );
    assert_eq!(story.machine.state, RunState::Running);
    assert_eq!(last(&story), (1, InPlaceState::Asked, 0));
    assert_eq!(story.machine.current().knobs.live[0].step, Some(340));
    assert_eq!(story.event(&apply(KNOB, "600")), [""; 0], "asked again");
    for _ in 0..2 {
        story.report("n0", answer(Some("600"), 1, 0, true));
    }
    assert_eq!(
        last(&story),
        (1, InPlaceState::Asked, 1),
        "one rank, however often it says so"
    );
    take(&mut story, Some("600"), 1);
    assert_eq!(last(&story), (1, InPlaceState::Taken, 4));
    assert_eq!(
        story.machine.current().knobs.live[0].answers.len(),
        1,
        "all say the same"
    );
    assert_eq!(knobs(&story), ["process_group_timeout_s=600"]);
    assert!(story.machine.current().knobs_at_launch().is_empty());
    let id = ChangeId {
        attempt: AttemptNo(1),
        live: 1,
    };
    assert_eq!(story.machine.last_change().unwrap().0, id);

    // The same request sent twice reverts only once.
    let back = changed(KnobRequest::revert(id, None));
    assert_eq!(
        story.event(&back),
        [
            "turn 2 n0 process_group_timeout_s=",
            "turn 2 n1 process_group_timeout_s="
        ]
    );
    assert_eq!(story.event(&back), [""; 0]);
    take(&mut story, None, 2);
    assert_eq!(last(&story), (2, InPlaceState::Taken, 4));
    assert_eq!(
        story.machine.current().knobs.live[1].change.reverted_change(),
        Some(id)
    );
    assert_eq!((knobs(&story).len(), story.machine.attempts.len()), (0, 1));
    assert_eq!(story.event(&revert(None)), [""; 0], "nothing is left");
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Succeeded);
}

#[test]
fn an_attempt_that_follows_a_failure_has_it_from_its_start_whether_ranks_had_answered_or_not() {
    for answered in [false, true] {
        let mut story = Story::running(2, 3);
        story.event(&apply(KNOB, "600"));
        if answered {
            take(&mut story, Some("600"), 1);
        }
        story.end_all(1);
        let state = if answered {
            InPlaceState::Taken
        } else {
            InPlaceState::Left
        };
        assert_eq!(last(&story).1, state);
        story.wait(60_000);
        story.run_attempt();
        assert_eq!(story.machine.current().no, AttemptNo(2));
        let sent = commands(&story).last().cloned().unwrap();
        assert_eq!(sent.env["LOCKSTEP_KNOBS"], r#"{"process_group_timeout_s":"600"}"#);
        // What the first attempt changed is reverted in the second, in place.
        assert_eq!(story.event(&revert(None)).len(), 2);
        assert_eq!(
            story.machine.current().knobs.live[0].change.reverts,
            Some(AttemptNo(1))
        );
        assert_eq!(story.machine.current().knobs.live[0].change.reverts_live, Some(1));
    }
}

#[test]
fn a_rank_that_cannot_leaves_the_value_before_in_all_of_them() {
    let mut story = Story::running(2, 0);
    story.event(&apply(KNOB, "600"));
    take(&mut story, Some("600"), 1);
    story.event(&apply(KNOB, "900"));
    story.report("n0", answer(Some("900"), 2, 0, true));
    assert_eq!(
        story.report("n1", answer(Some("900"), 2, 3, false)),
        [
            "turn 2 n0 process_group_timeout_s=600",
            "turn 2 n1 process_group_timeout_s=600"
        ]
    );
    let refused = story.machine.current().knobs.live[1].clone();
    assert_eq!(refused.state, InPlaceState::Refused);
    assert!(
        refused.words().contains("rank 3: no process group"),
        "{}",
        refused.words()
    );
    assert!(refused.words().contains("--restart"));
    assert_eq!(knobs(&story), ["process_group_timeout_s=600"]);
    assert_eq!(story.machine.last_change().unwrap().0.live, 1);
    let before = story.machine.clone();
    take(&mut story, Some("600"), 2);
    take(&mut story, Some("900"), 2);
    assert_eq!(
        story.machine.current().knobs.live,
        before.current().knobs.live,
        "it is over"
    );
    assert_eq!(story.machine.state, RunState::Running);
}

#[test]
fn a_node_that_refuses_the_order_does_not_end_the_run() {
    let mut story = Story::running(2, 0);
    story.event(&apply(KNOB, "600"));
    let order = story.machine.current().knobs.live[0].orders[1];
    let refusal = NodeReport::Refused {
        command: u64::from(order),
        reason: "older".into(),
    };
    story.report("n1", refusal);
    assert_eq!(last(&story).1, InPlaceState::Refused);
    assert_eq!(story.machine.state, RunState::Running);
    assert!(knobs(&story).is_empty());
}

#[test]
fn another_value_takes_the_place_of_one_that_ranks_have_not_answered() {
    let mut story = Story::running(2, 0);
    story.event(&apply(KNOB, "600"));
    story.event(&apply(KNOB, "900"));
    assert_eq!(story.machine.current().knobs.live[0].state, InPlaceState::Left);
    take(&mut story, Some("600"), 1);
    assert_eq!(last(&story), (2, InPlaceState::Asked, 0), "the word on the first");
    take(&mut story, Some("900"), 2);
    assert_eq!(last(&story), (2, InPlaceState::Taken, 4));
    story.event(&revert(None));
    assert_eq!(knobs(&story), ["process_group_timeout_s=600"]);
}

#[test]
fn where_it_cannot_be_in_place_it_is_another_attempt() {
    let restart = |story: &mut Story| {
        let mut request = request(KNOB, "600");
        if let KnobRequest::Apply { restart, .. } = &mut request {
            *restart = true;
        }
        story.event(&changed(request))
    };
    let mut forced = Story::running(2, 0);
    assert_eq!(restart(&mut forced), ["stop n0 1000", "stop n1 1000"]);
    go_over(&mut forced);
    assert_eq!(knobs(&forced), ["process_group_timeout_s=600"]);
    // In the ranks of another attempt it can be reverted in place again.
    assert_eq!(forced.event(&revert(None)).len(), 2);
    assert_eq!(
        forced.machine.current().knobs.live[0].change.reverts,
        Some(AttemptNo(2))
    );

    let mut older = Story::running(2, 0);
    older.machine.attempts[0].nodes[1]
        .prepared
        .as_mut()
        .unwrap()
        .turns_live = false;
    assert_eq!(older.event(&apply(KNOB, "600")), ["stop n0 1000", "stop n1 1000"]);
    let mut declared = Story::running(2, 0);
    let target = serde_json::from_str(r#""--timeout""#).unwrap();
    declared.machine.spec.knobs.insert(KNOB.into(), target);
    assert_eq!(
        declared.event(&apply(KNOB, "600")),
        ["stop n0 1000", "stop n1 1000"]
    );
    let mut ended = Story::running(2, 0);
    ended.end_all(1);
    assert_eq!(ended.event(&apply(KNOB, "600")), ["place 2"]);
    let mut others = Story::running(2, 0);
    assert_eq!(
        others.event(&apply("lr_scale", "2")),
        ["stop n0 1000", "stop n1 1000"]
    );
}

#[test]
fn a_change_by_another_attempt_leaves_what_ranks_have_not_answered_to_that_attempt() {
    let mut story = Story::running(2, 0);
    story.event(&apply(KNOB, "600"));
    story.event(&apply("lr_scale", "2"));
    story.report("n1", answer(Some("600"), 1, 3, false));
    go_over(&mut story);
    assert_eq!(knobs(&story), ["lr_scale=2", "process_group_timeout_s=600"]);
    assert_eq!(story.machine.attempts[0].knobs.live[0].state, InPlaceState::Left);
}

/// Applies the change with automatic revert.
fn apply_with_care(story: &mut Story) {
    let mut request = request(KNOB, "600");
    if let KnobRequest::Apply { auto_revert, .. } = &mut request {
        *auto_revert = Some(true);
    }
    story.event(&changed(request));
}

/// The collector's request when the verdict is against a change.
fn by_itself(id: ChangeId, reason: String) -> Event {
    changed(KnobRequest::revert(id, Some(reason)))
}

#[test]
fn a_change_of_the_attempt_is_reverted_automatically_despite_a_later_change_in_place() {
    let mut story = Story::running(2, 0);
    story.event(&apply("activation_checkpointing", "block"));
    go_over(&mut story);
    story.event(&apply(KNOB, "1200"));
    take(&mut story, Some("1200"), 1);
    story.event(&judged(AttemptNo(2), Decision::Rejected));
    let (id, why) = story.machine.change_to_revert().unwrap();
    assert_eq!(id, ChangeId::of(AttemptNo(2)));
    story.event(&by_itself(id, why));
    go_over(&mut story);
    assert_eq!(knobs(&story), ["process_group_timeout_s=1200"]);
    assert_eq!(story.machine.change_to_revert(), None);
    story.event(&revert(None));
    assert!(knobs(&story).is_empty());
}

#[test]
fn a_revert_that_ranks_refuse_is_not_requested_again() {
    let mut story = Story::running(2, 0);
    apply_with_care(&mut story);
    take(&mut story, Some("600"), 1);
    let verdict = Verdict {
        decision: Decision::Worse,
        ..Verdict::default()
    };
    story.event(&Event::KnobsJudged {
        attempt: AttemptNo(1),
        live: 1,
        verdict: Box::new(verdict),
    });
    let (id, why) = story.machine.change_to_revert().unwrap();
    assert_eq!(id.live, 1);
    story.event(&by_itself(id, why));
    story.report("n0", answer(None, 2, 0, false));
    assert_eq!(last(&story).1, InPlaceState::Refused);
    assert_eq!(knobs(&story), ["process_group_timeout_s=600"]);
    assert_eq!(story.machine.change_to_revert(), None);
}

#[test]
fn ranks_that_have_ended_are_not_waited_for() {
    let mut story = Story::running(2, 0);
    story.event(&apply(KNOB, "600"));
    for rank in [0, 1, 2] {
        story.report(
            ["n0", "n1"][rank as usize / 2],
            answer(Some("600"), 1, rank, true),
        );
    }
    assert_eq!(last(&story), (1, InPlaceState::Asked, 3));
    story.report("n1", exited(3, 0, 1));
    assert_eq!(last(&story), (1, InPlaceState::Taken, 3));
}
