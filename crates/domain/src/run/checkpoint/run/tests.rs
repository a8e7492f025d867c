#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use super::*;
use crate::ident::{AttemptNo, NodeName, Rank, RunId};
use crate::run::checkpoint::requested::RETRY_AFTER_MS;
use crate::run::checkpoint::{Checkpoint, CheckpointOnNode, Origin};
use crate::run::knob::{Decision, Recovery};
use crate::run::spec::Spec;
use crate::run::state::{Action, Divergence, NodeEnd, RunState, Task, advance};

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn placed(keep_last: Option<u32>) -> Machine {
    let spec = Spec {
        recipe: Some("ddp".into()),
        nodes: Some(2),
        checkpoint_dir: Some("/c".into()),
        keep_checkpoints: Keep {
            last: keep_last,
            ..Keep::default()
        },
        ..Spec::default()
    };
    let (machine, _) = Machine::submit(RunId::new("r").expect("an id"), spec, 0);
    let event = Event::Placed {
        attempt: AttemptNo(1),
        nodes: vec![node("a"), node("b")],
    };
    advance(&machine, &event, 1).0
}

/// A prune by a person who has seen these steps in the list.
fn prune(keep_last: Option<u32>, steps: &[u64]) -> Event {
    Event::PruneRequested {
        keep_last,
        seen: steps.iter().map(|step| format!("/c/step-{step}")).collect(),
    }
}

fn report(from: &str, steps: &[u64]) -> Event {
    report_of(from, steps, Some(Origin::Proven))
}

fn report_of(from: &str, steps: &[u64], origin: Option<Origin>) -> Event {
    let checkpoint = |step: &u64| Checkpoint {
        path: format!("/c/step-{step}"),
        step: Some(*step),
        finished_ms: i64::try_from(*step).ok(),
        seen: [(
            from.to_owned(),
            CheckpointOnNode {
                mark: format!("inode-{step}"),
                complete: true,
                origin,
                ..CheckpointOnNode::default()
            },
        )]
        .into(),
        ..Checkpoint::default()
    };
    Event::Reported {
        attempt: AttemptNo(1),
        node: node(from),
        report: NodeReport::Checkpoints(CheckpointReport {
            folder: Some("/c".into()),
            proves: origin.is_some(),
            checkpoints: steps.iter().map(checkpoint).collect(),
            ..CheckpointReport::default()
        }),
    }
}

fn orders(actions: &[Action]) -> Vec<(&str, &RemovalOrder)> {
    actions
        .iter()
        .filter_map(|action| match &action.task {
            Task::Command {
                node,
                command: NodeCommand::Remove(order),
            } => Some((node.as_str(), order)),
            _ => None,
        })
        .collect()
}

#[test]
fn one_node_of_a_shared_storage_gets_an_order_once_and_again_later() {
    let machine = placed(Some(1));
    let (machine, actions) = advance(&machine, &report("a", &[1, 2]), 10);
    let told = orders(&actions);
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].0, told[0].1.remove.as_slice()),
        ("a", &["/c/step-1".to_owned()][..])
    );
    assert_eq!(
        (told[0].1.remain.path.as_str(), told[0].1.remain.complete),
        ("/c/step-2", true)
    );

    let (machine, actions) = advance(&machine, &report("b", &[1, 2]), 20);
    assert_eq!(orders(&actions), [], "b looks at the same storage");
    let (machine, actions) = advance(&machine, &report("b", &[1, 2]), RemovalOrder::VALID_MS + 9);
    assert_eq!(orders(&actions), [], "a may still carry out the order");
    let (machine, actions) = advance(&machine, &report("b", &[1, 2]), RemovalOrder::VALID_MS + 10);
    assert_eq!(orders(&actions).len(), 1);
    let (machine, _) = advance(&machine, &report("a", &[2]), RemovalOrder::VALID_MS + 40);
    assert_eq!(machine.checkpoints.len(), 1, "gone for both");
}

#[test]
fn reports_pins_and_pruning_continue_after_the_end() {
    let mut machine = placed(None);
    for name in ["a", "b"] {
        let end = Event::Reported {
            attempt: AttemptNo(1),
            node: node(name),
            report: NodeReport::Ended(NodeEnd {
                code: Some(0),
                ..NodeEnd::default()
            }),
        };
        machine = advance(&machine, &end, 5).0;
    }
    assert_eq!(machine.state, RunState::Succeeded);
    let (machine, actions) = advance(&machine, &report("a", &[1, 2, 3]), 10);
    assert_eq!((machine.checkpoints.len(), orders(&actions).len()), (3, 0));
    let pin = Event::CheckpointPinned {
        path: "/c/step-1".into(),
        pinned: true,
    };
    let (machine, _) = advance(&machine, &pin, 11);
    let answer = machine.prune_answer(Some(1));
    let removed: Vec<_> = answer.removed.iter().map(|line| line.path.as_str()).collect();
    assert_eq!(removed, ["/c/step-2"]);
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1, 2, 3]), 12);
    let told = orders(&actions);
    assert_eq!(told[0].1.remove, ["/c/step-2"]);
    assert!(machine.may_still_remove(told[0].1));
    let pin = Event::CheckpointPinned {
        path: "/c/step-2".into(),
        pinned: true,
    };
    let (machine, _) = advance(&machine, &pin, 13);
    assert!(!machine.may_still_remove(told[0].1), "pinned since");
    let list = machine.checkpoint_list(Some(10));
    assert_eq!(list.checkpoints[0].age_steps, Some(7));
    assert!(list.checkpoints[1].pinned && !list.checkpoints[0].pinned);
}

/// Between the dry run and the confirmation, the run saved step 4: the rule alone would now remove step 3 too.
#[test]
fn a_prune_removes_only_what_the_person_has_seen() {
    let (machine, _) = advance(&placed(None), &report("a", &[1, 2, 3]), 10);
    let seen = PruneLine::paths(&machine.prune_answer(Some(1)).removed);
    assert!(seen.iter().eq(["/c/step-1", "/c/step-2"]), "{seen:?}");
    let (machine, _) = advance(&machine, &report("a", &[1, 2, 3, 4]), 20);
    assert_eq!(machine.prune_answer(Some(1)).removed.len(), 3);
    let asked = Event::PruneRequested {
        keep_last: Some(1),
        seen,
    };
    let (machine, actions) = advance(&machine, &asked, 30);
    let told = orders(&actions);
    assert_eq!(told.len(), 1);
    let mut removed = told[0].1.remove.clone();
    removed.sort_unstable();
    assert_eq!(removed, ["/c/step-1", "/c/step-2"]);
    assert_eq!(machine.storage.prunes[0].removes.len(), 2);
    let (_, actions) = advance(&machine, &prune(Some(1), &[]), 40);
    assert_eq!(orders(&actions), []);
}

/// A person gave one order: no report leads to another one. It removed the first 64 checkpoints, and the rest stayed without a word.
#[test]
fn a_prune_of_many_checkpoints_removes_all_of_them() {
    let steps: Vec<u64> = (1..=100).collect();
    let (machine, _) = advance(&placed(None), &report("a", &steps), 10);
    let (_, actions) = advance(&machine, &prune(Some(1), &steps), 20);
    let told = orders(&actions);
    assert_eq!((told.len(), told[0].1.remove.len()), (1, 99));
    let (_, actions) = advance(&placed(Some(1)), &report("a", &steps), 10);
    assert_eq!(orders(&actions)[0].1.remove.len(), ORDER_MAX);
}

#[test]
fn a_later_order_repeats_an_earlier_one_if_it_removes_the_same() {
    let order = |machine: &Machine, from, steps: &[u64], now_ms| {
        let (machine, actions) = advance(machine, &report(from, steps), now_ms);
        let order = actions.into_iter().find(|action| action.removal().is_some());
        (machine, order.expect("an order"))
    };
    let (machine, first) = order(&placed(Some(1)), "a", &[1, 2], 10);
    let (machine, same) = order(&machine, "a", &[1, 2], RemovalOrder::VALID_MS + 10);
    let (_, more) = order(&machine, "a", &[1, 2, 3], 2 * RemovalOrder::VALID_MS + 10);
    assert!(first.is_repeated_by(&same) && same.is_repeated_by(&more));
    assert!(!more.is_repeated_by(&same), "it removes step 2 too");
    let (_, other) = order(&placed(Some(1)), "b", &[1, 2], 10);
    assert!(!first.is_repeated_by(&other), "another node");
}

/// The node sees other storage than the other nodes.
fn on_own_disk(mut event: Event) -> Event {
    if let Event::Reported {
        node,
        report: NodeReport::Checkpoints(report),
        ..
    } = &mut event
    {
        let views = report
            .checkpoints
            .iter_mut()
            .flat_map(|one| one.seen.values_mut());
        views.for_each(|view| view.mark = format!("{} of {node}", view.mark));
    }
    event
}

fn not_removed(machine: &Machine, step: u64) -> Option<String> {
    let mut checkpoints = machine.checkpoints.iter();
    checkpoints.find(|one| one.step == Some(step))?.not_removed()
}

/// A report of node a: it has steps 1 to `last`, and did not remove step 1 by the order of this time.
fn refused(last: u64, order_ms: Option<TimestampMs>) -> Event {
    let steps: Vec<u64> = (1..=last).collect();
    let mut event = report("a", &steps);
    if let Event::Reported {
        report: NodeReport::Checkpoints(report),
        ..
    } = &mut event
    {
        let view = report.checkpoints[0].seen.get_mut("a").expect("a view");
        view.not_removed = Some("a file operation failed".to_owned());
        view.not_removed_order_ms = order_ms;
    }
    event
}

/// A scan of the folder took more than a minute, so each report of a refusal led to the next order.
#[test]
fn an_automatic_order_that_a_node_refused_is_not_repeated_until_the_next_checkpoint() {
    for with_order_ms in [true, false] {
        let order_ms = |at_ms| with_order_ms.then_some(at_ms);
        let (machine, actions) = advance(&placed(Some(1)), &report("a", &[1, 2]), 10);
        assert_eq!(orders(&actions)[0].1.ordered_ms, Some(10));
        let mut machine = machine;
        for at_ms in [70_000, 140_000, 3_000_000] {
            let (next, actions) = advance(&machine, &refused(2, order_ms(10)), at_ms);
            assert_eq!(orders(&actions), [], "at {at_ms}");
            machine = next;
        }
        let (machine, actions) = advance(&machine, &refused(3, order_ms(10)), 20_000_000);
        assert_eq!(orders(&actions)[0].1.remove, ["/c/step-2", "/c/step-1"]);
        let (machine, actions) = advance(&machine, &refused(3, order_ms(20_000_000)), 22_000_000);
        let again: Vec<_> = orders(&actions).iter().map(|(_, order)| &order.remove).collect();
        assert_eq!(again, [&["/c/step-2"]], "step 2 has no answer");
        let (_, actions) = advance(&machine, &prune(Some(1), &[1]), 22_000_001);
        assert_eq!(
            orders(&actions)[0].1.remove,
            ["/c/step-1"],
            "a person requests it"
        );
    }
}

/// The order was refused because a file server did not answer, and then the disk became full: no later checkpoint was complete, so the order
/// was never repeated.
#[test]
fn an_automatic_order_that_a_node_refused_is_repeated_after_a_failed_save_and_after_an_hour() {
    let refused_with = |failed_ms: Option<TimestampMs>, order_ms| {
        let mut event = refused(2, Some(order_ms));
        if let Event::Reported {
            report: NodeReport::Checkpoints(report),
            ..
        } = &mut event
        {
            report.failure = failed_ms.map(|at_ms| SaveFailure {
                at_ms,
                ..SaveFailure::default()
            });
        }
        event
    };
    let (mut machine, _) = advance(&placed(Some(1)), &report("a", &[1, 2]), 10);
    for (failed_ms, order_ms, at_ms, is_repeated) in [
        (None, 10, 70_000, false),
        (Some(5), 10, 140_000, true),
        (Some(5), 140_000, 210_000, false),
        // The next attempt has not failed to save yet.
        (None, 140_000, 280_000, false),
        (Some(9), 140_000, 290_000, true),
        (Some(9), 290_000, 289_999 + RETRY_AFTER_MS, false),
        (Some(9), 290_000, 290_000 + RETRY_AFTER_MS, true),
    ] {
        let (next, actions) = advance(&machine, &refused_with(failed_ms, order_ms), at_ms);
        assert_eq!(orders(&actions).len(), usize::from(is_repeated), "at {at_ms}");
        machine = next;
    }
}

/// The node sent a report before it got the second order. The old reason was shown again.
#[test]
fn a_late_answer_to_an_earlier_order_does_not_replace_that_of_the_current_one() {
    let (machine, _) = advance(&placed(None), &report("a", &[1, 2]), 10);
    let (machine, _) = advance(&machine, &prune(Some(1), &[1]), 20);
    let (machine, _) = advance(&machine, &refused(2, Some(20)), 30);
    assert!(not_removed(&machine, 1).is_some());
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1]), 40);
    let order = orders(&actions)[0].1.clone();
    let (machine, _) = advance(&machine, &refused(2, Some(20)), 50);
    assert_eq!(not_removed(&machine, 1), None, "the answer to the first order");
    let earlier = Event::RemovalDropped {
        node: node("a"),
        order: RemovalOrder {
            ordered_ms: Some(20),
            ..order
        },
    };
    let (machine, _) = advance(&machine, &earlier, 55);
    assert_eq!(not_removed(&machine, 1), None, "only the first order is dropped");
    let (machine, _) = advance(&machine, &refused(2, Some(40)), 60);
    assert_eq!(
        not_removed(&machine, 1).as_deref(),
        Some("a file operation failed (on a)")
    );
}

/// The disk of the agent was full, or the machine did not come back: the order had neither succeeded nor failed.
#[test]
fn an_order_that_its_node_accepted_and_never_answered_ends_with_a_reason() {
    let (machine, _) = advance(&placed(None), &report("a", &[1, 2]), 10);
    let (machine, _) = advance(&machine, &prune(Some(1), &[1]), 20);
    let end_ms = 20 + 2 * RemovalOrder::VALID_MS;
    let (machine, _) = advance(&machine, &Event::Tick, end_ms - 1);
    assert!(!machine.has_overdue_removal(end_ms - 1) && not_removed(&machine, 1).is_none());
    assert!(machine.has_overdue_removal(end_ms));
    let (machine, _) = advance(&machine, &Event::Tick, end_ms);
    let reason = not_removed(&machine, 1).expect("a reason");
    assert!(reason.starts_with(NO_ANSWER), "{reason}");
    assert!(!machine.has_overdue_removal(end_ms), "it is recorded once");
    let (machine, _) = advance(&machine, &refused(2, Some(20)), end_ms + 1);
    let reason = not_removed(&machine, 1).expect("a reason");
    assert!(reason.starts_with("a file operation failed"), "{reason}");
}

#[test]
fn an_order_names_the_checkpoints_as_the_node_has_reported_them() {
    let (_, actions) = advance(&placed(Some(1)), &report("a", &[1, 2]), 10);
    let marks: BTreeMap<String, String> = [("/c/step-1".to_owned(), "inode-1".to_owned())].into();
    assert_eq!(orders(&actions)[0].1.marks, marks);
}

/// The run continued on another node with a disk of its own, so no node can remove the old checkpoint. The list must say so.
#[test]
fn a_checkpoint_without_a_node_that_sees_what_must_remain_is_listed_as_kept() {
    let (machine, _) = advance(&placed(None), &report("a", &[1]), 10);
    let (machine, _) = advance(&machine, &report("b", &[2]), 20);
    let answer = machine.prune_answer(Some(1));
    let kept: Vec<_> = answer
        .kept
        .iter()
        .map(|line| (line.path.as_str(), line.kind.as_str()))
        .collect();
    assert_eq!(kept, [("/c/step-2", "last_complete"), ("/c/step-1", "no_node")]);
    assert_eq!(answer.removed, []);
    // The person confirmed a list from before that.
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1]), 30);
    assert_eq!(orders(&actions), []);
    let reason = not_removed(&machine, 1).expect("a reason");
    assert!(reason.contains("also sees the last complete one"), "{reason}");
}

#[test]
fn a_storage_without_a_node_that_sees_what_must_remain_keeps_its_part_with_a_reason() {
    let (machine, _) = advance(&placed(None), &on_own_disk(report("a", &[1])), 10);
    let (machine, _) = advance(&machine, &on_own_disk(report("b", &[1, 2])), 20);
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1]), 30);
    let told = orders(&actions);
    assert_eq!((told.len(), told[0].0), (1, "b"));
    let reason = not_removed(&machine, 1).expect("a reason");
    assert!(reason.ends_with("(on a)"), "{reason}");
    let (machine, _) = advance(&machine, &on_own_disk(report("a", &[1, 2])), 40);
    assert_eq!(
        not_removed(&machine, 1),
        Some(reason),
        "until it is requested again"
    );
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1]), 50);
    assert_eq!((orders(&actions).len(), not_removed(&machine, 1)), (2, None));
}

/// The last report of a is older than the checkpoint that must remain.
#[test]
fn of_the_nodes_of_a_storage_one_that_sees_what_must_remain_gets_the_order() {
    let (machine, _) = advance(&placed(None), &report("a", &[1]), 10);
    let (machine, _) = advance(&machine, &report("b", &[1, 2]), 20);
    let (_, actions) = advance(&machine, &prune(Some(1), &[1]), 30);
    let told = orders(&actions);
    assert_eq!((told.len(), told[0].0), (1, "b"));
}

#[test]
fn reports_of_a_node_without_a_task_are_ignored() {
    let (machine, actions) = advance(&placed(Some(1)), &report("z", &[1, 2]), 10);
    assert!(machine.checkpoints.is_empty() && orders(&actions).is_empty());
}

#[test]
fn a_node_with_an_older_agent_gets_no_order() {
    let machine = placed(Some(1));
    let (machine, actions) = advance(&machine, &report_of("a", &[1, 2], None), 10);
    assert_eq!(orders(&actions), []);
    let answer = machine.prune_answer(None);
    assert_eq!(
        (answer.kept[1].kind.as_str(), answer.removed.len()),
        ("not_proven", 0)
    );
    let (machine, actions) = advance(&machine, &report("b", &[1, 2]), 20);
    assert_eq!(orders(&actions).len(), 1);
    assert_eq!(
        orders(&actions)[0].0,
        "b",
        "b looks at the same storage, and can prove it"
    );
    let downgraded = report_of("b", &[1, 2], None);
    let (machine, _) = advance(&machine, &downgraded, 30);
    let (_, actions) = advance(&machine, &prune(None, &[1, 2]), 40);
    assert_eq!(orders(&actions), []);
}

#[test]
fn a_pin_of_another_run_cancels_an_order() {
    let machine = placed(Some(1));
    let (machine, actions) = advance(&machine, &report("a", &[1, 2]), 10);
    let order = orders(&actions)[0].1.clone();
    assert!(machine.may_still_remove(&order));
    let pinned = Event::PinnedByOthers {
        paths: ["/c/step-1".to_owned()].into(),
    };
    let (machine, _) = advance(&machine, &pinned, 11);
    assert!(!machine.may_still_remove(&order));
    let list = machine.checkpoint_list(None);
    assert_eq!(
        list.retention,
        machine.prune_answer(None),
        "the page shows the dry run's list"
    );
    assert_eq!(list.retention.kept[1].kind, "pinned_by_another_run");
    let unpinned = Event::PinnedByOthers { paths: [].into() };
    let (machine, _) = advance(&machine, &unpinned, 12);
    assert!(machine.may_still_remove(&order));
}

/// Otherwise a node that is offline for days would execute the order when it reconnects, long after the request.
#[test]
fn an_order_that_is_not_accepted_expires_with_a_reason() {
    let (machine, _) = advance(&placed(None), &report("a", &[1, 2, 3]), 10);
    let (machine, actions) = advance(&machine, &prune(Some(1), &[1, 2]), 20);
    let order = orders(&actions)[0].1.clone();
    let end_ms = 20 + RemovalOrder::VALID_MS;
    let action = actions
        .iter()
        .find(|action| action.removal().is_some())
        .expect("an order");
    assert!(machine.is_due(action, end_ms - 1) && !machine.is_due(action, end_ms));
    let dropped = Event::RemovalDropped {
        node: node("a"),
        order,
    };
    let (expired, _) = advance(&machine, &dropped, end_ms);
    for step in [1, 2] {
        let reason = not_removed(&expired, step).expect("a reason");
        assert!(reason.starts_with(EXPIRED), "{reason}");
    }
    assert_eq!(not_removed(&expired, 3), None);
    let (expired, _) = advance(&expired, &report("a", &[1, 2, 3, 4]), end_ms + 10);
    assert!(
        not_removed(&expired, 1).is_some(),
        "the node does not know of the order"
    );

    let pin = Event::CheckpointPinned {
        path: "/c/step-1".into(),
        pinned: true,
    };
    let (pinned, _) = advance(&machine, &pin, 30);
    assert!(!pinned.is_due(action, 30));
    // The clock was set back: the order seems to be young.
    let (early, _) = advance(&machine, &dropped, 25);
    assert!(not_removed(&early, 1).is_some_and(|reason| reason.starts_with(EXPIRED)));
    let (pinned, _) = advance(&pinned, &dropped, 30);
    let reasons = [1, 2].map(|step| not_removed(&pinned, step).expect("a reason"));
    assert!(
        reasons[0].starts_with("it must be kept now: pinned"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].starts_with("another checkpoint of the same order"),
        "{reasons:?}"
    );
}

#[test]
fn an_order_whose_proof_is_lost_is_cancelled() {
    let machine = placed(Some(1));
    let (machine, actions) = advance(&machine, &report("a", &[1, 2]), 10);
    let order = orders(&actions)[0].1.clone();
    let changed = report_of("a", &[1, 2], Some(Origin::SinceStart));
    let (machine, _) = advance(&machine, &changed, 20);
    assert!(!machine.may_still_remove(&order));
}

/// Another user's checkpoint of step 900 was in the folder, and the run resumed from it automatically.
#[test]
fn a_checkpoint_older_than_the_run_is_resumed_from_only_if_a_user_names_it() {
    let machine = placed(None);
    let (machine, _) = advance(&machine, &report_of("a", &[900], Some(Origin::BeforeStart)), 10);
    assert_eq!(machine.resume_point(), None);
    let mut machine = machine;
    for name in ["a", "b"] {
        let end = Event::Reported {
            attempt: AttemptNo(1),
            node: node(name),
            report: NodeReport::Ended(NodeEnd {
                code: Some(1),
                ..NodeEnd::default()
            }),
        };
        machine = advance(&machine, &end, 15).0;
    }
    let named = crate::run::checkpoint::ResumedFrom {
        path: "/c/step-900".into(),
        step: Some(900),
    };
    let resume = Event::ResumeRequested {
        from: Some(named.clone()),
        from_start: false,
    };
    let (machine, _) = advance(&machine, &resume, 20);
    assert_eq!(machine.resume_point(), Some(named), "and again after a failure");
}

fn report_with(steps: &[u64], free_bytes: u64, failure: Option<&str>) -> Event {
    let mut event = report("a", steps);
    if let Event::Reported {
        report: NodeReport::Checkpoints(report),
        ..
    } = &mut event
    {
        report.free_bytes = Some(free_bytes);
        report.failure = failure.map(|error| SaveFailure {
            at_ms: 5,
            error: error.to_owned(),
            ..SaveFailure::default()
        });
        for checkpoint in &mut report.checkpoints {
            checkpoint
                .seen
                .values_mut()
                .for_each(|view| view.own_bytes = 1 << 20);
        }
    }
    event
}

#[test]
fn a_prune_tells_what_it_freed_and_whether_the_next_save_succeeded() {
    let full = report_with(&[1, 2, 3], 0, Some("No space left on device"));
    let (machine, _) = advance(&placed(None), &full, 10);
    let (machine, _) = advance(&machine, &prune(Some(1), &[1, 2]), 20);
    let verdict = |machine: &Machine| machine.storage.prunes[0].verdict();
    assert_eq!(verdict(&machine).decision, Decision::NotYet);

    let freed = report_with(&[3], 2 << 20, Some("No space left on device"));
    let (machine, _) = advance(&machine, &freed, 30);
    assert_eq!(
        verdict(&machine).decision,
        Decision::NotYet,
        "the failure was before"
    );
    let again = report_with(&[3], 2 << 20, Some("Input/output error"));
    let (failed, _) = advance(&machine, &again, 40);
    assert_eq!(
        (verdict(&failed).decision, verdict(&failed).summary.as_str()),
        (
            Decision::NotRecovered,
            "freed 2.0 MiB (2 of 2 checkpoints removed), free space 0 B → 2.0 MiB; the next save failed: Input/output error"
        )
    );
    let saved = report_with(&[3, 4], 1 << 20, Some("Input/output error"));
    let (saved, _) = advance(&failed, &saved, 50);
    assert_eq!(
        (verdict(&saved).decision, verdict(&saved).recovery),
        (
            Decision::Recovered,
            Some(Recovery::CheckpointSpace {
                freed_bytes: 2 << 20,
                free_bytes_before: Some(0),
                free_bytes_after: Some(2 << 20),
                saved: Some("/c/step-4".to_owned()),
            })
        )
    );
    let nothing = advance(&saved, &prune(Some(9), &[3, 4]), 60).0;
    assert_eq!(nothing.storage.prunes.len(), 1, "it removes nothing");
}

fn diverged(last_good_step: u64) -> Event {
    Event::LossDiverged {
        attempt: AttemptNo(1),
        divergence: Some(Divergence {
            rank: Rank(0),
            last_good_step,
            last_good_ms: 2,
            bad_step: last_good_step + 2,
            good_below: 1.0,
            worst_loss: None,
        }),
    }
}

#[test]
fn a_run_does_not_resume_from_what_was_saved_after_its_loss_diverged() {
    let (machine, _) = advance(&placed(Some(1)), &report("a", &[1, 2]), 10);
    let from = |machine: &Machine| machine.resume_point().and_then(|from| from.step);
    let (machine, _) = advance(&machine, &diverged(2), 11);
    assert_eq!(from(&machine), Some(2));
    let (machine, actions) = advance(&machine, &report("a", &[2, 3, 4]), 12);
    assert_eq!(
        (from(&machine), orders(&actions)),
        (Some(2), vec![]),
        "the later ones are kept"
    );
    let list = machine.checkpoint_list(None);
    assert!(!list.checkpoints[0].complete);
    assert_eq!(
        list.checkpoints[0].problem.as_deref(),
        Some("saved after step 2, when the loss had begun to diverge")
    );
    assert_eq!(list.retention.kept[0].kind, "diverged");

    // A later alert about the same attempt names a later step.
    let (machine, _) = advance(&machine, &diverged(3), 13);
    assert_eq!(from(&machine), Some(2));
    let stored = serde_json::to_string(&crate::run::stored::V1::from(&machine)).expect("JSON");
    let read: crate::run::stored::V1<'_> = serde_json::from_str(&stored).expect("the same");
    assert_eq!(Machine::from(read), machine);
    let good = Event::LossDiverged {
        attempt: AttemptNo(1),
        divergence: None,
    };
    let (machine, _) = advance(&machine, &good, 14);
    assert_eq!(from(&machine), Some(4), "the loss is good again");
}

#[test]
fn what_the_next_attempt_saves_is_good_until_it_diverges_too() {
    let (machine, _) = advance(&placed(None), &report("a", &[1, 2, 3]), 10);
    let (mut machine, _) = advance(&machine, &diverged(1), 11);
    let mut next = machine.attempts[0].clone();
    (next.no, next.started_ms) = (AttemptNo(2), 4);
    next.progress.divergence = None;
    machine.attempts.push(next);
    let (machine, _) = advance(&machine, &report("a", &[1, 2, 3, 4]), 12);
    let diverged: Vec<Option<u64>> = machine.checkpoints.iter().map(|one| one.diverged_after).collect();
    // Step 4 was saved at 4 ms, when the second attempt had begun.
    assert_eq!(diverged, [None, Some(1), Some(1), None]);
}
