//! What an attempt's series say in a few numbers: its usual step, how much it trained a second, its memory, its last loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Steps at the beginning that count for nothing: libraries load, kernels are chosen, workers start.
pub const WARM_UP_STEPS: usize = 5;
/// Half the width of a 95 % interval around a median, in standard deviations of a rank: 1.96 / 2.
const HALF_WIDTH: f64 = 0.98;

/// What a rank told at one moment; several steps pooled are one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepSample {
    /// The last of the steps.
    pub step: u64,
    /// How long one took.
    pub seconds: Option<f64>,
    /// The loss of the last.
    pub loss: Option<f64>,
    /// Samples of this rank a second.
    pub samples_per_second: Option<f64>,
}

/// What is read of an attempt: one rank's steps in their order, and the memory of the rank that took the most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Of rank 0.
    pub samples: Vec<StepSample>,
    /// The largest peak of any rank.
    pub memory: Option<Memory>,
    /// Nothing more will come.
    pub ended: bool,
}

/// A peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Of what.
    pub kind: MemoryKind,
    /// How much.
    pub bytes: f64,
}

/// What was measured. Resident memory of a process is not among it: it says nothing of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// What PyTorch's allocator had in use on the GPU.
    CudaAllocated,
    /// Tensors kept for the backward pass.
    SavedTensors,
}

/// An attempt in numbers; what is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Figures {
    /// Samples behind the warm-up that tell how long a step took.
    pub steps: usize,
    /// Seconds of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<Median>,
    /// Samples of one rank a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<Median>,
    /// The largest peak of any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The last loss that was a number, and its step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<(u64, f64)>,
}

/// A median with the interval that holds the true one in 95 of 100 cases, by order statistics: no shape is assumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Median {
    /// The median.
    pub value: f64,
    /// Not below.
    pub low: f64,
    /// Not above.
    pub high: f64,
}

impl Trace {
    /// In numbers.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let warm = self.samples.get(WARM_UP_STEPS..).unwrap_or_default();
        let seconds: Vec<f64> = warm.iter().filter_map(|sample| sample.seconds).collect();
        let rates = warm
            .iter()
            .filter_map(|sample| sample.samples_per_second)
            .collect();
        let mut losses = self
            .samples
            .iter()
            .filter_map(|sample| Some((sample.step, sample.loss.filter(|loss| loss.is_finite())?)));
        Figures {
            steps: seconds.len(),
            step_seconds: Median::of(seconds),
            samples_per_second: Median::of(rates),
            memory: self.memory,
            last_loss: losses.next_back(),
        }
    }
}

impl Median {
    /// Of values in any order; none for none, and what is not finite counts for nothing.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "places in a list of some thousand values"
        )]
        let (below, above) = {
            let count = values.len() as f64;
            let half = HALF_WIDTH * count.sqrt();
            // Behind a saturating cast what would lie before the first is the first.
            (
                (count / 2.0 - half).floor() as usize,
                (count / 2.0 + half).ceil() as usize,
            )
        };
        let middle = values.len() / 2;
        let value = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self {
            value,
            low: values[below.min(last)],
            high: values[above.min(last)],
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_median_has_an_interval_that_narrows_with_the_values() {
        assert_eq!(Median::of(vec![]), None);
        assert_eq!(Median::of(vec![f64::NAN]), None);
        let one = Median::of(vec![3.0]).unwrap();
        assert_eq!((one.low, one.value, one.high), (3.0, 3.0, 3.0));
        // Of 100 values in order, the 40th to the 60th or so: the textbook's ranks.
        let hundred = Median::of((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((hundred.low, hundred.value, hundred.high), (41.0, 50.5, 61.0));
        let few = Median::of(vec![5.0, 1.0, 9.0, 2.0]).unwrap();
        assert_eq!((few.low, few.value, few.high), (1.0, 3.5, 9.0));
    }

    #[test]
    fn the_warm_up_counts_for_nothing_and_the_last_good_loss_is_kept() {
        let sample = |step: u64| StepSample {
            step,
            seconds: Some(if step <= 5 { 9.0 } else { 0.1 }),
            loss: Some(if step == 12 { f64::NAN } else { 12.0 - step as f64 }),
            samples_per_second: None,
        };
        let trace = Trace {
            samples: (1..=12).map(sample).collect(),
            ..Trace::default()
        };
        let figures = trace.figures();
        assert_eq!(figures.steps, 7);
        assert_eq!(figures.step_seconds.unwrap().value, 0.1);
        assert_eq!(
            (figures.samples_per_second, figures.last_loss),
            (None, Some((11, 1.0)))
        );
        assert_eq!(Trace::default().figures(), Figures::default());
    }
}
