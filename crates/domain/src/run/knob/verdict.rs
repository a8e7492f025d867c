//! Whether a change was worth it: the attempts before it against those since, by what their series say.
//!
//! ```text
//!  the probe could not turn it ──▶ not applied
//!  too few steps ──▶ not yet, or undecided where no more will come
//!  activation checkpointing turned on ──▶ kept when memory saved > 50 % and step time up < 30 % and the losses stay, else rejected
//!  any other ──▶ better, worse, mixed, or no difference: by samples a second, step time and memory
//! ```
//! A difference counts when the intervals of both medians leave no doubt of its direction and it is large enough to matter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::run::knob::change::{Change, KnobAnswer};
use crate::run::knob::figures::{Figures, Median, MemoryKind, Trace, WARM_UP_STEPS};
use crate::run::knob::known;

/// Steps that each side needs behind its warm-up: with fewer the interval of a median is as wide as all of them.
pub const STEPS_MIN: usize = 20;
/// A smaller difference than this part is nobody's reason to change anything.
const MATTERS: f64 = 0.02;
/// Peaks of memory vary with fragmentation and the lengths of batches.
const MEMORY_MATTERS: f64 = 0.05;
/// What activation checkpointing has to save, as a part of the memory before.
const SAVED_ABOVE: f64 = 0.5;
/// What it may cost, as a part of the step before.
const SLOWER_BELOW: f64 = 0.3;
/// Losses that differ by less, relatively, are the same: sums in another order.
const LOSS_TOLERANCE: f64 = 0.01;
/// Losses compared: later ones differ by what earlier ones did to the weights.
const LOSSES_MAX: usize = 20;

/// What became of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Steps are missing that may still come.
    #[default]
    NotYet,
    /// What would tell is missing, and will not come.
    Undecided,
    /// The script could not be changed.
    NotApplied,
    /// It keeps the rule it is held to.
    Kept,
    /// It breaks the rule it is held to.
    Rejected,
    /// Something got better, nothing worse.
    Better,
    /// Something got worse, nothing better.
    Worse,
    /// Some of it got better, some worse.
    Mixed,
    /// Nothing that matters.
    NoDifference,
}

/// A verdict with its evidence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// What became of it.
    pub decision: Decision,
    /// Why, with the numbers.
    pub summary: String,
    /// How many steps are missing on the side that has fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_steps: Option<usize>,
    /// The attempts before the change.
    pub before: Figures,
    /// The attempts since.
    pub after: Figures,
    /// Step time, after by before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_time: Option<Ratio>,
    /// Samples a second, after by before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Ratio>,
    /// Memory, after by before; none when both did not measure the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Losses at the same steps; none without a step that both have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
}

/// After by before, with the widest interval that both medians allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Of the medians.
    pub value: f64,
    /// Not below.
    pub low: f64,
    /// Not above.
    pub high: f64,
}

/// Losses at the same steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// How many were compared, the earliest.
    pub steps: usize,
    /// The largest difference, relative to the larger.
    pub largest_difference: f64,
    /// They are the same but for the order of sums.
    pub equal: bool,
}

/// Judges a change by both sides' traces and what ranks said of it.
#[must_use]
pub fn judge(change: &Change, answers: &[KnobAnswer], before: &Trace, after: &Trace) -> Verdict {
    let mut verdict = Verdict::measured(before, after);
    let (decision, why) = match failed(change, answers) {
        Some(answer) => (
            Decision::NotApplied,
            format!(
                "{}={} could not be set in the script: {}",
                answer.knob, answer.value, answer.detail
            ),
        ),
        None => verdict.decide(change, before.ended, after.ended),
    };
    verdict.decision = decision;
    verdict.summary = why;
    verdict
}

/// The knob that could not be turned. What came last counts: a probe that waited in vain may find its place later.
fn failed<'a>(change: &Change, answers: &'a [KnobAnswer]) -> Option<&'a KnobAnswer> {
    let last = |knob: &str| answers.iter().rfind(|answer| answer.knob == knob);
    let mut answers = change.set.iter().filter_map(|diff| last(&diff.knob));
    answers.find(|answer| !answer.applied)
}

impl Decision {
    /// In words, to begin a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::NotYet => "not yet",
            Self::Undecided => "undecided",
            Self::NotApplied => "not applied",
            Self::Kept => "kept",
            Self::Rejected => "rejected",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Mixed => "mixed",
            Self::NoDifference => "no difference",
        }
    }

    /// Whether it is to be taken back where that happens by itself.
    #[must_use]
    pub fn is_against(self) -> bool {
        matches!(self, Self::Rejected | Self::Worse)
    }
}

impl Verdict {
    /// Both sides in numbers, nothing decided.
    #[must_use]
    pub fn measured(before: &Trace, after: &Trace) -> Self {
        let losses = Losses::at_same_steps(before, after);
        let (before, after) = (before.figures(), after.figures());
        let ratio = |of: fn(&Figures) -> Option<Median>| Ratio::of(of(&before)?, of(&after)?);
        let memory = before
            .memory
            .zip(after.memory)
            .filter(|(was, is)| was.kind == is.kind && was.bytes > 0.0)
            .map(|(was, is)| is.bytes / was.bytes);
        Self {
            step_time: ratio(|side| side.step_seconds),
            throughput: ratio(|side| side.samples_per_second),
            memory,
            losses,
            before,
            after,
            ..Self::default()
        }
    }

    /// The numbers, for people.
    #[must_use]
    pub fn evidence(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(was), Some(is), Some(ratio)) =
            (self.before.step_seconds, self.after.step_seconds, self.step_time)
        {
            parts.push(format!(
                "step time {} → {} ({}, 95 % between {} and {})",
                seconds(was.value),
                seconds(is.value),
                percent(ratio.value),
                percent(ratio.low),
                percent(ratio.high)
            ));
        }
        if let (Some(was), Some(is), Some(ratio)) = (
            self.before.samples_per_second,
            self.after.samples_per_second,
            self.throughput,
        ) {
            parts.push(format!(
                "samples a second of a rank {:.1} → {:.1} ({})",
                was.value,
                is.value,
                percent(ratio.value)
            ));
        }
        if let (Some(was), Some(is), Some(ratio)) = (self.before.memory, self.after.memory, self.memory) {
            parts.push(format!(
                "{} {} → {} ({})",
                was.kind.words(),
                mebibytes(was.bytes),
                mebibytes(is.bytes),
                percent(ratio)
            ));
        }
        parts.extend(self.losses.map(Losses::words));
        if parts.is_empty() {
            "neither side has told its steps".into()
        } else {
            parts.join("; ")
        }
    }

    fn decide(&mut self, change: &Change, before_ended: bool, after_ended: bool) -> (Decision, String) {
        let missing = |side: &Figures| STEPS_MIN.saturating_sub(side.steps);
        let (before, after) = (missing(&self.before), missing(&self.after));
        let sides = [
            (before, before_ended, "before the change"),
            (after, after_ended, "since the change"),
        ];
        for (count, ended, side) in sides {
            if count == 0 {
                continue;
            }
            self.missing_steps = Some(count);
            if ended {
                let why = format!(
                    "{count} more steps {side} would be needed, and none will come ({} behind the first {WARM_UP_STEPS} are)",
                    STEPS_MIN - count
                );
                return (Decision::Undecided, why);
            }
            return (Decision::NotYet, format!("{count} more steps {side} are needed"));
        }
        if change.turns_on_checkpointing() {
            self.hold_to_the_rule()
        } else {
            self.weigh(change)
        }
    }

    /// Memory saved > 50 % and step time up < 30 %, and the losses are what they were.
    fn hold_to_the_rule(&self) -> (Decision, String) {
        let evidence = self.evidence();
        let (Some(memory), Some(step_time)) = (self.memory, self.step_time) else {
            let why = "the rule (memory saved > 50 % and step time up < 30 %) cannot be applied, as no GPU memory and no bytes of saved \
                       tensors are known of both sides";
            return (Decision::Undecided, format!("{why}: {evidence}"));
        };
        let (saved, slower) = (1.0 - memory, step_time.value - 1.0);
        let losses = self.losses.is_none_or(|losses| losses.equal);
        let kept = saved > SAVED_ABOVE && slower < SLOWER_BELOW && losses;
        let rule = format!(
            "memory saved {:.1} % (more than 50 % wanted), step time {} (less than +30 % wanted)",
            saved * 100.0,
            percent(step_time.value)
        );
        let loss = if losses {
            ""
        } else {
            ", and the losses are not what they were"
        };
        let decision = if kept { Decision::Kept } else { Decision::Rejected };
        (decision, format!("{rule}{loss}: {evidence}"))
    }

    fn weigh(&self, change: &Change) -> (Decision, String) {
        // Another batch has another step: only what is trained a second can be compared.
        let step_time = self.step_time.filter(|_| !change.sets("micro_batch"));
        let direction = |ratio: Option<Ratio>, up_is_good: bool| match ratio.map(Ratio::direction) {
            Some(0) | None => 0,
            Some(sign) if up_is_good => sign,
            Some(sign) => -sign,
        };
        let memory = match self.memory {
            Some(ratio) if ratio < 1.0 - MEMORY_MATTERS => 1,
            Some(ratio) if ratio > 1.0 + MEMORY_MATTERS => -1,
            _ => 0,
        };
        let kept = change.keeps_losses();
        let losses = if kept && self.losses.is_some_and(|losses| !losses.equal) {
            -1
        } else {
            0
        };
        let votes = [
            direction(step_time, false),
            direction(self.throughput, true),
            memory,
            losses,
        ];
        let decision = match (votes.contains(&1), votes.contains(&-1)) {
            (true, false) => Decision::Better,
            (false, true) => Decision::Worse,
            (true, true) => Decision::Mixed,
            (false, false) => Decision::NoDifference,
        };
        let note = if losses < 0 {
            "; this knob should leave the losses as they are"
        } else {
            ""
        };
        (decision, format!("{}{note}", self.evidence()))
    }
}

impl Change {
    fn sets(&self, knob: &str) -> bool {
        self.set.iter().any(|diff| diff.knob == knob)
    }

    /// That and nothing else, from nothing.
    fn turns_on_checkpointing(&self) -> bool {
        let is = |value: &Option<String>| value.as_deref().is_some_and(|value| value != "none");
        matches!(self.set.as_slice(), [diff] if diff.knob == "activation_checkpointing" && !is(&diff.old) && is(&diff.new))
    }

    fn keeps_losses(&self) -> bool {
        let keeps = |name: &str| known(name).is_ok_and(|knob| knob.keeps_losses);
        self.set.iter().all(|diff| keeps(&diff.knob))
    }
}

impl Ratio {
    fn of(before: Median, after: Median) -> Option<Self> {
        let positive = before.low > 0.0 && after.low > 0.0;
        positive.then(|| Self {
            value: after.value / before.value,
            low: after.low / before.high,
            high: after.high / before.low,
        })
    }

    /// 1 for more, -1 for less, 0 where that is in doubt or does not matter.
    fn direction(self) -> i8 {
        if self.low > 1.0 && self.value >= 1.0 + MATTERS {
            1
        } else if self.high < 1.0 && self.value <= 1.0 - MATTERS {
            -1
        } else {
            0
        }
    }
}

impl Losses {
    fn at_same_steps(before: &Trace, after: &Trace) -> Option<Self> {
        let of = |trace: &Trace| -> BTreeMap<u64, f64> {
            let told = trace.samples.iter();
            told.filter_map(|sample| Some((sample.step, sample.loss?)))
                .collect()
        };
        let (before, after) = (of(before), of(after));
        let both = before
            .iter()
            .filter_map(|(step, was)| Some((*was, *after.get(step)?)))
            .take(LOSSES_MAX);
        let differences: Vec<f64> = both.map(|(was, is)| difference(was, is)).collect();
        let largest = differences.iter().copied().max_by(f64::total_cmp)?;
        Some(Self {
            steps: differences.len(),
            largest_difference: largest,
            equal: largest <= LOSS_TOLERANCE,
        })
    }

    fn words(self) -> String {
        let steps = match self.steps {
            1 => "1 step".to_owned(),
            steps => format!("{steps} steps"),
        };
        let how = if self.equal { "the same" } else { "not the same" };
        format!(
            "losses at the same {steps} {how} (largest difference {:.2e})",
            self.largest_difference
        )
    }
}

/// Relative to the larger; 1 when only one of them is a number.
fn difference(was: f64, is: f64) -> f64 {
    match (was.is_finite(), is.is_finite()) {
        (true, true) => (was - is).abs() / was.abs().max(is.abs()).max(1e-12),
        (false, false) => 0.0,
        _ => 1.0,
    }
}

impl MemoryKind {
    /// What was measured.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::CudaAllocated => "peak GPU memory",
            Self::SavedTensors => "tensors kept for the backward pass",
        }
    }
}

/// `+25.0 %` of a ratio.
fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn seconds(value: f64) -> String {
    if value < 1.0 {
        format!("{:.2} ms", value * 1_000.0)
    } else {
        format!("{value:.3} s")
    }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::ident::Rank;
    use crate::run::knob::{How, KnobDiff, Memory, StepSample};

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

    /// Steps of this many milliseconds, a little apart, from step `first` on.
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
            verdict.summary.contains("losses are not what they were"),
            "{}",
            verdict.summary
        );
        assert!(
            verdict.summary.contains("memory saved 90.0 %"),
            "{}",
            verdict.summary
        );
        // Taken back, or from one granularity to another, it is weighed like any other.
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
            "by samples a second alone"
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
            verdict.summary.contains("before the change"),
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
        // Numbers of few bits: JSON may change the last bit of other numbers.
        let mut both = trace(1, 40, 128.0, Some(7.0));
        both.samples
            .iter_mut()
            .for_each(|sample| (sample.seconds, sample.loss) = (Some(0.125), Some(0.5)));
        let verdict = judge(&change("amp", None, Some("bf16")), &[], &both, &both);
        let text = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
    }
}
