//! Other knobs for a run: whether they can be turned, when its attempt is told to end, and taking a change back by itself.

use std::sync::Arc;

use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, RunId};
use domain::run::knob::{LiveChange, LiveState, STEPS_MIN, Verdict};
use domain::run::state::{Attempt, CannotChange, Event, Machine, StopPoint, Wish};
use domain::time::TimestampMs;
use query::Value;

use super::Runs;
use super::error::RunError;
use crate::clock;
use crate::evaluator::QueryError;

/// Time for the other ranks, and to save, once the first has come to the step after which the attempt ends; without such a step,
/// between SIGTERM and SIGKILL.
const GRACE_MS: u64 = 120_000;
/// Without a step to end after nothing is saved but what a script saves on SIGTERM.
const GRACE_AT_ONCE_MS: u64 = 30_000;

/// A change of knobs that is not made.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The knob, its value, or the moment.
    #[error(transparent)]
    Cannot(#[from] CannotChange),
    /// It is not the attempt the caller knows.
    #[error(
        "attempt {current} of run {run} is the current one, not {expected}; look at what has changed, and ask again"
    )]
    NotExpected {
        /// The run.
        run: RunId,
        /// What the caller knows.
        expected: AttemptNo,
        /// What is.
        current: AttemptNo,
    },
}

impl Runs {
    /// What a wish for other knobs means for a run now; none when it is so already, or under way.
    ///
    /// # Errors
    /// When there is no such run, a knob cannot be turned so, or nothing can be changed now.
    pub async fn knob_change(
        &self,
        run: &RunId,
        wish: Wish,
        expected: Option<AttemptNo>,
    ) -> Result<Option<Event>, KnobError> {
        let machine = self.machine(run).await?;
        if machine.change_for(&wish)?.is_none() {
            return Ok(None);
        }
        self.check_none_held(run)?;
        let current = machine.current().no;
        if let Some(expected) = expected.filter(|expected| *expected != current) {
            return Err(KnobError::NotExpected {
                run: run.clone(),
                expected,
                current,
            });
        }
        Ok(Some(self.change_event(&machine, wish).await))
    }

    /// Takes back a change whose verdict is against it, where that was agreed. Once: it is the last change no more then.
    pub(super) async fn take_back(self: &Arc<Self>, run: &RunId) -> Result<(), RunError> {
        let machine = self.machine(run).await?;
        if machine.unknown_attempt.is_some() || self.check_none_held(run).is_err() {
            return Ok(());
        }
        let Some((id, why)) = machine.to_take_back() else {
            return Ok(());
        };
        let wish = Wish::Revert {
            attempt: Some(id.attempt),
            live: (id.live > 0).then_some(id.live),
            reason: Some(why.clone()),
            from_start: false,
            restart: false,
        };
        let event = self.change_event(&machine, wish).await;
        self.take(run, event).await?;
        self.parts
            .events
            .append(LogLine {
                run: Some(run.to_string()),
                ..line(
                    Severity::Warning,
                    clock::now_ms(),
                    format!("the change of {id} of run {run} is taken back by itself: {why}"),
                )
            })
            .await;
        Ok(())
    }

    /// Tries a doubled batch once activation checkpointing is kept, where that was asked for. The batch is what the run itself says,
    /// else what every rank tells of its DataLoader.
    pub(super) async fn try_larger_batch(self: &Arc<Self>, run: &RunId) -> Result<(), RunError> {
        let machine = self.machine(run).await?;
        if machine.unknown_attempt.is_some() || self.check_none_held(run).is_err() {
            return Ok(());
        }
        let Some((attempt, known)) = machine.larger_batch_due() else {
            return Ok(());
        };
        let batch = match known {
            Some(batch) => Ok(batch),
            None => match self.batches(&machine, clock::now_ms()).await {
                Err(error) => {
                    tracing::warn!(%error, %run, "the batch of a run cannot be read");
                    return Ok(());
                }
                // Told with every step: it is on its way.
                Ok(None) if !has_steps(machine.current(), attempt) => return Ok(()),
                Ok(None) => Err("no batch is known: its ranks were seen to use no DataLoader".into()),
                Ok(Some((least, most))) if least == most => Ok(most),
                Ok(Some((least, most))) => Err(format!(
                    "its ranks have batches of {least} to {most} samples, not one size"
                )),
            },
        };
        let event = match batch.and_then(|batch| machine.larger_batch(attempt, batch)) {
            Ok(wish) => self.change_event(&machine, wish).await,
            Err(why) => Event::NoLargerBatch { attempt, why },
        };
        self.take(run, event).await
    }

    /// The smallest and the largest batch of any rank in the current attempt. Of each rank its largest: the last of an epoch may be
    /// a smaller one.
    pub(super) async fn batches(
        &self,
        machine: &Machine,
        now_ms: TimestampMs,
    ) -> Result<Option<(u32, u32)>, QueryError> {
        let attempt = machine.current();
        let window_ms = (now_ms - attempt.placement.placed_ms.unwrap_or(attempt.started_ms)).max(1);
        let of_ranks = format!(
            "max_over_time(train_micro_batch{{run=\"{}\"}}[{window_ms}ms])",
            machine.id
        );
        let mut bounds = [0; 2];
        for (bound, of) in bounds.iter_mut().zip(["min", "max"]) {
            let answer = self
                .parts
                .evaluator
                .instant(&format!("{of}({of_ranks})"), now_ms)
                .await?;
            let Value::Vector(samples) = answer.value else {
                return Ok(None);
            };
            let Some((_, _, value)) = samples.first() else {
                return Ok(None);
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a saturating cast of a count"
            )]
            let count = *value as u32;
            *bound = count;
        }
        Ok(Some((bounds[0], bounds[1])))
    }

    /// After a step where ranks tell theirs: then nothing but what was not saved has to be done again.
    async fn change_event(&self, machine: &Machine, wish: Wish) -> Event {
        let step = match machine.cannot_wait() {
            None => self.step_ahead(machine).await.ok(),
            Some(_) => None,
        };
        Event::KnobsChanged {
            wish,
            grace_ms: if step.is_some() {
                GRACE_MS
            } else {
                GRACE_AT_ONCE_MS
            },
            after: step.map(StopPoint::Step),
        }
    }
}

/// Whether an attempt has made so many steps that what is told with each of them is there: those of the verdict, where it is the
/// attempt of the change that was kept.
fn has_steps(current: &Attempt, kept: AttemptNo) -> bool {
    let first = current.ranks().filter_map(|(_, rank)| rank.first_step).min();
    let made = current
        .last_step()
        .zip(first)
        .map_or(0, |(last, first)| last.saturating_sub(first));
    current.no == kept || made >= STEPS_MIN as u64
}

/// Lines for the event log: a change that begins or is taken over, a verdict that is another.
pub(super) fn news(before: &Machine, after: &Machine, now_ms: TimestampMs) -> Vec<LogLine> {
    let mut lines = Vec::new();
    for made in &after.attempts {
        let known = before.attempts.iter().find(|known| known.no == made.no);
        let of_attempt = format!("attempt {} of run {}", made.no, after.id);
        if let Some(change) = &made.knobs.change {
            if known.is_none() {
                let message = format!("{of_attempt}: {}, {}", change.cause(), change.words());
                lines.push(line(Severity::Info, now_ms, message));
            }
            let was = known.and_then(|known| known.knobs.change.as_deref());
            let judged = was.and_then(|was| was.verdict.as_ref());
            lines.extend(judgement(
                &of_attempt,
                &change.words(),
                (judged, change.verdict.as_ref()),
                now_ms,
            ));
            let untried = was.is_none_or(|was| was.no_larger_batch.is_none());
            if let Some(why) = change.no_larger_batch.as_ref().filter(|_| untried) {
                let message = format!("{of_attempt}: no larger micro_batch is tried, {why}");
                lines.push(line(Severity::Warning, now_ms, message));
            }
        }
        lines.extend(news_in_place(&of_attempt, known, made, now_ms));
    }
    for line in &mut lines {
        line.run = Some(after.id.to_string());
    }
    lines
}

/// What became of changes that ranks take over while they train.
fn news_in_place(of: &str, before: Option<&Attempt>, after: &Attempt, now_ms: TimestampMs) -> Vec<LogLine> {
    let mut lines = Vec::new();
    for is in &after.knobs.live {
        let was = before.and_then(|before| before.knobs.live.iter().find(|was| was.no == is.no));
        let words = is.change.words();
        if was.is_none() {
            let message = format!("{of}: {}, {words}, in place", is.change.cause());
            lines.push(line(Severity::Info, now_ms, message));
        }
        if is.state != was.map_or(LiveState::Asked, |was| was.state) {
            let severity = match is.state {
                LiveState::Refused => Severity::Warning,
                _ => Severity::Info,
            };
            lines.push(line(severity, now_ms, format!("{of}, {words}: {}", is.words())));
        }
        let judged = |live: &LiveChange| live.change.verdict.clone();
        let verdicts = (was.and_then(judged), judged(is));
        lines.extend(judgement(
            of,
            &words,
            (verdicts.0.as_ref(), verdicts.1.as_ref()),
            now_ms,
        ));
    }
    lines
}

/// A line where the verdict is another than it was.
fn judgement(
    of: &str,
    words: &str,
    (was, is): (Option<&Verdict>, Option<&Verdict>),
    now_ms: TimestampMs,
) -> Option<LogLine> {
    let verdict = is.filter(|is| was.is_none_or(|was| was.decision != is.decision))?;
    let message = format!("{of}, {words}: {}, {}", verdict.decision.words(), verdict.summary);
    Some(line(Severity::Info, now_ms, message))
}

fn line(severity: Severity, at_ms: TimestampMs, message: String) -> LogLine {
    LogLine {
        at_ms,
        severity,
        kind: "knob".to_owned(),
        node: None,
        gpu: None,
        run: None,
        message,
    }
}
