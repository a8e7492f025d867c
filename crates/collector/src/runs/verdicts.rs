//! Verdicts on changes of knobs, from the series of the attempts before and since.
//!
//! ```text
//! every three seconds, each run with a change that may still be judged otherwise:
//!   attempts up to the change │ attempts since ── series of rank 0, peaks of all ──▶ knob::judge ──▶ KnobsJudged ──▶ taken back?
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::ident::{AttemptNo, RunId};
use domain::run::knob::{
    Comparison, Decision, Memory, MemoryKind, StepSample, Trace, Verdict, compare, judge,
};
use domain::run::state::{Attempt, Event, Machine};
use domain::time::TimestampMs;
use query::Value;

use super::stored::unless_unreadable;
use super::{RunError, Runs};
use crate::app::Shared;

/// How often verdicts are looked at.
pub(super) const EVERY: Duration = Duration::from_secs(3);
/// What is read of each side: a sample a second and a burst, four series of one rank.
const WINDOW_MS: i64 = 30 * 60_000;
/// Steps since a change from which the verdict stays as it is: the interval of the median is narrow then.
const STEPS_ENOUGH: usize = 200;
/// The last samples of an attempt come some seconds after its end.
const LATE_MS: i64 = 10_000;
/// A run that ended is looked at this long.
const FOLLOWED_MS: i64 = 60_000;

/// An attempt that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No such attempt.
    #[error("run {run} has no attempt {attempt}; it has {last}")]
    NoAttempt {
        /// The run.
        run: RunId,
        /// Which.
        attempt: AttemptNo,
        /// How many there are.
        last: AttemptNo,
    },
}

impl Runs {
    /// Two attempts beside each other; the last one where none is named.
    ///
    /// # Errors
    /// When there is no such run or attempt, or the store fails.
    pub async fn compare(
        &self,
        a: (&RunId, Option<AttemptNo>),
        b: (&RunId, Option<AttemptNo>),
    ) -> Result<Comparison, CompareError> {
        let (machine_a, at_a) = self.attempt(a).await?;
        let (machine_b, at_b) = self.attempt(b).await?;
        let now_ms = crate::clock::now_ms();
        let (side_a, side_b) = (&machine_a.attempts[at_a], &machine_b.attempts[at_b]);
        let trace_a = self
            .trace(&machine_a, &latest(std::slice::from_ref(side_a), now_ms))
            .await;
        let trace_b = self
            .trace(&machine_b, &latest(std::slice::from_ref(side_b), now_ms))
            .await;
        Ok(compare(
            (&machine_a, side_a, &trace_a),
            (&machine_b, side_b, &trace_b),
        ))
    }

    async fn attempt(
        &self,
        (run, no): (&RunId, Option<AttemptNo>),
    ) -> Result<(Machine, usize), CompareError> {
        let (_, machine) = self.machine(run).await?;
        let last = machine.current().no;
        let wanted = no.unwrap_or(last);
        let at = machine.attempts.iter().position(|attempt| attempt.no == wanted);
        let at = at.ok_or_else(|| CompareError::NoAttempt {
            run: run.clone(),
            attempt: wanted,
            last,
        })?;
        Ok((machine, at))
    }

    /// Looks at all runs that have or had a change a moment ago.
    pub(super) async fn judge_changes(
        &self,
        app: &Shared,
        followed: &mut BTreeSet<RunId>,
    ) -> Result<(), RunError> {
        let changed = |run: &Machine| run.attempts.iter().any(|attempt| attempt.change.is_some());
        let unfinished = self.unfinished().await?;
        followed.extend(unfinished.into_iter().filter(changed).map(|run| run.id));
        for run in followed.clone() {
            let machine = match self.machine(&run).await {
                Err(RunError::Unknown(_)) => None,
                found => unless_unreadable(found)?.map(|(_, machine)| machine),
            };
            let over = |machine: &Machine| machine.ended_ms.is_some_and(|at| app.now_ms() - at > FOLLOWED_MS);
            let Some(machine) = machine else {
                followed.remove(&run);
                continue;
            };
            self.judge_run(app, &machine).await?;
            self.take_back(app, &run).await?;
            if over(&machine) {
                followed.remove(&run);
            }
        }
        Ok(())
    }

    async fn judge_run(&self, app: &Shared, machine: &Machine) -> Result<(), RunError> {
        let now_ms = app.now_ms();
        for (at, end) in changes(machine) {
            let (before, since) = (&machine.attempts[..at], &machine.attempts[at..end]);
            let made = &machine.attempts[at];
            let Some(change) = made.change.as_deref() else {
                continue;
            };
            let is_last = end == machine.attempts.len() && made.ended_ms.is_none();
            if !may_change(change.verdict.as_ref(), is_last) {
                continue;
            }
            let begun = changes(machine).filter(|(_, end)| *end == at).map(|(at, _)| at);
            let before = &before[begun.last().unwrap_or(0)..];
            let before = self.trace(machine, &latest(before, now_ms)).await;
            let after = self.trace(machine, &earliest(since, now_ms)).await;
            let answers: Vec<_> = since.iter().flat_map(|attempt| attempt.answers.clone()).collect();
            let verdict = judge(change, &answers, &before, &after);
            if change
                .verdict
                .as_ref()
                .is_some_and(|known| is_same(known, &verdict))
            {
                continue;
            }
            let verdict = Box::new(verdict);
            let attempt = made.no;
            self.take(app, &machine.id, &Event::KnobsJudged { attempt, verdict }, None)
                .await?;
        }
        Ok(())
    }

    /// What the series of a run say of a span of time.
    async fn trace(&self, machine: &Machine, span: &Span) -> Trace {
        let run = &machine.id;
        let window_ms = (span.to_ms - span.from_ms).max(1);
        let of = |metric: &str| format!("{metric}{{run=\"{run}\",rank=\"0\"}}[{window_ms}ms]");
        let mut samples: BTreeMap<TimestampMs, StepSample> = BTreeMap::new();
        for (at_ms, step) in self.values(&of("train_step"), span.to_ms).await {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a saturating cast of a count"
            )]
            let step = step as u64;
            samples.entry(at_ms).or_default().step = step;
        }
        // All of a rank's series have the times of its steps.
        for (metric, put) in PARTS {
            for (at_ms, value) in self.values(&of(metric), span.to_ms).await {
                if let Some(sample) = samples.get_mut(&at_ms) {
                    *put(sample) = Some(value);
                }
            }
        }
        Trace {
            samples: samples.into_values().collect(),
            memory: self.memory(run, window_ms, span.to_ms).await,
            ended: span.ended,
        }
    }

    /// The largest peak of any rank: the allocator's where there are GPUs, else of what the probe counted.
    async fn memory(&self, run: &RunId, window_ms: i64, at_ms: TimestampMs) -> Option<Memory> {
        for (metric, kind) in MEMORY {
            let query = format!("max(max_over_time({metric}{{run=\"{run}\"}}[{window_ms}ms]))");
            let found = match self.evaluator.instant(&query, at_ms).await.ok()?.value {
                Value::Vector(samples) => samples.first().map(|(_, _, value)| *value),
                _ => None,
            };
            if let Some(bytes) = found.filter(|bytes| bytes.is_finite()) {
                return Some(Memory { kind, bytes });
            }
        }
        None
    }

    /// Samples of all series that a range selector gives, as one: a rank that went to another node goes on under its number.
    async fn values(&self, selector: &str, at_ms: TimestampMs) -> Vec<(TimestampMs, f64)> {
        match self
            .evaluator
            .instant(selector, at_ms)
            .await
            .map(|output| output.value)
        {
            Ok(Value::Matrix(series)) => series
                .into_iter()
                .flat_map(|series| series.times.into_iter().zip(series.values))
                .collect(),
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "series for a verdict cannot be read");
                Vec::new()
            }
        }
    }
}

type Part = fn(&mut StepSample) -> &mut Option<f64>;

const PARTS: [(&str, Part); 3] = [
    ("train_step_seconds", |sample| &mut sample.seconds),
    ("train_loss", |sample| &mut sample.loss),
    ("train_samples_per_second", |sample| {
        &mut sample.samples_per_second
    }),
];

const MEMORY: [(&str, MemoryKind); 2] = [
    ("train_memory_allocated_bytes", MemoryKind::CudaAllocated),
    ("train_saved_tensor_bytes", MemoryKind::SavedTensors),
];

/// What is read.
#[derive(Debug, PartialEq, Eq)]
struct Span {
    from_ms: TimestampMs,
    to_ms: TimestampMs,
    ended: bool,
}

/// The end of some attempts: what they were like when they were changed.
fn latest(attempts: &[Attempt], now_ms: TimestampMs) -> Span {
    let span = whole(attempts, now_ms);
    Span {
        from_ms: span.from_ms.max(span.to_ms - WINDOW_MS),
        ..span
    }
}

/// The beginning of some attempts.
fn earliest(attempts: &[Attempt], now_ms: TimestampMs) -> Span {
    let span = whole(attempts, now_ms);
    let to_ms = span.to_ms.min(span.from_ms + WINDOW_MS);
    Span {
        ended: span.ended || to_ms < span.to_ms,
        to_ms,
        ..span
    }
}

fn whole(attempts: &[Attempt], now_ms: TimestampMs) -> Span {
    let begun = attempts.iter().find_map(|attempt| attempt.placed_ms);
    let ended_ms = attempts.last().and_then(|attempt| attempt.ended_ms);
    let to_ms = ended_ms.unwrap_or(now_ms);
    Span {
        from_ms: begun
            .or(attempts.first().map(|attempt| attempt.started_ms))
            .unwrap_or(to_ms),
        to_ms,
        ended: ended_ms.is_some_and(|ended| now_ms - ended > LATE_MS),
    }
}

/// The attempts of each change: from the one that made it up to the next change.
fn changes(machine: &Machine) -> impl Iterator<Item = (usize, usize)> {
    let attempts = &machine.attempts;
    let made = (0..attempts.len()).filter(|at| attempts[*at].change.is_some());
    made.map(|at| {
        let next = (at + 1..attempts.len()).find(|next| attempts[*next].change.is_some());
        (at, next.unwrap_or(attempts.len()))
    })
}

fn may_change(verdict: Option<&Verdict>, is_last: bool) -> bool {
    verdict.is_none_or(|verdict| match verdict.decision {
        Decision::NotYet => true,
        _ => is_last && verdict.after.steps < STEPS_ENOUGH,
    })
}

/// Nothing a person would see has changed. Numbers lose their last bit in the store.
fn is_same(known: &Verdict, new: &Verdict) -> bool {
    known.decision == new.decision && known.summary == new.summary && known.missing_steps == new.missing_steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::run::spec::Spec;

    /// When an attempt was placed, begun and ended, and whether it changed something.
    type Given = (Option<i64>, i64, Option<i64>, bool);

    fn machine(attempts: &[Given]) -> Machine {
        let id = RunId::new("r").expect("a name");
        let (mut machine, _) = Machine::submit(id, Spec::default(), 0);
        let first = machine.attempts[0].clone();
        let attempt = |(n, &(placed_ms, started_ms, ended_ms, changed)): (u32, &Given)| Attempt {
            no: AttemptNo(n),
            placed_ms,
            started_ms,
            ended_ms,
            change: changed.then(Box::default),
            ..first.clone()
        };
        machine.attempts = (1..).zip(attempts).map(attempt).collect();
        machine
    }

    #[test]
    fn each_side_is_read_near_the_change() {
        let hour = 3_600_000;
        let run = machine(&[
            (Some(10), 0, Some(hour), false),
            (Some(hour + 20), hour, Some(hour + 500), true),
            (Some(hour + 900), hour + 600, None, false),
            (Some(2 * hour), 2 * hour, None, true),
        ]);
        assert_eq!(changes(&run).collect::<Vec<_>>(), [(1, 3), (3, 4)]);
        let span = |from_ms, to_ms, ended| Span {
            from_ms,
            to_ms,
            ended,
        };
        let (before, since) = (&run.attempts[..1], &run.attempts[1..3]);
        assert_eq!(latest(before, 3 * hour), span(hour - WINDOW_MS, hour, true));
        assert_eq!(
            latest(before, hour + 5),
            span(hour - WINDOW_MS, hour, false),
            "samples may come"
        );
        assert_eq!(earliest(since, hour + 950), span(hour + 20, hour + 950, false));
        assert_eq!(
            earliest(since, 3 * hour),
            span(hour + 20, hour + 20 + WINDOW_MS, true)
        );
    }

    #[test]
    fn a_verdict_stays_once_nothing_more_can_tell() {
        let verdict = |decision, steps| {
            let mut verdict = Verdict {
                decision,
                ..Verdict::default()
            };
            verdict.after.steps = steps;
            verdict
        };
        assert!(may_change(None, false));
        for (decision, steps, is_last, expected) in [
            (Decision::NotYet, 3, false, true),
            (Decision::Kept, 30, true, true),
            (Decision::Kept, 30, false, false),
            (Decision::Kept, STEPS_ENOUGH, true, false),
        ] {
            assert_eq!(
                may_change(Some(&verdict(decision, steps)), is_last),
                expected,
                "{decision:?} {steps}"
            );
        }
    }
}
