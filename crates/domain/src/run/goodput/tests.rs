//! What becomes of the time of an attempt, and of a run whose attempts repeat steps.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::attempt::{AttemptTime, KeptSteps, progress};
use super::samples::Observed;
use super::*;
use crate::ident::{NodeName, RunId};
use crate::run::checkpoint::ResumedFrom;
use crate::run::spec::Spec;
use crate::run::state::{Attempt, NodePhase, Placement, Prepared, Progress, RankTask, RunState};

/// Seconds by what became of them: the name of a cause, `productive` or `unknown`.
type Expected<'a> = &'a [(&'a str, f64)];

fn sample(at_s: i64, value: f64) -> Sample {
    Sample {
        at_ms: at_s * 1_000,
        value,
    }
}

fn samples(list: &[(i64, f64)]) -> Vec<Sample> {
    list.iter().map(|(at_s, value)| sample(*at_s, *value)).collect()
}

/// One sample per 30 s: the rank was observed all the time.
fn observed_until(end_s: i64) -> Vec<Sample> {
    (0..=end_s / 30).map(|n| sample(n * 30, 1.0)).collect()
}

/// An attempt of one rank that held its node from 0 to 100 s and made one step per second from 10 s to 90 s.
fn seen() -> RunSamples {
    RunSamples {
        steps: samples(&[(10, 1.0), (50, 41.0), (90, 81.0)]),
        observed: observed_until(100),
        ..RunSamples::default()
    }
}

fn attempt(seen: &RunSamples) -> AttemptTime {
    let held = Span::new(0, 100_000);
    AttemptTime {
        held,
        ranks: 1.0,
        is_over: true,
        failing_since_ms: None,
        resumed_step: 0,
        last_step: None,
        may_lack_samples: false,
        kept: KeptSteps::All,
        points: progress(&Observed::new(seen).steps, held),
    }
}

fn named(breakdown: &Breakdown) -> BTreeMap<String, f64> {
    let word = |cause: &LossCause| serde_json::to_value(cause).unwrap().as_str().unwrap().to_owned();
    let lost = breakdown
        .lost_s
        .iter()
        .map(|(cause, lost_s)| (word(cause), *lost_s));
    let others = [
        ("productive".to_owned(), breakdown.productive_s),
        ("unknown".to_owned(), breakdown.unknown_s),
    ];
    lost.chain(others).filter(|(_, seconds)| *seconds > 0.0).collect()
}

fn check_breakdown(breakdown: &Breakdown, expected: Expected<'_>) {
    let found = named(breakdown);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let mut expected_names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    expected_names.sort_unstable();
    assert_eq!(names, expected_names, "{found:?}");
    for (name, seconds) in expected {
        assert!((found[*name] - seconds).abs() < 1e-6, "{name}: {found:?}");
    }
}

fn check(attempt: &AttemptTime, seen: &RunSamples, expected: Expected<'_>) {
    let breakdown = attempt.split(&Observed::new(seen), Span::new(0, 100_000));
    check_breakdown(&breakdown, expected);
}

#[test]
fn an_attempt_starts_up_trains_and_ends() {
    let seen = seen();
    let plain = attempt(&seen);
    check(
        &plain,
        &seen,
        &[("start_up", 10.0), ("productive", 80.0), ("ending", 10.0)],
    );
    let eight = AttemptTime { ranks: 8.0, ..plain };
    check(
        &eight,
        &seen,
        &[("start_up", 80.0), ("productive", 640.0), ("ending", 80.0)],
    );
}

#[test]
fn only_the_requested_period_counts() {
    let seen = seen();
    let within = attempt(&seen).split(&Observed::new(&seen), Span::new(5_000, 60_000));
    check_breakdown(&within, &[("start_up", 5.0), ("productive", 50.0)]);
}

#[test]
fn steps_without_a_sample_at_both_ends_took_as_long_as_those_beside_them() {
    let seen = RunSamples {
        steps: samples(&[(20, 11.0), (50, 41.0), (80, 71.0)]),
        ..seen()
    };
    let known = AttemptTime {
        last_step: Some(81),
        ..attempt(&seen)
    };
    check(
        &known,
        &seen,
        &[("start_up", 10.0), ("productive", 80.0), ("ending", 10.0)],
    );
    let failing = AttemptTime {
        failing_since_ms: Some(85_000),
        ..known
    };
    check(
        &failing,
        &seen,
        &[("start_up", 10.0), ("productive", 75.0), ("ending", 15.0)],
    );
}

#[test]
fn an_active_attempt_is_training_until_now() {
    let seen = seen();
    let active = AttemptTime {
        is_over: false,
        ..attempt(&seen)
    };
    check(&active, &seen, &[("start_up", 10.0), ("productive", 90.0)]);
}

#[test]
fn an_attempt_without_a_step_was_starting_unless_its_steps_may_be_unseen() {
    let seen = RunSamples::default();
    let starting = attempt(&seen);
    check(&starting, &seen, &[("start_up", 100.0)]);
    let unseen = AttemptTime {
        may_lack_samples: true,
        ..starting
    };
    check(&unseen, &seen, &[("unknown", 100.0)]);
}

#[test]
fn a_period_without_data_is_unknown_although_steps_were_made() {
    let seen = RunSamples {
        steps: samples(&[(10, 1.0), (20, 11.0), (320, 311.0)]),
        observed: samples(&[(0, 1.0), (30, 1.0), (60, 1.0), (250, 1.0), (300, 1.0)]),
        ..RunSamples::default()
    };
    let held = Span::new(0, 600_000);
    let attempt = AttemptTime {
        held,
        points: progress(&Observed::new(&seen).steps, held),
        failing_since_ms: Some(590_000),
        ..attempt(&seen)
    };
    let breakdown = attempt.split(&Observed::new(&seen), held);
    check_breakdown(
        &breakdown,
        &[
            ("start_up", 10.0),
            ("productive", 120.0),
            ("unknown", 190.0 + 270.0),
            ("ending", 10.0),
        ],
    );
    let coarse = RunSamples {
        interval_ms: 300_000,
        ..seen
    };
    let breakdown = attempt.split(&Observed::new(&coarse), held);
    check_breakdown(
        &breakdown,
        &[("start_up", 10.0), ("productive", 310.0), ("ending", 280.0)],
    );
}

#[test]
fn the_time_between_two_steps_is_lost_to_what_was_reported_in_it() {
    let plain = [("start_up", 10.0), ("productive", 40.0), ("ending", 10.0)];
    let with = |name, seconds| [&plain[..], &[(name, seconds)]].concat();
    let stalled = RunSamples {
        stalled: samples(&[(70, 1.0)]),
        ..seen()
    };
    check(&attempt(&stalled), &stalled, &with("stall", 40.0));
    let alone = RunSamples {
        alone: samples(&[(60, 1.0), (80, 1.0)]),
        ..seen()
    };
    check(&attempt(&alone), &alone, &with("one_rank_alone", 40.0));
}

#[test]
fn a_stall_after_the_last_step_lasts_as_long_as_it_was_reported() {
    let seen = RunSamples {
        stalled: samples(&[(94, 1.0), (97, 1.0)]),
        ..seen()
    };
    check(
        &attempt(&seen),
        &seen,
        &[
            ("start_up", 10.0),
            ("productive", 80.0),
            ("stall", 7.0),
            ("ending", 3.0),
        ],
    );
}

#[test]
fn saves_are_what_the_counter_rises_by_and_the_one_in_progress() {
    let seen = RunSamples {
        saved_s: samples(&[(20, 0.0), (40, 5.0), (60, 8.0), (70, 2.0)]),
        saving_s: samples(&[(55, 0.0), (59, 2.0), (96, 3.0)]),
        ..seen()
    };
    check(
        &attempt(&seen),
        &seen,
        &[
            ("start_up", 10.0),
            ("productive", 70.0),
            ("checkpoint", 5.0 + 3.0 + 2.0 + 3.0),
            ("ending", 7.0),
        ],
    );
}

#[test]
fn steps_that_a_later_attempt_repeats_are_lost() {
    let seen = seen();
    for (kept, repeated_s) in [(81, None), (61, Some(20.0)), (41, Some(40.0)), (0, Some(80.0))] {
        let attempt = AttemptTime {
            kept: KeptSteps::UpTo(kept),
            ..attempt(&seen)
        };
        let productive_s = 80.0 - repeated_s.unwrap_or(0.0);
        let mut expected = vec![("start_up", 10.0), ("ending", 10.0)];
        expected.extend((productive_s > 0.0).then_some(("productive", productive_s)));
        expected.extend(repeated_s.map(|lost_s| ("repeated_steps", lost_s)));
        check(&attempt, &seen, &expected);
    }
    let unknown = AttemptTime {
        kept: KeptSteps::Unknown,
        ..attempt(&seen)
    };
    check(
        &unknown,
        &seen,
        &[("start_up", 10.0), ("unknown", 80.0), ("ending", 10.0)],
    );
}

#[test]
fn data_and_stragglers_cost_a_share_of_the_steps_that_count() {
    let seen = RunSamples {
        interval_ms: 20_000,
        data_ratio: samples(&[(10, 0.5), (50, 0.1), (90, f64::NAN)]),
        straggler_ratio: samples(&[(50, 0.5), (90, 0.25)]),
        ..seen()
    };
    check(
        &attempt(&seen),
        &seen,
        &[
            ("start_up", 10.0),
            ("productive", 36.0 + 30.0),
            ("data", 4.0),
            ("straggler", 10.0),
            ("ending", 10.0),
        ],
    );
    let repeated = AttemptTime {
        kept: KeptSteps::UpTo(0),
        ..attempt(&seen)
    };
    check(
        &repeated,
        &seen,
        &[("start_up", 10.0), ("repeated_steps", 80.0), ("ending", 10.0)],
    );
}

#[test]
fn a_finding_that_begins_again_costs_nothing_in_between() {
    let seen = RunSamples {
        straggler_ratio: samples(&[(20, 0.5), (21, 0.5), (80, 0.5), (81, 0.5)]),
        ..seen()
    };
    check(
        &attempt(&seen),
        &seen,
        &[
            ("start_up", 10.0),
            ("productive", 79.0),
            ("straggler", 1.0),
            ("ending", 10.0),
        ],
    );
}

/// A run of two ranks whose first attempt failed at 100 s, and whose second one resumed from a step and runs since 200 s.
fn resumed_run(from: Option<ResumedFrom>) -> Machine {
    let (mut run, _) = Machine::submit(RunId::new("ddp-1").unwrap(), Spec::default(), 0);
    let task = NodeTask {
        node: NodeName::new("n1").unwrap(),
        phase: NodePhase::Running,
        away_since_ms: None,
        prepared: Some(Prepared::default()),
        command: String::new(),
        stop_grace_sent_ms: None,
        first_rank: 0,
        ranks: [(0, RankTask::default()), (1, RankTask::default())].into(),
        end: None,
        fault: None,
        sees_first: None,
    };
    let first = Attempt {
        nodes: vec![task],
        ended_ms: Some(100_000),
        placement: Placement {
            placed_ms: Some(0),
            ..Placement::default()
        },
        progress: Progress {
            highest_step: Some(81),
            failing_since_ms: Some(95_000),
            ..Progress::default()
        },
        ..run.attempts[0].clone()
    };
    let second = Attempt {
        no: run.next_attempt(),
        started_ms: 150_000,
        ended_ms: None,
        placement: Placement {
            placed_ms: Some(200_000),
            resumed_from: from,
            ..Placement::default()
        },
        progress: Progress {
            highest_step: Some(61),
            ..Progress::default()
        },
        ..first.clone()
    };
    run.attempts = vec![first, second];
    run.state = RunState::Running;
    run
}

fn resumed_from(step: Option<u64>) -> Option<ResumedFrom> {
    Some(ResumedFrom {
        path: "/c/step".into(),
        step,
    })
}

fn resumed_samples() -> RunSamples {
    let mut steps = seen().steps;
    steps.extend(samples(&[(220, 42.0), (239, 61.0)]));
    // The samples of two nodes come one after the other.
    steps.reverse();
    RunSamples {
        steps,
        observed: observed_until(240),
        ..RunSamples::default()
    }
}

#[test]
fn a_run_that_failed_and_resumed_loses_the_steps_after_the_checkpoint() {
    let within = Span::new(0, 240_000);
    for (from, expected) in [
        (
            resumed_from(Some(41)),
            &[
                ("start_up", 60.0),
                ("productive", 120.0),
                ("repeated_steps", 80.0),
                ("ending", 20.0),
            ][..],
        ),
        (
            resumed_from(None),
            &[
                ("start_up", 20.0),
                ("productive", 80.0),
                ("unknown", 160.0),
                ("ending", 20.0),
            ][..],
        ),
    ] {
        let time = split(&resumed_run(from), &resumed_samples(), within, 240_000);
        assert_eq!(time.counted, Counted::Ranks);
        assert!(
            (time.held_s - 140.0).abs() < 1e-6,
            "not once per rank: {}",
            time.held_s
        );
        check_breakdown(&time.breakdown, expected);
    }
}

#[test]
fn a_placement_after_the_first_step_is_that_of_a_restart_of_the_collector() {
    let mut run = resumed_run(resumed_from(Some(41)));
    run.attempts[1].placement.placed_ms = Some(230_000);
    let time = split(&run, &resumed_samples(), Span::new(150_000, 240_000), 240_000);
    check_breakdown(&time.breakdown, &[("productive", 40.0)]);
}

#[test]
fn a_run_is_counted_in_gpus_if_its_nodes_or_its_rank_report_some() {
    let counted = |gpus, backend, on_gpu: &[(i64, f64)]| {
        let mut run = resumed_run(None);
        run.spec.backend = backend;
        run.attempts[0].nodes[0].prepared = Some(Prepared {
            gpus,
            ..Prepared::default()
        });
        let samples = RunSamples {
            on_gpu: samples(on_gpu),
            ..RunSamples::default()
        };
        split(&run, &samples, Span::new(0, 1), 1).counted
    };
    assert_eq!(counted(0, Backend::Auto, &[]), Counted::Ranks);
    assert_eq!(counted(8, Backend::Auto, &[]), Counted::Gpus);
    assert_eq!(counted(8, Backend::Gloo, &[]), Counted::Ranks);
    assert_eq!(counted(0, Backend::Auto, &[(1, 1.0)]), Counted::Gpus);
}

#[test]
fn the_sentence_has_the_share_and_the_largest_causes() {
    let breakdown = |productive_s, unknown_s, lost: &[(LossCause, f64)]| Breakdown {
        productive_s,
        unknown_s,
        lost_s: lost.iter().copied().collect(),
    };
    let hour = 3_600.0;
    for (breakdown, counted, held_s, expected) in [
        (Breakdown::default(), Counted::Gpus, hour, None),
        (breakdown(60.0, 0.0, &[]), Counted::Gpus, 600.0, Some("100.0 %")),
        // 64 GPUs that start for 27 s.
        (
            breakdown(0.0, 0.0, &[(LossCause::StartUp, 64.0 * 27.0)]),
            Counted::Gpus,
            27.0,
            Some("too early to say · lost 28.8 GPU-min: start-up 28.8"),
        ),
        (
            breakdown(
                80.0 * hour,
                2.0 * hour,
                &[
                    (LossCause::StartUp, hour),
                    (LossCause::RepeatedSteps, 12.5 * hour),
                    (LossCause::Checkpoint, 6.0 * hour),
                    (LossCause::Ending, 0.5 * hour),
                ],
            ),
            Counted::Gpus,
            hour,
            Some(
                "80.0 % · lost 20.0 GPU-h: repeated steps 12.5, checkpoints 6.0, start-up 1.0 \
                 · no data for 2.0 GPU-h",
            ),
        ),
        (
            breakdown(90.0, 0.0, &[(LossCause::StartUp, 30.0), (LossCause::Data, 1.0)]),
            Counted::Ranks,
            hour,
            Some("74.4 % · lost 0.5 rank-min: start-up 0.5"),
        ),
        (
            breakdown(0.0, 120.0, &[]),
            Counted::Ranks,
            hour,
            Some("unknown · no data for 2.0 rank-min"),
        ),
    ] {
        assert_eq!(breakdown.sentence(counted, held_s).as_deref(), expected);
    }
}

#[test]
fn a_part_of_the_lost_time_has_the_unit_of_the_sentence() {
    let breakdown = |lost_s| Breakdown {
        lost_s: [(LossCause::Stall, lost_s)].into(),
        ..Breakdown::default()
    };
    for (lost_s, part_s, expected) in [
        (7_200.0, 1_800.0, Some("0.5 GPU-h")),
        (1_800.0, 1_200.0, Some("20.0 GPU-min")),
        (7_200.0, 60.0, None),
    ] {
        let found = breakdown(lost_s).part_in_words(Counted::Gpus, part_s);
        assert_eq!(found.as_deref(), expected, "{part_s} of {lost_s}");
    }
}

fn any_kept() -> impl Strategy<Value = KeptSteps> {
    prop_oneof![
        Just(KeptSteps::All),
        Just(KeptSteps::Unknown),
        (0_u64..120).prop_map(KeptSteps::UpTo),
    ]
}

fn any_samples() -> impl Strategy<Value = Vec<Sample>> {
    let values = prop::collection::btree_map(0_i64..1_000, -0.5_f64..60.0, 0..12);
    values.prop_map(|list| {
        list.into_iter()
            .map(|(at_s, value)| sample(at_s, value))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_parts_are_never_negative_and_add_up_to_the_time_of_the_attempt(
        steps in prop::collection::vec((0_i64..1_000, 0_u32..120), 0..12),
        lists in prop::collection::vec(any_samples(), 7),
        (held, within) in ((0_i64..1_000, 0_i64..1_000), (0_i64..1_000, 0_i64..1_000)),
        (resumed_step, last_step) in (0_u64..40, prop::option::of(0_u64..200)),
        failing_since_s in prop::option::of(0_i64..1_000),
        kept in any_kept(),
        (is_over, may_lack_samples) in (any::<bool>(), any::<bool>()),
    ) {
        let [observed, stalled, alone, saved_s, saving_s, data_ratio, straggler_ratio] =
            <[Vec<Sample>; 7]>::try_from(lists).unwrap();
        let steps = steps.iter().map(|(at_s, step)| sample(*at_s, f64::from(*step)));
        let seen = Observed::new(&RunSamples {
            interval_ms: 1_000,
            steps: steps.collect(),
            on_gpu: Vec::new(),
            observed,
            stalled,
            alone,
            saved_s,
            saving_s,
            data_ratio,
            straggler_ratio,
        });
        let span = |(a, b): (i64, i64)| Span::new(a.min(b) * 1_000, a.max(b) * 1_000);
        let (held, within) = (span(held), span(within));
        let attempt = AttemptTime {
            held,
            ranks: 3.0,
            is_over,
            failing_since_ms: failing_since_s.map(|at_s| at_s * 1_000),
            resumed_step,
            last_step,
            may_lack_samples,
            kept,
            points: progress(&seen.steps, held),
        };
        let breakdown = attempt.split(&seen, within);
        let expected_s = held.common(within).map_or(0.0, |span| 3.0 * span.seconds());
        prop_assert!((breakdown.allocated_s() - expected_s).abs() < 1e-6, "{breakdown:?}, not {expected_s}");
        let parts = breakdown.lost_s.values().chain([&breakdown.productive_s, &breakdown.unknown_s]);
        prop_assert!(parts.clone().all(|seconds| *seconds >= 0.0), "{breakdown:?}");
    }
}
