//! Verdicts on changes of knobs, computed from the series before and after the change.
//!
//! ```text
//! every three seconds, each run with a change whose verdict may still change:
//!   from the previous change to this │ from this to the next ── series of rank 0, peaks of all ──▶ knob::judge ──▶ KnobsJudged ──▶ revert?
//! ```

mod attempt_range;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::knob::{
    Comparison, ComparisonInput, Decision, Memory, MemoryKind, StepSample, Trace, Verdict, compare, judge,
};
use domain::run::state::{Attempt, Cause, Event, LossSample, Machine};
use domain::time::TimestampMs;
use query::Value;

use self::attempt_range::{AppliedChange, AttemptRange, Cut, Span, changes};
use super::Runs;
use super::error::RunError;
use super::stored::unless_unreadable;
use crate::clock;

/// How often verdicts are computed.
pub(super) const EVERY: Duration = Duration::from_secs(3);
/// Number of steps after a change from which the verdict is final: the confidence interval of the median is narrow then.
const STEPS_ENOUGH: usize = 200;
/// How long an ended run is still evaluated.
const FOLLOWED_MS: i64 = 60_000;

/// Why two attempts cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The run is unknown or cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run has no such attempt.
    #[error("run {run} has no attempt {attempt}; it has {last}")]
    NoAttempt {
        /// The run.
        run: RunId,
        /// The requested attempt.
        attempt: AttemptNo,
        /// The last attempt of the run.
        last: AttemptNo,
    },
}

impl Runs {
    /// Compares two attempts. If no attempt is named, the last one of the run.
    ///
    /// # Errors
    /// Returns an error if a run or attempt is unknown, or the store fails.
    pub async fn compare(
        &self,
        a: (&RunId, Option<AttemptNo>),
        b: (&RunId, Option<AttemptNo>),
    ) -> Result<Comparison, CompareError> {
        let (machine_a, at_a) = self.attempt(a).await?;
        let (machine_b, at_b) = self.attempt(b).await?;
        let now_ms = clock::now_ms();
        let (side_a, side_b) = (&machine_a.attempts[at_a], &machine_b.attempts[at_b]);
        let trace_a = self
            .trace(&machine_a, &AttemptRange::of(side_a).latest(now_ms))
            .await;
        let trace_b = self
            .trace(&machine_b, &AttemptRange::of(side_b).latest(now_ms))
            .await;
        let compared = |run, attempt, trace| ComparisonInput { run, attempt, trace };
        Ok(compare(
            &compared(&machine_a, side_a, &trace_a),
            &compared(&machine_b, side_b, &trace_b),
        ))
    }

    async fn attempt(
        &self,
        (run, no): (&RunId, Option<AttemptNo>),
    ) -> Result<(Arc<Machine>, usize), CompareError> {
        let machine = self.machine(run).await?;
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

    /// Evaluates all runs that have a change, also those that ended a moment ago.
    pub(super) async fn judge_changes(
        self: &Arc<Self>,
        followed: &mut BTreeSet<RunId>,
    ) -> Result<(), RunError> {
        let changed = |run: &Machine| changes(run).next().is_some();
        let unfinished = self.owners.unfinished();
        let changed = unfinished.iter().filter(|run| changed(run));
        followed.extend(changed.map(|run| run.id.clone()));
        for run in followed.clone() {
            let machine = match self.machine(&run).await {
                Err(RunError::Unknown(_)) => None,
                found => unless_unreadable(found)?,
            };
            let over = |machine: &Machine| {
                machine
                    .ended_ms
                    .is_some_and(|at| clock::now_ms() - at > FOLLOWED_MS)
            };
            let Some(machine) = machine else {
                followed.remove(&run);
                continue;
            };
            self.judge_run(&machine).await?;
            self.take_back(&run).await?;
            self.try_larger_batch(&run).await?;
            if over(&machine) {
                followed.remove(&run);
            }
        }
        Ok(())
    }

    async fn judge_run(self: &Arc<Self>, machine: &Machine) -> Result<(), RunError> {
        let now_ms = clock::now_ms();
        let applied: Vec<AppliedChange<'_>> = changes(machine).collect();
        for (index, this) in applied.iter().enumerate() {
            let counts = |other: &&AppliedChange<'_>| this.is_cut_by(other);
            let next = applied[index + 1..].iter().find(counts);
            let is_last = next.is_none() && machine.attempts[this.at].ended_ms.is_none();
            if this.waits || !may_change(this.change.verdict.as_ref(), is_last) {
                continue;
            }
            let begin = applied[..index].iter().rfind(counts);
            let begin = begin.map_or(Cut::at(0), AppliedChange::since);
            let end = next.map_or(Cut::at(machine.attempts.len()), AppliedChange::until);
            let before = AttemptRange::new(machine, begin, this.until());
            let since = AttemptRange::new(machine, this.since(), end);
            let answers = this.answers(since.attempts);
            let before = self.trace(machine, &before.latest(now_ms)).await;
            let after = Trace {
                out_of_memory: since.attempts.iter().any(ran_out_of_memory),
                ..self.trace(machine, &since.earliest(now_ms)).await
            };
            let (before, after) = if this.is_in_place() {
                (without_process_peak(before), without_process_peak(after))
            } else {
                (before, after)
            };
            let verdict = judge(this.change, &answers, &before, &after);
            let known = this.change.verdict.as_ref();
            if known.is_some_and(|known| is_same(known, &verdict)) {
                continue;
            }
            let judged = Event::KnobsJudged {
                attempt: this.id.attempt,
                live: this.id.live,
                verdict: Box::new(verdict),
            };
            self.take(&machine.id, judged).await?;
        }
        Ok(())
    }

    /// Returns the values of a run's series in a span of time.
    async fn trace(&self, machine: &Machine, span: &Span) -> Trace {
        Trace {
            samples: self
                .samples(&machine.id, Rank(0), span, &PARTS)
                .await
                .into_values()
                .collect(),
            memory: self.memory(&machine.id, span).await,
            ended: span.ended,
            out_of_memory: false,
        }
    }

    /// Returns the losses of a rank in an attempt, in the last `window_ms` until now or until its end.
    pub(super) async fn losses(
        &self,
        run: &RunId,
        attempt: &Attempt,
        rank: Rank,
        window_ms: i64,
    ) -> Vec<LossSample> {
        let mut span = AttemptRange::of(attempt).latest(clock::now_ms());
        span.from_ms = span.from_ms.max(span.to_ms - window_ms);
        let samples = self.samples(run, rank, &span, &[LOSS]).await;
        let with_loss = |(at_ms, sample): (TimestampMs, StepSample)| {
            Some(LossSample {
                at_ms,
                step: sample.step,
                loss: sample.loss?,
            })
        };
        samples.into_iter().filter_map(with_loss).collect()
    }

    /// Returns the steps of a rank with some of their values, by time.
    async fn samples(
        &self,
        run: &RunId,
        rank: Rank,
        span: &Span,
        parts: &[(&str, Part)],
    ) -> BTreeMap<TimestampMs, StepSample> {
        let window_ms = span.window_ms();
        let of = |metric: &str| format!("{metric}{{run=\"{run}\",rank=\"{rank}\"}}[{window_ms}ms]");
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
        // All series of a rank have samples at the times of its steps.
        for &(metric, put) in parts {
            for (at_ms, value) in self.values(&of(metric), span.to_ms).await {
                if let Some(sample) = samples.get_mut(&at_ms) {
                    *put(sample) = Some(value);
                }
            }
        }
        samples
    }

    /// Returns the largest memory peak of any rank: of the CUDA allocator if there are GPUs, otherwise of the saved tensors that the probe
    /// counted.
    async fn memory(&self, run: &RunId, span: &Span) -> Option<Memory> {
        let window_ms = span.window_ms();
        for (metric, kind) in MEMORY {
            let query = format!("max(max_over_time({metric}{{run=\"{run}\"}}[{window_ms}ms]))");
            let samples = self.parts.evaluator.samples(&query, span.to_ms).await.ok()?;
            let found = samples.first().map(|(_, _, value)| *value);
            if let Some(bytes) = found.filter(|bytes| bytes.is_finite()) {
                return Some(Memory { kind, bytes });
            }
        }
        None
    }

    /// Returns the samples of all series that a range selector yields, as one: a rank that moved to another node continues under its
    /// number.
    async fn values(&self, selector: &str, at_ms: TimestampMs) -> Vec<(TimestampMs, f64)> {
        match self
            .parts
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

const LOSS: (&str, Part) = ("train_loss", |sample| &mut sample.loss);

const PARTS: [(&str, Part); 3] = [
    ("train_step_seconds", |sample| &mut sample.seconds),
    LOSS,
    ("train_samples_per_second", |sample| {
        &mut sample.samples_per_second
    }),
];

const MEMORY: [(&str, MemoryKind); 2] = [
    ("train_memory_allocated_bytes", MemoryKind::CudaAllocated),
    ("train_saved_tensor_bytes", MemoryKind::SavedTensors),
];

/// Returns the trace without the peak of PyTorch's allocator. It is the peak since the process began, so after a change in place it cannot be
/// lower than before.
fn without_process_peak(trace: Trace) -> Trace {
    let memory = trace
        .memory
        .filter(|memory| memory.kind != MemoryKind::CudaAllocated);
    Trace { memory, ..trace }
}

fn ran_out_of_memory(attempt: &Attempt) -> bool {
    let outcome = attempt.outcome.as_ref();
    outcome.is_some_and(|outcome| outcome.cause == Cause::OutOfMemory)
}

fn may_change(verdict: Option<&Verdict>, is_last: bool) -> bool {
    verdict.is_none_or(|verdict| match verdict.decision {
        Decision::NotYet => true,
        _ => is_last && verdict.after.steps < STEPS_ENOUGH,
    })
}

/// Returns true if nothing visible has changed. The store may drop the last bit of a number.
fn is_same(known: &Verdict, new: &Verdict) -> bool {
    known.decision == new.decision && known.summary == new.summary && known.missing_steps == new.missing_steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_of_the_process_is_not_compared_within_the_process() {
        let kept = |kind| {
            let trace = Trace {
                memory: Some(Memory { kind, bytes: 4e9 }),
                ended: true,
                ..Trace::default()
            };
            let kept = without_process_peak(trace);
            (kept.memory.map(|memory| memory.kind), kept.ended)
        };
        assert_eq!(kept(MemoryKind::CudaAllocated), (None, true));
        assert_eq!(
            kept(MemoryKind::SavedTensors),
            (Some(MemoryKind::SavedTensors), true)
        );
    }

    #[test]
    fn a_verdict_is_final_when_no_further_step_can_change_it() {
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
