//! Verdicts on constructed traces.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{How, KnobDiff, Memory, MemoryKind, StepSample, Symptom};

fn change(knob: &str, old: Option<&str>, new: Option<&str>) -> Change {
    Change {
        set: vec![KnobDiff {
            knob: knob.into(),
            old: old.map(Into::into),
            new: new.map(Into::into),
            how: How::Injected,
        }],
        ..Change::default()
    }
}

/// A trace with steps of about this many milliseconds, from step `first` on.
fn trace(first: u64, count: u64, step_ms: f64, memory: Option<f64>) -> Trace {
    let sample = |step: u64| StepSample {
        step,
        seconds: Some(step_ms * (1.0 + 0.001 * (step % 7) as f64) / 1_000.0),
        loss: Some(5.0 / (1.0 + step as f64)),
        samples_per_second: Some(16_000.0 / step_ms),
    };
    Trace {
        samples: (first..first + count).map(sample).collect(),
        memory: memory.map(|bytes| Memory {
            kind: MemoryKind::SavedTensors,
            bytes,
        }),
        ended: false,
        out_of_memory: false,
    }
}

fn ended(trace: Trace) -> Trace {
    Trace { ended: true, ..trace }
}

fn decision(change: &Change, before: &Trace, after: &Trace) -> Decision {
    judge(change, &[], before, after).decision
}

#[test]
fn activation_checkpointing_is_held_to_its_rule() {
    let on = change("activation_checkpointing", None, Some("block"));
    let before = ended(trace(1, 40, 100.0, Some(1_000.0)));
    for (step_ms, bytes, expected) in [
        (125.0, Some(400.0), Decision::Kept),
        (129.0, Some(499.0), Decision::Kept),
        (131.0, Some(400.0), Decision::Rejected),
        (110.0, Some(500.0), Decision::Rejected),
        (110.0, None, Decision::Undecided),
    ] {
        let verdict = judge(&on, &[], &before, &trace(1, 40, step_ms, bytes));
        assert_eq!(
            verdict.decision, expected,
            "{step_ms} ms, {bytes:?}: {}",
            verdict.summary
        );
    }
    let mut other_losses = trace(1, 40, 110.0, Some(100.0));
    other_losses.samples[3].loss = Some(9.0);
    let verdict = judge(&on, &[], &before, &other_losses);
    assert_eq!(verdict.decision, Decision::Rejected);
    assert!(
        verdict.summary.contains("the losses are not the same"),
        "{}",
        verdict.summary
    );
    assert!(
        verdict.summary.contains("memory saved 90.0 %"),
        "{}",
        verdict.summary
    );
    // A revert, or a change of granularity, is judged like any other change.
    let off = change("activation_checkpointing", Some("block"), None);
    assert_eq!(
        decision(&off, &before, &trace(1, 40, 80.0, Some(1_000.0))),
        Decision::Better
    );
}

#[test]
fn other_knobs_are_weighed_by_what_they_bring() {
    let workers = change("num_workers", Some("0"), Some("4"));
    let before = ended(trace(1, 60, 100.0, None));
    for (step_ms, expected) in [
        (70.0, Decision::Better),
        (100.5, Decision::NoDifference),
        (140.0, Decision::Worse),
    ] {
        assert_eq!(
            decision(&workers, &before, &trace(61, 60, step_ms, None)),
            expected,
            "{step_ms}"
        );
    }
    let small = trace(61, 60, 80.0, Some(900.0));
    let large = ended(trace(1, 60, 100.0, Some(100.0)));
    assert_eq!(
        decision(&workers, &large, &small),
        Decision::Mixed,
        "faster for nine times the memory"
    );
    let mut batch = trace(61, 60, 180.0, None);
    for sample in &mut batch.samples {
        sample.samples_per_second = Some(178.0);
    }
    let doubled = change("micro_batch", Some("8"), Some("16"));
    assert_eq!(
        decision(&doubled, &before, &batch),
        Decision::Better,
        "by samples per second alone"
    );
}

#[test]
fn losses_that_should_stay_and_do_not_are_worse_and_those_of_another_rate_are_not() {
    let before = ended(trace(1, 40, 100.0, None));
    let mut after = trace(1, 40, 100.0, None);
    after.samples[0].loss = Some(f64::NAN);
    let verdict = judge(&change("num_workers", None, Some("1")), &[], &before, &after);
    assert_eq!(
        (verdict.decision, verdict.losses.unwrap().equal),
        (Decision::Worse, false)
    );
    assert_eq!(
        decision(&change("lr_scale", None, Some("0.5")), &before, &after),
        Decision::NoDifference
    );
    let apart = judge(
        &change("num_workers", None, Some("1")),
        &[],
        &before,
        &trace(41, 40, 100.0, None),
    );
    assert_eq!(apart.losses, None);
}

#[test]
fn too_few_steps_say_how_many_are_missing_and_whether_they_may_come() {
    let workers = change("num_workers", None, Some("1"));
    let before = ended(trace(1, 40, 100.0, None));
    for (count, end, expected) in [
        (0, false, (Decision::NotYet, Some(20))),
        (15, false, (Decision::NotYet, Some(10))),
        (15, true, (Decision::Undecided, Some(10))),
        (25, true, (Decision::NoDifference, None)),
    ] {
        let mut after = trace(41, count, 100.0, None);
        after.ended = end;
        let verdict = judge(&workers, &[], &before, &after);
        assert_eq!(
            (verdict.decision, verdict.missing_steps),
            expected,
            "{count} {}",
            verdict.summary
        );
    }
    let short = ended(trace(1, 9, 100.0, None));
    let verdict = judge(&workers, &[], &short, &trace(10, 40, 100.0, None));
    assert_eq!(
        (verdict.decision, verdict.missing_steps),
        (Decision::Undecided, Some(16))
    );
    assert!(
        verdict.summary.contains("4 were seen before the change")
            && verdict.summary.contains("apply it again"),
        "{}",
        verdict.summary
    );
}

#[test]
fn what_the_probe_could_not_turn_is_not_judged() {
    let answer = KnobAnswer {
        knob: "amp".into(),
        value: "bf16".into(),
        applied: false,
        detail: "the script has an autocast of its own".into(),
        rank: Rank(1),
        live: None,
    };
    let both = trace(1, 40, 100.0, None);
    let answers = std::slice::from_ref(&answer);
    let verdict = judge(&change("amp", None, Some("bf16")), answers, &both, &both);
    assert_eq!(verdict.decision, Decision::NotApplied);
    assert!(verdict.summary.ends_with("the script has an autocast of its own"));
    let later = KnobAnswer {
        applied: true,
        ..answer.clone()
    };
    let found = [answer.clone(), later];
    let verdict = judge(&change("amp", None, Some("bf16")), &found, &both, &both);
    assert_eq!(verdict.decision, Decision::NoDifference);
    let other = judge(&change("num_workers", None, Some("1")), answers, &both, &both);
    assert_eq!(other.decision, Decision::NoDifference, "another knob's answer");
}

#[test]
fn a_verdict_is_stored_and_read_as_it_was() {
    // Numbers with few bits: JSON may change the last bit of other numbers.
    let mut both = trace(1, 40, 128.0, Some(7.0));
    both.samples
        .iter_mut()
        .for_each(|sample| (sample.seconds, sample.loss) = (Some(0.125), Some(0.5)));
    let verdict = judge(&change("amp", None, Some("bf16")), &[], &both, &both);
    let text = serde_json::to_string(&verdict).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
}

#[test]
fn a_side_without_a_step_says_what_to_do() {
    let workers = change("num_workers", None, Some("1"));
    let (none, some) = (ended(Trace::default()), ended(trace(1, 40, 100.0, None)));
    for (before, after, seen, advice) in [
        (
            &none,
            &some,
            "no step was seen before the change",
            "make 25 steps, and apply it again",
        ),
        (
            &some,
            &none,
            "no step was seen since the change",
            "`lockstep run resume` continues",
        ),
    ] {
        let verdict = judge(&workers, &[], before, after);
        assert_eq!(verdict.decision, Decision::Undecided);
        assert!(verdict.summary.starts_with(seen), "{}", verdict.summary);
        assert!(verdict.summary.contains(advice), "{}", verdict.summary);
    }
}

#[test]
fn a_larger_batch_tried_by_itself_is_kept_for_more_samples_alone() {
    let trial = Change {
        follows: Some(AttemptNo(2)),
        ..change("micro_batch", None, Some("16"))
    };
    let before = ended(trace(1, 60, 100.0, Some(100.0)));
    for (rate, expected) in [
        (224.0, Decision::Kept),
        (161.0, Decision::Rejected),
        (120.0, Decision::Rejected),
    ] {
        let mut after = trace(61, 60, 180.0, Some(190.0));
        for sample in &mut after.samples {
            sample.samples_per_second = Some(rate);
        }
        let verdict = judge(&trial, &[], &before, &after);
        assert_eq!(verdict.decision, expected, "{rate}: {}", verdict.summary);
    }
    let mut untold = trace(61, 60, 180.0, None);
    for sample in &mut untold.samples {
        sample.samples_per_second = None;
    }
    assert_eq!(decision(&trial, &before, &untold), Decision::Undecided);
}

fn out_of_memory(last_step: u64) -> Change {
    Change {
        repairs: Some(Symptom::OutOfMemory { last_step }),
        ..change("activation_checkpointing", None, Some("block"))
    }
}

#[test]
fn a_run_that_ran_out_of_memory_has_recovered_when_it_passes_that_step() {
    // Too few steps before for any other verdict, and little memory saved.
    let before = ended(trace(1, 12, 100.0, Some(1_000.0)));
    let failed_again = Trace {
        out_of_memory: true,
        ..ended(trace(9, 4, 100.0, Some(1_000.0)))
    };
    for (after, expected) in [
        (trace(9, 5, 100.0, Some(900.0)), Decision::Recovered),
        (trace(9, 4, 100.0, Some(900.0)), Decision::NotYet),
        (ended(trace(9, 4, 100.0, None)), Decision::Undecided),
        (failed_again, Decision::NotRecovered),
    ] {
        let verdict = judge(&out_of_memory(12), &[], &before, &after);
        assert_eq!(verdict.decision, expected, "{}", verdict.summary);
        assert!(!verdict.decision.is_against(), "it is not reverted");
    }
    let verdict = judge(&out_of_memory(12), &[], &before, &trace(9, 5, 100.0, Some(900.0)));
    assert!(
        verdict
            .summary
            .starts_with("memory ran out after step 12; with the change, the run has finished step 13: "),
        "{}",
        verdict.summary
    );
    assert!(
        verdict.summary.contains("tensors kept for the backward pass"),
        "{}",
        verdict.summary
    );
    assert_eq!(
        verdict.recovery,
        Some(Recovery::OutOfMemory {
            failed_after_step: 12,
            reached_step: Some(13),
        })
    );
}

#[test]
fn a_run_that_diverged_has_recovered_when_its_loss_stays_good() {
    let repair = |worst_loss| Change {
        repairs: Some(Symptom::Divergence {
            last_good_step: 50,
            bad_step: 52,
            good_below: 1.5,
            worst_loss,
        }),
        ..change("lr_scale", None, Some("0.5"))
    };
    let before = ended(trace(1, 60, 100.0, None));
    let with_losses = |first: u64, losses: &[f64]| {
        let count = u64::try_from(losses.len()).unwrap();
        let mut after = trace(first, count, 100.0, None);
        for (sample, loss) in after.samples.iter_mut().zip(losses) {
            sample.loss = Some(*loss);
        }
        after
    };
    let good = with_losses(41, &[1.0; 22]);
    let few = with_losses(41, &[1.0; 21]);
    let from_the_start = with_losses(1, &[[9.0; 30], [1.0; 30], [1.0; 30]].concat());
    let then = |loss: f64| with_losses(41, &[[1.0; 11], [loss; 11]].concat());
    for (change, after, expected) in [
        (repair(Some(80.0)), good.clone(), Decision::Recovered),
        (repair(None), good.clone(), Decision::Recovered),
        (repair(None), few.clone(), Decision::NotYet),
        (repair(None), ended(few), Decision::Undecided),
        // It begins again far before the divergence, where the loss was high.
        (repair(Some(3.0)), from_the_start, Decision::Recovered),
        (repair(Some(80.0)), then(90.0), Decision::NotRecovered),
        (repair(Some(80.0)), then(f64::NAN), Decision::NotRecovered),
        (repair(Some(80.0)), then(2.0), Decision::NotYet),
    ] {
        let verdict = judge(&change, &[], &before, &after);
        assert_eq!(verdict.decision, expected, "{}", verdict.summary);
    }
    let verdict = judge(&repair(Some(80.0)), &[], &before, &good);
    assert!(
        verdict.summary.starts_with(
            "loss 80.0000 before, diverged at step 52; with the change, the loss is 1.0000 at step 62: step time"
        ),
        "{}",
        verdict.summary
    );
}

#[test]
fn the_evidence_is_in_plain_words_with_the_units_of_the_dashboard() {
    let side = |step_ms: f64, memory: f64, loss: f64| {
        let mut side = trace(1, 40, step_ms, Some(memory));
        for sample in &mut side.samples {
            sample.loss = Some(loss);
        }
        side
    };
    let gib = f64::from(1 << 30);
    let before = side(400.0, 50.2 * gib, 0.5);
    for (after, expected) in [
        (
            side(300.0, 48.1 * gib, 0.4),
            &[
                "step time 401.2 ms → 300.9 ms (−25.0 %, 95 % interval −",
                "tensors kept for the backward pass 50.2 GiB → 48.1 GiB (−4.2 %)",
                "the losses of 20 compared steps differ by up to 20.0 %",
            ][..],
        ),
        (
            side(2_000.0, 102.0 * gib, 0.501),
            &[
                "step time 401.2 ms → 2.01 s (+400.0 %",
                "50.2 GiB → 102 GiB (+103.2 %)",
                "the losses of 20 compared steps are the same (largest difference 0.20 %)",
            ],
        ),
    ] {
        let evidence = Verdict::measured(&before, &after).evidence();
        for part in expected {
            assert!(evidence.contains(part), "{part}: {evidence}");
        }
        assert!(
            !evidence.contains('-'),
            "a minus sign is not a hyphen: {evidence}"
        );
    }
    assert_eq!(percent_change(0.9999), "+0.0 %");
}
