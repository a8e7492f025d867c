//! Whether a change was worth it: the attempts before it against those since, by what their series say.
//!
//! ```text
//!  the probe could not turn it ──▶ not applied
//!  too few steps ──▶ not yet, or undecided where no more will come
//!  activation checkpointing turned on ──▶ kept when memory saved > 50 % and step time up < 30 % and the losses stay, else rejected
//!  a doubled batch, tried by itself ──▶ kept when samples a second rise, else rejected
//!  any other ──▶ better, worse, mixed, or no difference: by samples a second, step time and memory
//! ```
//! A difference counts when the intervals of both medians leave no doubt of its direction and it is large enough to matter.

mod evidence;

use evidence::percent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::knob::change::{Change, KnobAnswer};
use crate::run::knob::figures::{Figures, Trace, WARM_UP_STEPS};
use crate::run::knob::{Knob, known};

/// Steps that each side needs behind its warm-up: with fewer the interval of a median is as wide as all of them.
pub const STEPS_MIN: usize = 20;
/// Peaks of memory vary with fragmentation and the lengths of batches.
const MEMORY_MATTERS: f64 = 0.05;
/// What activation checkpointing has to save, as a part of the memory before.
const SAVED_ABOVE: f64 = 0.5;
/// What it may cost, as a part of the step before.
const SLOWER_BELOW: f64 = 0.3;

const BEFORE: &str = "before the change";
const SINCE: &str = "since the change";

/// What became of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Of the medians.
    pub value: f64,
    /// Not below.
    pub low: f64,
    /// Not above.
    pub high: f64,
}

/// Losses at the same steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    fn decide(&mut self, change: &Change, before_ended: bool, after_ended: bool) -> (Decision, String) {
        let missing = |side: &Figures| STEPS_MIN.saturating_sub(side.steps);
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
            self.hold_to_the_rule()
        } else if change.follows.is_some() {
            self.hold_to_more_samples()
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

    /// A larger batch is tried for the samples a second it brings: what it takes of memory was free.
    fn hold_to_more_samples(&self) -> (Decision, String) {
        let evidence = self.evidence();
        let Some(samples) = self.throughput else {
            let why = "no samples a second are known of both sides";
            return (Decision::Undecided, format!("{why}: {evidence}"));
        };
        let risen = samples.direction() > 0;
        let decision = if risen { Decision::Kept } else { Decision::Rejected };
        let rule = format!(
            "samples a second {} (2 % more wanted, beyond doubt)",
            percent(samples.value)
        );
        (decision, format!("{rule}: {evidence}"))
    }

    fn weigh(&self, change: &Change) -> (Decision, String) {
        // Another batch has another step: only what is trained a second can be compared.
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

    /// That and nothing else, from nothing.
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

/// Why steps are missing that will not come, and what would bring them.
fn without(steps: usize, side: &str) -> String {
    let seen = match steps {
        0 => format!("no step was seen {side}"),
        steps => format!(
            "of the {STEPS_MIN} steps needed behind the first {WARM_UP_STEPS}, {steps} were seen {side}"
        ),
    };
    let enough = STEPS_MIN + WARM_UP_STEPS;
    let advice = if side == BEFORE {
        format!(
            "so there is too little to compare with. For a verdict take the change back (`lockstep run revert`), let the run make \
             {enough} steps, and apply it again; or set it beside another run (`lockstep run compare`)"
        )
    } else {
        format!(
            "and what ran with it has ended (`lockstep run show` says how). For a verdict let it make {enough} steps: `lockstep run \
             resume` goes on with the change, `lockstep run revert` without it"
        )
    };
    format!("{seen}, {advice}")
}

#[cfg(test)]
mod tests;
