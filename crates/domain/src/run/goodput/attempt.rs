//! The time of one attempt: its phases, and what became of each.

use super::samples::{Observed, StepPoint};
use super::{Breakdown, LossCause, Span};
use crate::run::checkpoint::ResumedFrom;
use crate::run::spec::Spec;
use crate::run::state::{Attempt, Machine};
use crate::time::TimestampMs;

/// What is known about the time of an attempt.
#[derive(Debug, Clone)]
pub(super) struct AttemptTime {
    /// From its placement to its end.
    pub(super) held: Span,
    /// Number of its GPUs or ranks.
    pub(super) ranks: f64,
    /// True if it has ended.
    pub(super) is_over: bool,
    /// Since when its nodes are told to stop because it fails.
    pub(super) failing_since_ms: Option<TimestampMs>,
    /// The step from which its ranks count.
    pub(super) resumed_step: u64,
    /// The last step that any rank reported to the collector.
    pub(super) last_step: Option<u64>,
    /// True if it may have made steps although there are no samples of them.
    pub(super) may_lack_samples: bool,
    /// Which of its steps count.
    pub(super) kept: KeptSteps,
    /// Its steps, both times and steps ascending.
    pub(super) points: Vec<StepPoint>,
}

/// Which steps of an attempt are part of the run's final state, after all later attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptSteps {
    All,
    UpTo(u64),
    /// A later attempt resumed from a checkpoint whose step is not known.
    Unknown,
}

/// The steps of a period: those after `from`, up to `to`.
#[derive(Debug, Clone, Copy)]
struct Steps {
    from: u64,
    to: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    StartUp,
    Training(Steps),
    Ending,
    Unknown,
}

/// What became of a period.
#[derive(Debug, Clone, Copy)]
enum Part {
    Productive,
    Lost(LossCause),
    Unknown,
}

/// Adds up periods of an attempt, as far as they lie within the requested period.
struct Tally {
    within: Span,
    ranks: f64,
    breakdown: Breakdown,
}

impl AttemptTime {
    /// Returns the time of each attempt that was placed. An attempt of which a restored backup lacks the end is left out.
    pub(super) fn of_run(run: &Machine, seen: &Observed, now_ms: TimestampMs) -> Vec<Self> {
        let mut kept = KeptSteps::All;
        let mut times = Vec::new();
        for attempt in run.attempts.iter().rev() {
            let is_placed = !attempt.nodes.is_empty() && !attempt.left_alone;
            let time = is_placed.then(|| Self::new(run, attempt, kept, seen, now_ms));
            let has_steps = time.as_ref().is_some_and(|time| !time.points.is_empty());
            if has_steps || attempt.made_progress() {
                kept = kept.and(KeptSteps::before(attempt.placement.resumed_from.as_ref()));
            }
            times.extend(time);
        }
        times
    }

    fn new(run: &Machine, attempt: &Attempt, kept: KeptSteps, seen: &Observed, now_ms: TimestampMs) -> Self {
        let is_live = run.is_live(attempt.no);
        let ended_ms = attempt.ended_ms.or(run.ended_ms.filter(|_| !is_live));
        let to_ms = ended_ms.unwrap_or(now_ms);
        let points = progress(&seen.steps, Span::new(attempt.started_ms, to_ms));
        let placed_ms = attempt.placement.placed_ms.unwrap_or(attempt.started_ms);
        // A restart of the collector replaces the time of the placement.
        let from_ms = points
            .first()
            .map_or(placed_ms, |first| placed_ms.min(first.at_ms));
        let resumed_from = attempt.placement.resumed_from.as_ref();
        Self {
            held: Span::new(from_ms, to_ms),
            ranks: ranks(attempt, &run.spec),
            is_over: !is_live,
            failing_since_ms: attempt.progress.failing_since_ms,
            resumed_step: resumed_from.and_then(|from| from.step).unwrap_or(0),
            last_step: attempt.last_step(),
            may_lack_samples: run.watched
                || attempt.made_progress()
                || !attempt.findings.unobserved.is_empty(),
            kept,
            points,
        }
    }

    /// Splits the time of the attempt that lies within a period.
    pub(super) fn split(&self, seen: &Observed, within: Span) -> Breakdown {
        let mut tally = Tally {
            within,
            ranks: self.ranks,
            breakdown: Breakdown::default(),
        };
        for (span, phase) in self.phases() {
            if span.common(within).is_none() {
                continue;
            }
            match phase {
                Phase::StartUp => tally.add(span, Part::Lost(LossCause::StartUp)),
                Phase::Training(steps) => self.split_training(span, steps, seen, &mut tally),
                Phase::Ending => self.split_ending(span, seen, &mut tally),
                Phase::Unknown => tally.add(span, Part::Unknown),
            }
        }
        tally.breakdown
    }

    /// Returns the phases in order of time. Each ends where the next one begins.
    fn phases(&self) -> Vec<(Span, Phase)> {
        let Span { from_ms, to_ms } = self.held;
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            let phase = if self.may_lack_samples {
                Phase::Unknown
            } else {
                Phase::StartUp
            };
            return vec![(self.held, phase)];
        };
        let (first_ms, last_ms) = (self.first_step_ms(), self.last_step_ms());
        let training = |from, to| Phase::Training(Steps { from, to });
        let last_step = self.last_step.unwrap_or(0).max(last.step);
        let tail = if self.is_over {
            Phase::Ending
        } else {
            training(last_step, last_step)
        };
        let mut phases = vec![
            (Span::new(from_ms, first_ms), Phase::StartUp),
            (
                Span::new(first_ms, first.at_ms),
                training(self.resumed_step, first.step),
            ),
        ];
        phases.extend(self.points.windows(2).map(|pair| {
            let span = Span::new(pair[0].at_ms, pair[1].at_ms);
            (span, training(pair[0].step, pair[1].step))
        }));
        phases.push((Span::new(last.at_ms, last_ms), training(last.step, last_step)));
        phases.push((Span::new(last_ms, to_ms), tail));
        phases
    }

    /// Returns when the first step ended. The first sample may be of a later one; the steps before it took as long as those after it.
    fn first_step_ms(&self) -> TimestampMs {
        let [first, second, ..] = self.points.as_slice() else {
            return self.points.first().map_or(self.held.to_ms, |first| first.at_ms);
        };
        let before = first.step.saturating_sub(self.resumed_step.saturating_add(1));
        let before_ms = before as f64 * step_ms(*first, *second);
        (first.at_ms - before_ms as i64).max(self.held.from_ms)
    }

    /// Returns when the last step ended. It may have no sample; the steps after the last sample took as long as those before it.
    fn last_step_ms(&self) -> TimestampMs {
        let [.., before, last] = self.points.as_slice() else {
            return self.points.last().map_or(self.held.to_ms, |last| last.at_ms);
        };
        let after = self.last_step.unwrap_or(0).saturating_sub(last.step);
        let after_ms = after as f64 * step_ms(*before, *last);
        let end_ms = self.held.to_ms;
        let latest_ms = self.failing_since_ms.unwrap_or(end_ms).min(end_ms);
        last.at_ms
            .saturating_add(after_ms as i64)
            .min(latest_ms)
            .max(last.at_ms)
    }

    fn split_training(&self, span: Span, steps: Steps, seen: &Observed, tally: &mut Tally) {
        let mut rest = vec![span];
        tally.take(&mut rest, seen.gaps(span), Part::Unknown);
        tally.take(&mut rest, seen.saves(span), Part::Lost(LossCause::Checkpoint));
        if seen.stalled_until(span).is_some() {
            tally.take(&mut rest, [span], Part::Lost(LossCause::Stall));
        }
        if seen.has_rank_alone(span) {
            tally.take(&mut rest, [span], Part::Lost(LossCause::OneRankAlone));
        }
        match self.kept {
            KeptSteps::All => {}
            KeptSteps::UpTo(step) => {
                let repeated = Span::new(steps.end_ms(step, span), span.to_ms);
                tally.take(&mut rest, [repeated], Part::Lost(LossCause::RepeatedSteps));
            }
            KeptSteps::Unknown => tally.take(&mut rest, [span], Part::Unknown),
        }
        rest.into_iter().for_each(|span| tally.add_kept(span, seen));
    }

    fn split_ending(&self, span: Span, seen: &Observed, tally: &mut Tally) {
        let mut rest = vec![span];
        // From then on it is known that the nodes were stopping.
        let stopping_ms = self.failing_since_ms.unwrap_or(span.to_ms);
        let open = Span::new(span.from_ms, stopping_ms.clamp(span.from_ms, span.to_ms));
        tally.take(&mut rest, seen.gaps(open), Part::Unknown);
        tally.take(&mut rest, seen.saves(span), Part::Lost(LossCause::Checkpoint));
        if let Some(until_ms) = seen.stalled_until(span) {
            let stalled = Span::new(span.from_ms, until_ms);
            tally.take(&mut rest, [stalled], Part::Lost(LossCause::Stall));
        }
        tally.take(&mut rest, [span], Part::Lost(LossCause::Ending));
    }
}

impl KeptSteps {
    /// Returns the steps that an attempt keeps of those before it.
    fn before(resumed_from: Option<&ResumedFrom>) -> Self {
        match resumed_from.map(|from| from.step) {
            None => Self::UpTo(0),
            Some(Some(step)) => Self::UpTo(step),
            Some(None) => Self::Unknown,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::All, kept) | (kept, Self::All) => kept,
            (Self::UpTo(a), Self::UpTo(b)) => Self::UpTo(a.min(b)),
        }
    }
}

impl Steps {
    /// Returns when a step ended, if all steps of the period took equally long.
    fn end_ms(self, step: u64, span: Span) -> TimestampMs {
        if step >= self.to {
            return span.to_ms;
        }
        let count = self.to.saturating_sub(self.from).max(1);
        let share = step.saturating_sub(self.from) as f64 / count as f64;
        span.from_ms + ((span.to_ms - span.from_ms) as f64 * share) as i64
    }
}

impl Tally {
    /// Counts the time of `rest` that lies within `covers`, and removes it from `rest`.
    fn take(&mut self, rest: &mut Vec<Span>, covers: impl IntoIterator<Item = Span>, part: Part) {
        for cover in covers {
            for span in std::mem::take(rest) {
                match span.common(cover) {
                    Some(common) => {
                        self.add(common, part);
                        rest.extend(span.without(common));
                    }
                    None => rest.push(span),
                }
            }
        }
    }

    /// Counts a period of steps that count: the shares of data and stragglers, and the productive remainder.
    fn add_kept(&mut self, span: Span, seen: &Observed) {
        let Some(span) = span.common(self.within) else {
            return;
        };
        let whole_s = span.seconds();
        let data_s = seen.data.seconds(span).min(whole_s);
        let straggler_s = seen.straggler.seconds(span).min(whole_s - data_s);
        self.add_seconds(data_s, Part::Lost(LossCause::Data));
        self.add_seconds(straggler_s, Part::Lost(LossCause::Straggler));
        self.add_seconds(whole_s - data_s - straggler_s, Part::Productive);
    }

    fn add(&mut self, span: Span, part: Part) {
        if let Some(span) = span.common(self.within) {
            self.add_seconds(span.seconds(), part);
        }
    }

    fn add_seconds(&mut self, seconds: f64, part: Part) {
        let counted_s = seconds * self.ranks;
        match part {
            Part::Productive => self.breakdown.productive_s += counted_s,
            Part::Unknown => self.breakdown.unknown_s += counted_s,
            Part::Lost(cause) if counted_s > 0.0 => {
                *self.breakdown.lost_s.entry(cause).or_default() += counted_s;
            }
            Part::Lost(_) => {}
        }
    }
}

/// Returns the steps within a period that no earlier sample has reached.
pub(super) fn progress(steps: &[StepPoint], within: Span) -> Vec<StepPoint> {
    let mut points: Vec<StepPoint> = Vec::new();
    let inside = steps
        .iter()
        .filter(|point| (within.from_ms..=within.to_ms).contains(&point.at_ms));
    for point in inside {
        if points.last().is_none_or(|last| last.step < point.step) {
            points.push(*point);
        }
    }
    points
}

/// Returns the time of a step between two points.
fn step_ms(before: StepPoint, after: StepPoint) -> f64 {
    (after.at_ms - before.at_ms) as f64 / after.step.saturating_sub(before.step).max(1) as f64
}

/// Returns the number of ranks: those that were started, or will be. 0 while the number is not known.
fn ranks(attempt: &Attempt, spec: &Spec) -> f64 {
    let started = attempt.ranks().count();
    let planned = attempt
        .nproc(spec)
        .map_or(0, |nproc| nproc as usize * attempt.nodes.len());
    started.max(planned) as f64
}
