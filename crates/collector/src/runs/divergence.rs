//! Divergences of the loss: recorded in the run when a rule finds one, and removed when the loss is good again. Meanwhile the run does not
//! resume from checkpoints that may contain diverged weights.

use std::sync::Arc;

use domain::event::{Event as LogLine, Severity};
use domain::ident::{Rank, RunId};
use domain::run::state::{Attempt, Divergence, Event, Machine};
use domain::time::TimestampMs;

use super::Runs;
use super::error::RunError;

/// How far back the usual loss is searched.
const WINDOW_MS: i64 = 30 * 60_000;
/// For this long the loss must be good before a divergence is over.
const RECOVERED_MS: i64 = 60_000;

impl Runs {
    /// Records that the loss of a run diverges, if its series show since when. `rank` is a rank whose loss is known to be bad; without it,
    /// or if its loss is good, rank 0 counts.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub(crate) async fn note_divergence(
        self: &Arc<Self>,
        run: &RunId,
        rank: Option<Rank>,
    ) -> Result<(), RunError> {
        let machine = self.machine(run).await?;
        if machine.watched {
            return Ok(());
        }
        let attempt = machine.current();
        for rank in rank.into_iter().chain([Rank(0)]) {
            let losses = self.losses(run, attempt, rank, WINDOW_MS).await;
            if let Some(divergence) = Divergence::find(rank, &losses) {
                let event = Event::LossDiverged {
                    attempt: attempt.no,
                    divergence: Some(divergence),
                };
                return self.take(run, event).await;
            }
        }
        Ok(())
    }

    /// Removes the divergences of active runs whose loss is good again.
    pub(super) async fn note_recoveries(self: &Arc<Self>) -> Result<(), RunError> {
        for machine in self.owners.unfinished() {
            let attempt = machine.current();
            let Some(divergence) = &attempt.progress.divergence else {
                continue;
            };
            let losses = self.losses(&machine.id, attempt, divergence.rank, RECOVERED_MS);
            if attempt.ended_ms.is_none() && divergence.is_over(&losses.await) {
                let event = Event::LossDiverged {
                    attempt: attempt.no,
                    divergence: None,
                };
                self.take(&machine.id, event).await?;
            }
        }
        Ok(())
    }
}

/// Lines for the event log: a loss that has begun to diverge, and one that is good again.
pub(super) fn news(before: &Machine, after: &Machine, now_ms: TimestampMs) -> Vec<LogLine> {
    let of_attempt = |attempt: &Attempt| {
        let known = before.attempts.iter().find(|known| known.no == attempt.no)?;
        let (was, is) = (&known.progress.divergence, &attempt.progress.divergence);
        if was == is {
            return None;
        }
        let (severity, message) = match is {
            Some(divergence) => {
                let step = divergence.last_good_step;
                let what = "checkpoints that it saved later are kept, and the run does not resume from them";
                (
                    Severity::Warning,
                    format!("the loss diverged after step {step}; {what}"),
                )
            }
            None => (Severity::Info, "the loss is good again".to_owned()),
        };
        let message = format!("attempt {} of run {}: {message}", attempt.no, after.id);
        Some(LogLine {
            run: Some(after.id.to_string()),
            ..LogLine::new(now_ms, severity, "divergence", message)
        })
    };
    after.attempts.iter().filter_map(of_attempt).collect()
}
