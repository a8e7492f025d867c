//! Other knobs for a run: whether they can be turned, when its attempt is told to end, and taking a change back by itself.

use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, RunId};
use domain::run::state::{CannotChange, Event, Machine, StopPoint, Wish};
use domain::time::TimestampMs;

use super::{RunError, Runs};
use crate::app::Shared;

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
        let (_, machine) = self.machine(run).await?;
        if machine.change_for(&wish)?.is_none() {
            return Ok(None);
        }
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
    pub(super) async fn take_back(&self, app: &Shared, run: &RunId) -> Result<(), RunError> {
        let (_, machine) = self.machine(run).await?;
        let Some((attempt, why)) = machine.to_take_back() else {
            return Ok(());
        };
        let wish = Wish::Revert {
            attempt: Some(attempt),
            reason: Some(why.clone()),
            from_start: false,
        };
        let event = self.change_event(&machine, wish).await;
        self.take(app, run, &event, None).await?;
        app.event(LogLine {
            run: Some(run.to_string()),
            ..line(
                Severity::Warning,
                app.now_ms(),
                format!("the change of attempt {attempt} of run {run} is taken back by itself: {why}"),
            )
        })
        .await;
        Ok(())
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

/// Lines for the event log: a change that begins, a verdict that is another.
pub(super) fn news(before: &Machine, after: &Machine, now_ms: TimestampMs) -> Vec<LogLine> {
    let mut lines = Vec::new();
    for made in &after.attempts {
        let Some(change) = &made.change else { continue };
        let known = before.attempts.iter().find(|known| known.no == made.no);
        let of_attempt = format!("attempt {} of run {}", made.no, after.id);
        if known.is_none() {
            let message = format!("{of_attempt}: {}, {}", change.cause(), change.words());
            lines.push(line(Severity::Info, now_ms, message));
        }
        let was = known.and_then(|known| known.change.as_ref()?.verdict.as_ref());
        let is = change.verdict.as_ref();
        if let Some(verdict) = is.filter(|is| was.is_none_or(|was| was.decision != is.decision)) {
            let message = format!(
                "{of_attempt}, {}: {}, {}",
                change.words(),
                verdict.decision.words(),
                verdict.summary
            );
            lines.push(line(Severity::Info, now_ms, message));
        }
    }
    for line in &mut lines {
        line.run = Some(after.id.to_string());
    }
    lines
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
