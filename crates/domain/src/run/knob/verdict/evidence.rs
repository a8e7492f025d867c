//! Both sides of a change in numbers, and those numbers as text.

use std::collections::BTreeMap;

use super::{Losses, Ratio, Verdict};
use crate::bytes::DisplayBytes;
use crate::run::knob::performance::{Median, MemoryKind, PerformanceSummary, Trace};

/// Smallest relative difference that matters to anyone.
const MATTERS: f64 = 0.02;
/// Largest relative difference of losses that count as equal: sums in another order.
const LOSS_TOLERANCE: f64 = 0.01;
/// Maximum number of compared losses: later losses differ because of what earlier ones did to the weights.
const LOSSES_MAX: usize = 20;

impl Verdict {
    /// Returns both sides in numbers, without a decision.
    #[must_use]
    pub fn measured(before: &Trace, after: &Trace) -> Self {
        let losses = Losses::at_same_steps(before, after);
        let (before, after) = (before.summary(), after.summary());
        let ratio = |of: fn(&PerformanceSummary) -> Option<Median>| Ratio::of(of(&before)?, of(&after)?);
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

    /// Returns the numbers as text for users.
    #[must_use]
    pub fn evidence(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(was), Some(is), Some(ratio)) =
            (self.before.step_seconds, self.after.step_seconds, self.step_time)
        {
            parts.push(format!(
                "step time {} → {} ({}, 95 % interval {} to {})",
                seconds(was.value),
                seconds(is.value),
                percent_change(ratio.value),
                percent_change(ratio.low),
                percent_change(ratio.high)
            ));
        }
        if let (Some(was), Some(is), Some(ratio)) = (
            self.before.samples_per_second,
            self.after.samples_per_second,
            self.throughput,
        ) {
            parts.push(format!(
                "samples per second per rank {:.1} → {:.1} ({})",
                was.value,
                is.value,
                percent_change(ratio.value)
            ));
        }
        if let (Some(was), Some(is), Some(ratio)) = (self.before.memory, self.after.memory, self.memory) {
            parts.push(format!(
                "{} {} → {} ({})",
                was.kind.words(),
                size(was.bytes),
                size(is.bytes),
                percent_change(ratio)
            ));
        }
        parts.extend(self.losses.map(Losses::words));
        if parts.is_empty() {
            "neither side has reported any steps".into()
        } else {
            parts.join("; ")
        }
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

    /// Returns 1 for more, -1 for less, 0 if the direction is uncertain or the difference does not matter.
    pub(super) fn direction(self) -> i8 {
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
        let difference = self.largest_difference * 100.0;
        match (self.steps, self.equal) {
            (1, true) => {
                format!("the loss of the step that both have is the same (difference {difference:.2} %)")
            }
            (1, false) => format!("the loss of the step that both have differs by {difference:.1} %"),
            (steps, true) => {
                format!(
                    "the losses of {steps} compared steps are the same (largest difference {difference:.2} %)"
                )
            }
            (steps, false) => {
                format!("the losses of {steps} compared steps differ by up to {difference:.1} %")
            }
        }
    }
}

/// Returns the difference relative to the larger value; 1 if only one of them is finite.
fn difference(was: f64, is: f64) -> f64 {
    match (was.is_finite(), is.is_finite()) {
        (true, true) => (was - is).abs() / was.abs().max(is.abs()).max(1e-12),
        (false, false) => 0.0,
        _ => 1.0,
    }
}

impl MemoryKind {
    /// Returns what was measured, as text for users.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::CudaAllocated => "peak GPU memory",
            Self::SavedTensors => "tensors kept for the backward pass",
        }
    }
}

/// Returns the relative change of a ratio of two values: `+25.0 %`, `−3.0 %`.
#[must_use]
pub fn percent_change(ratio: f64) -> String {
    // `+ 0.0` removes the sign of a negative zero.
    let percent = ((ratio - 1.0) * 1_000.0).round() / 10.0 + 0.0;
    format!("{percent:+.1} %").replace('-', "−")
}

/// Returns a time as the dashboard shows it.
fn seconds(value: f64) -> String {
    if value < 1.0 {
        format!("{:.1} ms", value * 1_000.0)
    } else {
        format!("{value:.2} s")
    }
}

fn size(bytes: f64) -> DisplayBytes {
    // A saturating cast of a count.
    DisplayBytes(bytes as u64)
}
