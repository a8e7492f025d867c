//! Changes of a run's knobs: whether they are possible, when the attempt ends, and automatic reverts.

use std::sync::Arc;

use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, RunId};
use domain::run::knob::{InPlaceState, Pending, STEPS_MIN, Verdict};
use domain::run::state::{Attempt, CannotChange, Event, KnobRequest, Machine, StopPoint};
use domain::time::TimestampMs;

use super::Runs;
use super::error::RunError;
use crate::clock;
use crate::evaluator::QueryError;

/// Time for the other ranks, and for saving, after the first rank has reached the step at which the attempt ends. Without such a step, the
/// time between SIGTERM and SIGKILL.
const GRACE_MS: u64 = 120_000;
/// Without such a step, nothing is saved except what a script saves on SIGTERM.
const GRACE_AT_ONCE_MS: u64 = 30_000;

/// Why knobs are not changed.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The run is unknown or cannot be changed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The knob, its value or the state of the run does not allow it.
    #[error(transparent)]
    Cannot(#[from] CannotChange),
    /// The caller expected another attempt.
    #[error(
        "attempt {current} of run {run} is the current one, not {expected}; check what has changed, and try again"
    )]
    NotExpected {
        /// The run.
        run: RunId,
        /// The attempt that the caller expected.
        expected: AttemptNo,
        /// The current attempt.
        current: AttemptNo,
    },
    /// A node would be excluded, and no other node is free.
    #[error(
        "no other node is free, so run {run} could not continue without {node}; free a node or add one, then try again"
    )]
    NoSpareNode {
        /// The run.
        run: RunId,
        /// The node that would be excluded.
        node: String,
    },
}

impl Runs {
    /// Returns the event for a request to change knobs, or `None` if the knobs already have these values or the change is in progress.
    ///
    /// # Errors
    /// Returns an error if the run is unknown, if a knob cannot be changed in this way, or if nothing can be changed now.
    pub async fn knob_change(
        &self,
        run: &RunId,
        request: KnobRequest,
        expected: Option<AttemptNo>,
    ) -> Result<Option<Event>, KnobError> {
        let machine = self.machine(run).await?;
        if self.possible_change(&machine, &request, expected)?.is_none() {
            return Ok(None);
        }
        Ok(Some(self.change_event(&machine, request).await))
    }

    /// Returns the change that a request leads to, or `None` if the knobs already have these values or the change is in progress.
    pub(super) fn possible_change(
        &self,
        machine: &Machine,
        request: &KnobRequest,
        expected: Option<AttemptNo>,
    ) -> Result<Option<Pending>, KnobError> {
        let Some(pending) = machine.change_for(request)? else {
            return Ok(None);
        };
        let (run, current) = (&machine.id, machine.current().no);
        self.check_none_held(run)?;
        if let Some(expected) = expected.filter(|expected| *expected != current) {
            return Err(KnobError::NotExpected {
                run: run.clone(),
                expected,
                current,
            });
        }
        if let Some(node) = pending.change.without.first()
            && self.spare_nodes(machine) == 0
        {
            return Err(KnobError::NoSpareNode {
                run: run.clone(),
                node: node.clone(),
            });
        }
        Ok(Some(pending))
    }

    /// Reverts a change whose verdict is negative, if the change was made with auto-revert. This happens once: afterwards it is no longer
    /// the last change.
    pub(super) async fn take_back(self: &Arc<Self>, run: &RunId) -> Result<(), RunError> {
        let machine = self.machine(run).await?;
        if machine.unknown_attempt.is_some() || self.check_none_held(run).is_err() {
            return Ok(());
        }
        let Some((id, why)) = machine.change_to_revert() else {
            return Ok(());
        };
        let request = KnobRequest::revert(id, Some(why.clone()));
        let event = self.change_event(&machine, request).await;
        self.take(run, event).await?;
        let message = format!("the change of {id} of run {run} is reverted automatically: {why}");
        let line = LogLine {
            run: Some(run.to_string()),
            ..line(Severity::Warning, clock::now_ms(), message)
        };
        self.parts.events.append(line).await;
        Ok(())
    }

    /// Tries a doubled batch after activation checkpointing was kept, if that was requested. The current batch size is what the run itself
    /// sets, or what every rank reports of its DataLoader.
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
                // The batch size is reported with every step, so it will arrive.
                Ok(None) if !has_steps(machine.current(), attempt) => return Ok(()),
                Ok(None) => Err("no batch is known: its ranks were seen to use no DataLoader".into()),
                Ok(Some((least, most))) if least == most => Ok(most),
                Ok(Some((least, most))) => Err(format!(
                    "its ranks have batches of {least} to {most} samples, not one size"
                )),
            },
        };
        let event = match batch.and_then(|batch| machine.larger_batch(attempt, batch)) {
            Ok(request) => self.change_event(&machine, request).await,
            Err(why) => Event::NoLargerBatch { attempt, why },
        };
        self.take(run, event).await
    }

    /// Returns the smallest and the largest batch of any rank in the current attempt. For each rank its largest batch counts, because the
    /// last batch of an epoch may be smaller.
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
            let query = format!("{of}({of_ranks})");
            let samples = self.parts.evaluator.samples(&query, now_ms).await?;
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

    /// Builds the event. The attempt ends after an agreed step if the ranks report steps: then only what was not saved must be repeated.
    async fn change_event(&self, machine: &Machine, request: KnobRequest) -> Event {
        let step = match machine.cannot_wait() {
            None => self.step_ahead(machine).await.ok(),
            Some(_) => None,
        };
        Event::KnobsChanged {
            request,
            grace_ms: if step.is_some() {
                GRACE_MS
            } else {
                GRACE_AT_ONCE_MS
            },
            after: step.map(StopPoint::Step),
        }
    }
}

/// Returns true if an attempt has made enough steps that values reported with each step are available. The attempt of the change that was
/// kept always has.
fn has_steps(current: &Attempt, kept: AttemptNo) -> bool {
    let first = current.ranks().filter_map(|(_, rank)| rank.first_step).min();
    let made = current
        .last_step()
        .zip(first)
        .map_or(0, |(last, first)| last.saturating_sub(first));
    current.no == kept || made >= STEPS_MIN as u64
}

/// Lines for the event log: a change that begins or is taken over by the ranks, and a new verdict.
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

/// Lines for changes that ranks take over while they train.
fn news_in_place(of: &str, before: Option<&Attempt>, after: &Attempt, now_ms: TimestampMs) -> Vec<LogLine> {
    let mut lines = Vec::new();
    for is in &after.knobs.live {
        let was = before.and_then(|before| before.knobs.live.iter().find(|was| was.no == is.no));
        let words = is.change.words();
        if was.is_none() {
            let message = format!("{of}: {}, {words}, in place", is.change.cause());
            lines.push(line(Severity::Info, now_ms, message));
        }
        if is.state != was.map_or(InPlaceState::Asked, |was| was.state) {
            let severity = match is.state {
                InPlaceState::Refused => Severity::Warning,
                _ => Severity::Info,
            };
            lines.push(line(severity, now_ms, format!("{of}, {words}: {}", is.words())));
        }
        let judged = was.and_then(|was| was.change.verdict.as_ref());
        let verdicts = (judged, is.change.verdict.as_ref());
        lines.extend(judgement(of, &words, verdicts, now_ms));
    }
    lines
}

/// Returns a line if the verdict is new.
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
    LogLine::new(at_ms, severity, "knob", message)
}
