#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::run::checkpoint::{CheckpointOnNode, Origin, resume_point};
use crate::run::spec::Spec;

fn seen_as(origin: Origin) -> std::collections::BTreeMap<String, CheckpointOnNode> {
    let view = CheckpointOnNode {
        origin: Some(origin),
        unproven: match origin {
            Origin::Proven => vec![],
            _ => vec!["extra.bin".into()],
        },
        ..CheckpointOnNode::default()
    };
    [("n0".to_owned(), view)].into()
}

fn full(step: u64) -> Checkpoint {
    Checkpoint {
        seen: seen_as(Origin::Proven),
        path: format!("/c/step-{step}"),
        step: Some(step),
        complete: true,
        finished_ms: Some(i64::try_from(step).expect("small") * 1_000),
        changed_ms: Some(i64::try_from(step).expect("small") * 1_000),
        ..Checkpoint::default()
    }
}

fn torn(step: u64) -> Checkpoint {
    Checkpoint {
        complete: false,
        finished_ms: None,
        problem: Some(".metadata is missing: the save did not finish".into()),
        ..full(step)
    }
}

fn model(step: u64) -> Checkpoint {
    Checkpoint {
        model_only: true,
        ..full(step)
    }
}

fn set(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn removed(checkpoints: &[Checkpoint], keep: Keep) -> Vec<u64> {
    let situation = Situation {
        checkpoints,
        pinned: &set(&["/c/step-2"]),
        pinned_by_others: &set(&[]),
        in_use: &set(&["/c/step-3"]),
        folders: &set(&["/c"]),
        able_nodes: &set(&["n0"]),
        keep,
        by_hand: false,
    };
    let gone = decide(&situation);
    let step = |verdict: &Verdict| verdict.path.rsplit('-').next().and_then(|step| step.parse().ok());
    gone.iter()
        .filter(|verdict| verdict.is_removed())
        .filter_map(step)
        .collect()
}

fn last(last: u32) -> Keep {
    Keep {
        last: Some(last),
        ..Keep::default()
    }
}

#[test]
fn the_rules_one_by_one() {
    let ten: Vec<_> = (1..=10).map(full).collect();
    assert_eq!(
        removed(&ten, last(3)),
        [1, 4, 5, 6, 7],
        "2 is pinned, 3 is in use"
    );
    assert_eq!(removed(&ten, Keep::default()), [0_u64; 0]);
    assert_eq!(removed(&ten, last(0)), [1, 4, 5, 6, 7, 8, 9], "never the last");
    let every = Keep {
        every: Some(4),
        ..last(1)
    };
    assert_eq!(removed(&ten, every), [1, 5, 6, 7, 9]);
    let mut scored = ten.clone();
    (scored[5].val_loss, scored[6].val_loss) = (Some(0.5), Some(0.75));
    let best = Keep {
        best: true,
        ..last(1)
    };
    assert_eq!(removed(&scored, best), [1, 4, 5, 7, 8, 9]);
}

#[test]
fn an_incomplete_checkpoint_is_removed_only_after_a_later_complete_one() {
    let writing = Checkpoint {
        writing: true,
        ..torn(6)
    };
    let all = [full(4), torn(5), writing, full(7), torn(8), torn(9)];
    assert_eq!(removed(&all, last(5)), [5]);
    assert_eq!(
        removed(&[torn(4), torn(5), model(6)], last(1)),
        [0_u64; 0],
        "no checkpoint to resume from"
    );
}

#[test]
fn model_only_ones_live_as_long_as_the_full_ones_around_them() {
    let all = [full(10), model(11), full(20), model(21), full(30), model(31)];
    assert_eq!(removed(&all, last(2)), [10, 11]);
    assert_eq!(removed(&all, last(1)), [10, 11, 20, 21]);
}

/// The recipe `resume` replaces `best.pth` whenever the validation loss falls; a run that kept its last checkpoint lost it.
#[test]
fn a_model_without_a_step_in_its_name_is_left_to_the_script() {
    let best = Checkpoint {
        path: "/c/best.pth".into(),
        ..model(11)
    };
    let all = [full(10), best, model(12), full(30)];
    assert_eq!(removed(&all, last(1)), [10, 12]);
    assert_eq!(reasons(&all, &[])[1].1, "no_step");
}

#[test]
fn after_a_step_back_both_the_furthest_and_the_newest_stay() {
    let back = Checkpoint {
        finished_ms: Some(99_000),
        ..full(5)
    };
    assert_eq!(removed(&[full(1), back, full(10), full(9)], last(1)), [1, 9]);
}

#[test]
fn what_one_that_stays_links_into_stays() {
    let needs = |step: u64, needed: &str| Checkpoint {
        needs: set(&[needed]),
        ..full(step)
    };
    let all = [full(4), needs(5, "/c/step-4"), full(6), needs(7, "/c/step-5")];
    assert_eq!(removed(&all, last(1)), [6]);
}

/// The reasons by path, for a run that keeps the last checkpoint.
fn reasons(checkpoints: &[Checkpoint], pinned_by_others: &[&str]) -> Vec<(String, &'static str, String)> {
    let verdicts = decide(&Situation {
        checkpoints,
        pinned: &set(&[]),
        pinned_by_others: &set(pinned_by_others),
        in_use: &set(&[]),
        folders: &set(&["/c"]),
        able_nodes: &set(&["n0"]),
        keep: last(1),
        by_hand: true,
    });
    let line = |verdict: Verdict| (verdict.path, verdict.reason.kind(), verdict.reason.to_string());
    verdicts.into_iter().map(line).collect()
}

/// A folder contained `best_model.pt` and `pretrained/base.pt`, two days older than the run. A run that kept the last checkpoint lost both.
#[test]
fn what_was_there_before_the_run_is_kept_and_protects_nothing_of_the_run() {
    let foreign = |name: &str, model_only| Checkpoint {
        path: format!("/c/{name}"),
        step: None,
        model_only,
        foreign: true,
        seen: seen_as(Origin::BeforeStart),
        ..full(0)
    };
    let all = [
        full(1),
        full(2),
        foreign("best_model.pt", true),
        foreign("pretrained/base.pt", false),
        foreign("0", true),
    ];
    let kinds: Vec<_> = reasons(&all, &[]).into_iter().map(|(_, kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [
            "older_than_last",
            "last_complete",
            "not_proven",
            "not_proven",
            "not_proven"
        ]
    );
    let alone = reasons(&all[2..], &[]);
    assert!(
        alone.iter().all(|(_, kind, _)| *kind == "not_proven"),
        "{alone:?}"
    );
}

#[test]
fn what_the_policy_would_remove_without_proof_is_kept_and_says_so() {
    for (origin, text) in [
        (Origin::Proven, "older than the last 1"),
        (Origin::SinceStart, "not proven to be this run's: extra.bin"),
        (Origin::Unknown, "not proven to be this run's: extra.bin"),
    ] {
        let old = Checkpoint {
            seen: seen_as(origin),
            ..full(1)
        };
        assert_eq!(reasons(&[old, full(2)], &[])[0].2, text);
    }
    let old_agent = Checkpoint {
        seen: [("n0".to_owned(), CheckpointOnNode::default())].into(),
        ..full(1)
    };
    assert_eq!(
        reasons(&[old_agent, full(2)], &[])[0].2,
        "not proven to be this run's"
    );
}

#[test]
fn a_pin_of_another_run_holds() {
    let all = [full(1), full(2), full(3)];
    let kinds: Vec<_> = reasons(&all, &["/c/step-2"])
        .into_iter()
        .map(|(_, kind, _)| kind)
        .collect();
    assert_eq!(
        kinds,
        ["older_than_last", "pinned_by_another_run", "last_complete"]
    );
}

#[test]
fn what_one_that_is_kept_for_want_of_proof_links_into_stays() {
    let unproven = Checkpoint {
        needs: set(&["/c/step-1"]),
        seen: seen_as(Origin::SinceStart),
        ..full(2)
    };
    let kinds: Vec<_> = reasons(&[full(1), unproven, full(3)], &[])
        .into_iter()
        .map(|(_, kind, _)| kind)
        .collect();
    assert_eq!(kinds, ["needed", "not_proven", "last_complete"]);
}

/// The run continued on another node with a disk of its own, so no node can remove the checkpoint. The list must say so.
#[test]
fn a_checkpoint_that_no_node_can_remove_stays_with_what_it_links_into() {
    let on_another_node = |(_, view)| ("n1".to_owned(), view);
    let elsewhere = Checkpoint {
        needs: set(&["/c/step-1"]),
        seen: seen_as(Origin::Proven).into_iter().map(on_another_node).collect(),
        ..full(2)
    };
    let kinds: Vec<_> = reasons(&[full(1), elsewhere, full(3)], &[])
        .into_iter()
        .map(|(_, kind, _)| kind)
        .collect();
    assert_eq!(kinds, ["needed", "no_node", "last_complete"]);
}

#[test]
fn outside_is_outside_however_it_is_written() {
    for (path, inside) in [
        ("/c/x", true),
        ("/c/a/b", true),
        ("/c", false),
        ("/c/", false),
        ("/cc/x", false),
        ("/c/../etc", false),
        ("/c/./x", false),
        ("/d/x", false),
    ] {
        assert_eq!(is_inside(path, "/c/"), inside, "{path}");
    }
}

#[test]
fn a_spec_says_a_number_or_a_table() {
    let read = |json: &str| serde_json::from_str::<Spec>(json).map(|spec| spec.keep_checkpoints);
    assert_eq!(
        read(r#"{"recipe":"ddp","keep_checkpoints":3}"#).expect("a number"),
        last(3)
    );
    let table = read(r#"{"recipe":"ddp","keep_checkpoints":{"last":3,"every":1000,"best":true}}"#);
    let all = Keep {
        last: Some(3),
        every: Some(1_000),
        best: true,
    };
    assert_eq!(table.expect("a table"), all);
    assert!(read(r#"{"recipe":"ddp","keep_checkpoints":{"lasst":3}}"#).is_err());
    let sent = serde_json::to_string(&Spec::default()).expect("JSON");
    assert!(
        !sent.contains("keep_checkpoints"),
        "an older node would refuse it"
    );
}

fn any_checkpoint() -> impl Strategy<Value = Checkpoint> {
    let flags = (
        any::<bool>(),
        0_u8..8,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
        0_u8..8,
    );
    let ages = (
        prop::option::of(0_u64..60),
        prop::option::of(0_i64..60),
        prop::option::of(0_i64..60),
    );
    (
        0_u32..60,
        flags,
        ages,
        prop::bool::weighted(0.1),
        prop::option::of(0_u32..60),
    )
        .prop_map(
            |(
                name,
                (complete, model_only, writing, uncertain, origin),
                (step, finished_ms, changed_ms),
                outside,
                needs,
            )| {
                let folder = if outside { "/elsewhere" } else { "/c" };
                let origin = match origin {
                    0 => Origin::BeforeStart,
                    1 => Origin::SinceStart,
                    2 => Origin::Unknown,
                    _ => Origin::Proven,
                };
                Checkpoint {
                    seen: seen_as(origin),
                    foreign: origin == Origin::BeforeStart,
                    path: format!("{folder}/{name}"),
                    step,
                    complete,
                    model_only: model_only == 0,
                    writing: writing && !complete,
                    uncertain,
                    finished_ms,
                    changed_ms,
                    val_loss: step.map(|step| 60.0 - f64::from(u32::try_from(step).unwrap_or(0))),
                    needs: needs.map(|name| format!("/c/{name}")).into_iter().collect(),
                    ..Checkpoint::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_must_never_go_never_goes(
        checkpoints in prop::collection::vec(any_checkpoint(), 40),
        pins in prop::collection::btree_set(0_u32..60, 0..3),
        others in prop::collection::btree_set(0_u32..60, 0..3),
        used in prop::option::of(0_u32..60),
        (keep_last, every, best) in (prop::option::of(0_u32..5), prop::option::of(0_u64..10), any::<bool>()),
        by_hand in any::<bool>(),
    ) {
        let mut checkpoints = checkpoints;
        let mut names = BTreeSet::new();
        checkpoints.retain(|checkpoint| names.insert(checkpoint.path.clone()));
        let pinned: BTreeSet<String> = pins.iter().map(|name| format!("/c/{name}")).collect();
        let others: BTreeSet<String> = others.iter().map(|name| format!("/c/{name}")).collect();
        let in_use: BTreeSet<String> = used.iter().map(|name| format!("/c/{name}")).collect();
        let verdicts = decide(&Situation {
            checkpoints: &checkpoints,
            pinned: &pinned,
            pinned_by_others: &others,
            in_use: &in_use,
            folders: &set(&["/c"]),
            able_nodes: &set(&["n0"]),
            keep: Keep { last: keep_last, every, best },
            by_hand,
        });
        let whole = |checkpoint: &&Checkpoint| checkpoint.is_usable();
        let newest_ms = checkpoints.iter().filter(whole).filter_map(|checkpoint| checkpoint.finished_ms).max();
        let kept: BTreeSet<&str> = verdicts.iter().filter(|v| !v.is_removed()).map(|v| v.path.as_str()).collect();
        if let Some(point) = resume_point(&checkpoints) {
            prop_assert!(kept.contains(point.path.as_str()), "the last good one");
        } else {
            prop_assert_eq!(kept.len(), checkpoints.len());
        }
        for checkpoint in checkpoints.iter().filter(|checkpoint| !kept.contains(checkpoint.path.as_str())) {
            prop_assert!(checkpoint.path.starts_with("/c/"));
            prop_assert!(!pinned.contains(&checkpoint.path) && !in_use.contains(&checkpoint.path));
            prop_assert!(!others.contains(&checkpoint.path));
            prop_assert!(checkpoint.is_proven() && !checkpoint.foreign, "only what the run wrote");
            prop_assert!(!checkpoint.writing && !checkpoint.uncertain);
            prop_assert!(checkpoint.changed_ms.max(checkpoint.finished_ms) <= newest_ms);
            let needed = checkpoints.iter().any(|other| kept.contains(other.path.as_str()) && other.needs.contains(&checkpoint.path));
            prop_assert!(!needed);
        }
        let fulls = checkpoints.iter().filter(whole).filter(|one| kept.contains(one.path.as_str())).count();
        let asked = usize::try_from(keep_last.unwrap_or(0)).expect("small");
        prop_assert!(fulls >= asked.min(checkpoints.iter().filter(whole).count()), "as many as were asked for");
    }
}
