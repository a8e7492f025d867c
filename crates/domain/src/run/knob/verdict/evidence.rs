//! Both sides of a change in numbers, and those numbers as text.

use std::collections::BTreeMap;

use super::{Losses, Ratio, Verdict};
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
                "samples per second per rank {:.1} → {:.1} ({})",
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

/// Returns a ratio as a percentage: `+25.0 %`.
pub(super) fn percent(ratio: f64) -> String {
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
