//! Decides whether a change was worth it, from the series of the attempts before it and of the attempts since.
//!
//! ```text
//!  the probe could not apply it ──▶ not applied
//!  it repairs a run that failed or diverged ──▶ recovered or not recovered
//!  too few steps ──▶ not yet, or undecided if no more steps will come
//!  activation checkpointing turned on ──▶ kept if memory saved > 50 %, step time up < 30 % and the losses stay, otherwise rejected
//!  a doubled batch, tried automatically ──▶ kept if samples per second rise, otherwise rejected
//!  any other ──▶ better, worse, mixed, or no difference: by samples per second, step time and memory
//! ```
//! A difference counts if the intervals of both medians leave no doubt about its direction and it is large enough to matter.

mod evidence;
mod recovery;

pub use evidence::percent_change;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::knob::change::{Change, KnobAnswer};
use crate::run::knob::performance::{PerformanceSummary, Trace, WARM_UP_STEPS};
use crate::run::knob::symptom::Recovery;
use crate::run::knob::{Knob, known};

/// Minimum number of steps of each side after its warm-up. With fewer, the interval of a median spans all of them.
pub const STEPS_MIN: usize = 20;
/// Smallest relative difference in memory that counts. Peaks of memory vary with fragmentation and the lengths of batches.
const MEMORY_MATTERS: f64 = 0.05;
/// The share of the memory before that activation checkpointing has to save.
const SAVED_ABOVE: f64 = 0.5;
/// The share of the step time before by which activation checkpointing may slow down a step.
const SLOWER_BELOW: f64 = 0.3;

const BEFORE: &str = "before the change";
const SINCE: &str = "since the change";

/// The decision about a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Steps are missing that may still come.
    #[default]
    NotYet,
    /// Data is missing and will not come.
    Undecided,
    /// The change could not be applied in the script.
    NotApplied,
    /// The change satisfies its rule.
    Kept,
    /// The change violates its rule.
    Rejected,
    /// Something improved, nothing got worse.
    Better,
    /// Something got worse, nothing improved.
    Worse,
    /// Something improved, something got worse.
    Mixed,
    /// No difference that matters.
    NoDifference,
    /// The change repaired what it was made for.
    Recovered,
    /// The change did not repair what it was made for.
    NotRecovered,
}

/// A verdict with its evidence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// The reason, with the numbers.
    pub summary: String,
    /// Number of steps that are missing on the side that has fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_steps: Option<usize>,
    /// The attempts before the change.
    pub before: PerformanceSummary,
    /// The attempts since the change.
    pub after: PerformanceSummary,
    /// Step time: after divided by before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_time: Option<Ratio>,
    /// Samples per second: after divided by before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Ratio>,
    /// Memory: after divided by before; absent if the two sides did not measure the same kind of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Comparison of losses at the same steps; absent if no step has a loss on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// Measurements of what was repaired; absent if nothing had failed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

/// A value after the change divided by the value before, with the widest interval that both medians allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Ratio of the medians.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Comparison of losses at the same steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Losses {
    /// Number of compared steps, starting with the earliest.
    pub steps: usize,
    /// The largest difference, relative to the larger value.
    pub largest_difference: f64,
    /// True if the losses are equal except for the order of summation.
    pub equal: bool,
}

/// Judges a change by the traces of both sides and the answers of the ranks.
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
        None => match &change.repairs {
            Some(symptom) => verdict.decide_by_recovery(symptom, after),
            None => verdict.decide(change, before.ended, after.ended),
        },
    };
    verdict.decision = decision;
    verdict.summary = why;
    verdict
}

/// Returns the answer about a knob that could not be applied. The last answer counts: a probe may find the right place after it gave up.
fn failed<'a>(change: &Change, answers: &'a [KnobAnswer]) -> Option<&'a KnobAnswer> {
    let last = |knob: &str| answers.iter().rfind(|answer| answer.knob == knob);
    let mut answers = change.set.iter().filter_map(|diff| last(&diff.knob));
    answers.find(|answer| !answer.applied)
}

impl Decision {
    /// Returns the decision as text for the start of a sentence.
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
            Self::Recovered => "recovered",
            Self::NotRecovered => "not recovered",
        }
    }

    /// Returns true if the change is reverted, where automatic revert is on.
    #[must_use]
    pub fn is_against(self) -> bool {
        matches!(self, Self::Rejected | Self::Worse)
    }
}

impl Verdict {
    fn decide(&mut self, change: &Change, before_ended: bool, after_ended: bool) -> (Decision, String) {
        let missing = |side: &PerformanceSummary| STEPS_MIN.saturating_sub(side.steps);
        let (before, after) = (missing(&self.before), missing(&self.after));
        let sides = [(before, before_ended, BEFORE), (after, after_ended, SINCE)];
        for (count, ended, side) in sides {
            if count == 0 {
                continue;
            }
            self.missing_steps = Some(count);
            if ended {
                return (Decision::Undecided, without(STEPS_MIN - count, side));
            }
            return (Decision::NotYet, format!("{count} more steps {side} are needed"));
        }
        if change.turns_on_memory_saver() {
            self.decide_by_memory_rule()
        } else if change.follows.is_some() {
            self.decide_by_throughput()
        } else {
            self.weigh(change)
        }
    }

    /// Decides by the rule: memory saved > 50 %, step time up < 30 %, and the same losses.
    fn decide_by_memory_rule(&self) -> (Decision, String) {
        let evidence = self.evidence();
        let (Some(memory), Some(step_time)) = (self.memory, self.step_time) else {
            let why = "the rule (memory saved > 50 % and step time up < 30 %) cannot be applied, because neither GPU memory nor the bytes of \
                       saved tensors are known for both sides";
            return (Decision::Undecided, format!("{why}: {evidence}"));
        };
        let (saved, slower) = (1.0 - memory, step_time.value - 1.0);
        let losses = self.losses.is_none_or(|losses| losses.equal);
        let kept = saved > SAVED_ABOVE && slower < SLOWER_BELOW && losses;
        let rule = format!(
            "memory saved {:.1} % (required: more than 50 %), step time {} (required: less than +30 %)",
            saved * 100.0,
            percent_change(step_time.value)
        );
        let loss = if losses {
            ""
        } else {
            ", and the losses are not the same"
        };
        let decision = if kept { Decision::Kept } else { Decision::Rejected };
        (decision, format!("{rule}{loss}: {evidence}"))
    }

    /// Decides by samples per second: that is why a larger batch is tried. The memory that it uses was free.
    fn decide_by_throughput(&self) -> (Decision, String) {
        let evidence = self.evidence();
        let Some(samples) = self.throughput else {
            let why = "samples per second are not known for both sides";
            return (Decision::Undecided, format!("{why}: {evidence}"));
        };
        let risen = samples.direction() > 0;
        let decision = if risen { Decision::Kept } else { Decision::Rejected };
        let rule = format!(
            "samples per second {} (required: a certain increase of at least 2 %)",
            percent_change(samples.value)
        );
        (decision, format!("{rule}: {evidence}"))
    }

    fn weigh(&self, change: &Change) -> (Decision, String) {
        // With another batch size a step is different work, so only samples per second can be compared.
        let step_time = self.step_time.filter(|_| !change.sets_batch_size());
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
    pub(in crate::run) fn sets(&self, knob: &str) -> bool {
        self.set.iter().any(|diff| diff.knob == knob)
    }

    /// Returns true if the change turns on a knob that saves memory, from its off value, and changes nothing else.
    pub(in crate::run) fn turns_on_memory_saver(&self) -> bool {
        let [diff] = self.set.as_slice() else {
            return false;
        };
        let Some(off) = known(&diff.knob).ok().and_then(|knob| knob.memory_saver_off) else {
            return false;
        };
        let is_on = |value: &Option<String>| value.as_deref().is_some_and(|value| value != off);
        !is_on(&diff.old) && is_on(&diff.new)
    }

    fn knobs(&self) -> impl Iterator<Item = Option<&'static Knob>> {
        self.set.iter().map(|diff| known(&diff.knob).ok())
    }

    fn sets_batch_size(&self) -> bool {
        self.knobs().flatten().any(|knob| knob.is_batch_size)
    }

    fn keeps_losses(&self) -> bool {
        self.knobs()
            .all(|knob| knob.is_some_and(|knob| knob.keeps_losses))
    }
}

/// Returns why steps are missing that will not come, and how to get them.
fn without(steps: usize, side: &str) -> String {
    let seen = match steps {
        0 => format!("no step was seen {side}"),
        steps => format!(
            "of the {STEPS_MIN} steps needed after the first {WARM_UP_STEPS}, {steps} were seen {side}"
        ),
    };
    let enough = STEPS_MIN + WARM_UP_STEPS;
    let advice = if side == BEFORE {
        format!(
            "so there is too little data to compare with. For a verdict, revert the change (`lockstep run revert`), let the run make \
             {enough} steps, and apply it again; or compare it with another run (`lockstep run compare`)"
        )
    } else {
        format!(
            "and the attempts with the change have ended (see `lockstep run show`). For a verdict, let the run make {enough} steps: \
             `lockstep run resume` continues with the change, `lockstep run revert` without it"
        )
    };
    format!("{seen}, {advice}")
}

#[cfg(test)]
mod tests;
