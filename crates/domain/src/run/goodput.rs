//! Goodput: the share of the time for which a run holds GPUs that counts towards its final state, and what the rest was lost to.
//!
//! ```text
//! placed ──start-up──▶ first step ──training──▶ last step ──ending──▶ end     each attempt, once per GPU
//!                                      │
//!                                      ├ no data for longer than a gap: unknown
//!                                      ├ saves; then the time between two steps in which a stall, or one rank alone, was reported
//!                                      ├ steps after the one from which a later attempt resumed: repeated
//!                                      └ of the rest the shares of data and straggler; what remains is productive
//! ```
//! Each moment counts once, for the first line that applies to it. Rank 0 stands for all ranks, because they train in step. A run without
//! GPUs has the time of its ranks instead. Between two attempts a run holds no nodes, so that time is not counted. Steps of a failed run
//! count until another attempt repeats them.

mod attempt;
mod breakdown;
mod samples;
#[cfg(test)]
mod tests;

pub use breakdown::{Breakdown, Counted, LossCause};
pub use samples::{RunSamples, Sample};

use self::attempt::AttemptTime;
use self::samples::Observed;
use crate::run::spec::Backend;
use crate::run::state::{Machine, NodeTask};
use crate::time::TimestampMs;

/// A period of time. Its end is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First time of the period.
    pub from_ms: TimestampMs,
    /// First time after the period.
    pub to_ms: TimestampMs,
}

/// The time of a run within a period.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTime {
    /// What the time is counted for.
    pub counted: Counted,
    /// For how long its attempts held nodes, however many GPUs or ranks they had.
    pub held_s: f64,
    /// The time, by what became of it.
    pub breakdown: Breakdown,
}

/// Splits the time that a run held its nodes within a period. `now_ms` is the end of an attempt that has not ended.
#[must_use]
pub fn split(run: &Machine, samples: &RunSamples, within: Span, now_ms: TimestampMs) -> RunTime {
    let seen = Observed::new(samples);
    let (mut breakdown, mut held_s) = (Breakdown::default(), 0.0);
    for attempt in AttemptTime::of_run(run, &seen, now_ms) {
        breakdown.merge(&attempt.split(&seen, within));
        held_s += attempt.held.common(within).map_or(0.0, Span::seconds);
    }
    RunTime {
        counted: counted(run, samples),
        held_s,
        breakdown,
    }
}

/// A run uses GPUs if its nodes have some that it can use and its backend is not Gloo, or if rank 0 reported one.
fn counted(run: &Machine, samples: &RunSamples) -> Counted {
    let has_gpus = |task: &NodeTask| task.prepared.as_ref().is_some_and(|found| found.gpus > 0);
    let mut tasks = run.attempts.iter().flat_map(|attempt| &attempt.nodes);
    if !samples.on_gpu.is_empty() || (run.spec.backend != Backend::Gloo && tasks.any(has_gpus)) {
        Counted::Gpus
    } else {
        Counted::Ranks
    }
}

impl Span {
    /// Returns the period from `from_ms` to just before `to_ms`.
    #[must_use]
    pub const fn new(from_ms: TimestampMs, to_ms: TimestampMs) -> Self {
        Self { from_ms, to_ms }
    }

    /// Returns true if no time belongs to the period.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.to_ms <= self.from_ms
    }

    /// Returns the time that two periods have in common, or `None` if there is none.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let common = Self::new(self.from_ms.max(other.from_ms), self.to_ms.min(other.to_ms));
        (!common.is_empty()).then_some(common)
    }

    /// Returns what is left of the period before and after `inner`, which lies within it.
    fn without(self, inner: Self) -> impl Iterator<Item = Self> {
        let around = [
            Self::new(self.from_ms, inner.from_ms),
            Self::new(inner.to_ms, self.to_ms),
        ];
        around.into_iter().filter(|span| !span.is_empty())
    }

    fn seconds(self) -> f64 {
        (self.to_ms - self.from_ms) as f64 / 1e3
    }
}
