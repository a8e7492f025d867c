//! The samples of a run, and what they say about a period.

use super::Span;
use crate::time::TimestampMs;

/// A period without samples is a gap if it is longer than this, or than two intervals at which the samples were read.
const GAP_MS: i64 = 90_000;
/// The analysers write a finding once per second while it holds. Samples further apart than this belong to two findings.
const SAME_FINDING_MS: i64 = 5_000;

/// A value at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Time of the value.
    pub at_ms: TimestampMs,
    /// The value.
    pub value: f64,
}

/// Samples of a run, read at regular intervals. Each list is in order of time, except `steps`, which may be in any order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSamples {
    /// The interval, in milliseconds.
    pub interval_ms: i64,
    /// The last step of rank 0, at the time of its end; the newest sample of each interval.
    pub steps: Vec<Sample>,
    /// One sample whenever rank 0 was observed. The values have no meaning.
    pub observed: Vec<Sample>,
    /// One sample whenever rank 0 used a GPU.
    pub on_gpu: Vec<Sample>,
    /// One sample whenever the run was reported as stalled or hanging.
    pub stalled: Vec<Sample>,
    /// One sample whenever all ranks were reported to wait for one that does something by itself.
    pub alone: Vec<Sample>,
    /// Time for which finished saves have blocked rank 0 in total, in seconds.
    pub saved_s: Vec<Sample>,
    /// How long the current save has blocked rank 0, in seconds; 0 if there is none.
    pub saving_s: Vec<Sample>,
    /// The share of a step in which rank 0 waits for data.
    pub data_ratio: Vec<Sample>,
    /// The share of the run's time that stragglers cost.
    pub straggler_ratio: Vec<Sample>,
}

/// A step and when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepPoint {
    pub(super) at_ms: TimestampMs,
    pub(super) step: u64,
}

/// The samples in the form that splits time.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) steps: Vec<StepPoint>,
    pub(super) data: Shares,
    pub(super) straggler: Shares,
    observed_ms: Vec<TimestampMs>,
    stalled_ms: Vec<TimestampMs>,
    alone_ms: Vec<TimestampMs>,
    /// Disjoint and in order.
    saves: Vec<Span>,
    gap_ms: i64,
}

/// Shares of periods that are disjoint and in order.
#[derive(Debug)]
pub(super) struct Shares(Vec<(Span, f64)>);

impl Observed {
    pub(super) fn new(samples: &RunSamples) -> Self {
        let gap_ms = GAP_MS.max(2 * samples.interval_ms);
        let times = |samples: &[Sample]| samples.iter().map(|sample| sample.at_ms).collect();
        Self {
            steps: steps(&samples.steps),
            data: Shares::new(&samples.data_ratio, gap_ms),
            straggler: Shares::new(
                &samples.straggler_ratio,
                SAME_FINDING_MS.max(2 * samples.interval_ms),
            ),
            observed_ms: times(&samples.observed),
            stalled_ms: times(&samples.stalled),
            alone_ms: times(&samples.alone),
            saves: saves(&samples.saved_s, &samples.saving_s),
            gap_ms,
        }
    }

    /// Returns the gaps in a period whose ends are known.
    pub(super) fn gaps(&self, span: Span) -> Vec<Span> {
        let mut gaps = Vec::new();
        let mut known_ms = span.from_ms;
        for at_ms in times_within(&self.observed_ms, span).iter().chain([&span.to_ms]) {
            if at_ms - known_ms > self.gap_ms {
                gaps.push(Span::new(known_ms, *at_ms));
            }
            known_ms = *at_ms;
        }
        gaps
    }

    /// Returns the saves that reach into a period.
    pub(super) fn saves(&self, span: Span) -> impl Iterator<Item = Span> {
        let first = self.saves.partition_point(|save| save.to_ms <= span.from_ms);
        let saves = self.saves[first..].iter().copied();
        saves.take_while(move |save| save.from_ms < span.to_ms)
    }

    /// Returns the last time of a period at which a stall was reported.
    pub(super) fn stalled_until(&self, span: Span) -> Option<TimestampMs> {
        times_within(&self.stalled_ms, span).last().copied()
    }

    /// Returns true if one rank was reported to work alone within a period.
    pub(super) fn has_rank_alone(&self, span: Span) -> bool {
        !times_within(&self.alone_ms, span).is_empty()
    }
}

impl Shares {
    /// A sample is the share of the time since the previous one, unless they are further apart than `apart_max_ms`.
    fn new(samples: &[Sample], apart_max_ms: i64) -> Self {
        let share = |pair: &[Sample]| {
            let span = Span::new(pair[0].at_ms, pair[1].at_ms);
            let ratio = pair[1].value;
            let counts = ratio > 0.0 && !span.is_empty() && span.to_ms - span.from_ms <= apart_max_ms;
            counts.then(|| (span, ratio.min(1.0)))
        };
        Self(samples.windows(2).filter_map(share).collect())
    }

    /// Returns the seconds of a period that the shares amount to.
    pub(super) fn seconds(&self, within: Span) -> f64 {
        let first = self.0.partition_point(|(span, _)| span.to_ms <= within.from_ms);
        let shares = self.0[first..].iter();
        shares
            .map_while(|(span, ratio)| Some(span.common(within)?.seconds() * ratio))
            .sum()
    }
}

fn steps(samples: &[Sample]) -> Vec<StepPoint> {
    let point = |sample: &Sample| StepPoint {
        at_ms: sample.at_ms,
        step: sample.value as u64,
    };
    let mut points: Vec<StepPoint> = samples.iter().map(point).collect();
    points.sort_by_key(|point| point.at_ms);
    points
}

/// Returns the periods of saves: those that the counter has risen by, each up to the sample that contains it, and those in progress.
fn saves(saved_s: &[Sample], saving_s: &[Sample]) -> Vec<Span> {
    let up_to =
        |at_ms: TimestampMs, seconds: f64| Span::new(at_ms.saturating_sub((seconds * 1e3) as i64), at_ms);
    let finished = saved_s.windows(2).map(|pair| {
        let (before, now) = (pair[0].value, pair[1].value);
        // A lower value comes from another process, which counts from zero.
        up_to(pair[1].at_ms, if now < before { now } else { now - before })
    });
    let in_progress = saving_s.iter().map(|sample| up_to(sample.at_ms, sample.value));
    let all = finished.chain(in_progress);
    let mut saves: Vec<Span> = all.filter(|save| !save.is_empty()).collect();
    saves.sort_by_key(|save| save.from_ms);
    let mut disjoint: Vec<Span> = Vec::with_capacity(saves.len());
    for save in saves {
        match disjoint.last_mut() {
            Some(last) if save.from_ms <= last.to_ms => last.to_ms = last.to_ms.max(save.to_ms),
            _ => disjoint.push(save),
        }
    }
    disjoint
}

/// Returns the times after the start of a period, up to its end.
fn times_within(times_ms: &[TimestampMs], span: Span) -> &[TimestampMs] {
    let first = times_ms.partition_point(|at_ms| *at_ms <= span.from_ms);
    let end = times_ms.partition_point(|at_ms| *at_ms <= span.to_ms);
    times_ms.get(first..end).unwrap_or_default()
}
