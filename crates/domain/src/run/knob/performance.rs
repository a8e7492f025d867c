//! The series of an attempt, reduced to a few numbers: step time, samples per second, memory, last loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of steps at the beginning that are not counted: libraries load, kernels are selected, workers start.
pub const WARM_UP_STEPS: usize = 5;
/// Half the width of a 95 % interval around a median, in standard deviations of a rank: 1.96 / 2.
const HALF_WIDTH: f64 = 0.98;

/// The values of a rank at one time; several pooled steps are one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepSample {
    /// The last of the steps.
    pub step: u64,
    /// Duration of one step in seconds.
    pub seconds: Option<f64>,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Samples per second of this rank.
    pub samples_per_second: Option<f64>,
}

/// The data of an attempt: the steps of one rank in order, and the memory of the rank that used the most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The samples of rank 0.
    pub samples: Vec<StepSample>,
    /// The largest peak of any rank.
    pub memory: Option<Memory>,
    /// True if no more samples will come.
    pub ended: bool,
    /// True if an attempt ended because memory ran out.
    pub out_of_memory: bool,
}

/// A peak of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The peak, in bytes.
    pub bytes: f64,
}

/// The kind of memory that was measured. Resident memory of a process is not one of them: it says nothing about activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Memory that PyTorch's allocator had in use on the GPU.
    CudaAllocated,
    /// Tensors saved for the backward pass.
    SavedTensors,
}

/// An attempt in numbers. Unknown values are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PerformanceSummary {
    /// Number of samples after the warm-up that contain a step time.
    pub steps: usize,
    /// Duration of a step in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<Median>,
    /// Samples per second of one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<Median>,
    /// The largest peak of any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The last finite loss, with its step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<(u64, f64)>,
}

/// A median with its 95 % confidence interval from order statistics, which assume no distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Median {
    /// The median.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Trace {
    /// Returns the trace in numbers.
    #[must_use]
    pub fn summary(&self) -> PerformanceSummary {
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
        PerformanceSummary {
            steps: seconds.len(),
            step_seconds: Median::of(seconds),
            samples_per_second: Median::of(rates),
            memory: self.memory,
            last_loss: losses.next_back(),
        }
    }
}

impl Median {
    /// Returns the median of values in any order; `None` if there are none. Values that are not finite are ignored.
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
            // A saturating cast turns a position before the first value into the first.
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
        // Of 100 values in order, about the 40th to the 60th: the ranks from textbooks.
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
        let figures = trace.summary();
        assert_eq!(figures.steps, 7);
        assert_eq!(figures.step_seconds.unwrap().value, 0.1);
        assert_eq!(
            (figures.samples_per_second, figures.last_loss),
            (None, Some((11, 1.0)))
        );
        assert_eq!(Trace::default().summary(), PerformanceSummary::default());
    }
}
