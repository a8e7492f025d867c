//! The automatic trial of a doubled `micro_batch` after activation checkpointing was kept: with the freed memory, training may be faster.
//!
//! ```text
//!  activation_checkpointing, kept ──▶ micro_batch × 2, as a new attempt ──more samples per second──▶ kept
//!                                                 │ not more, or the attempt fails for any reason
//!                                                 └──▶ reverted automatically
//! ```
//! Only on request: the global batch doubles too, and with it what the model learns in one step.

use crate::ident::AttemptNo;
use crate::run::knob::{Change, ChangeId, Decision, KNOBS, Verdict, current, place};
use crate::run::state::change::{CannotChange, KnobRequest, refused};
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::{Cause, Outcome};

fn batch_size() -> &'static str {
    let knob = KNOBS.iter().find(|knob| knob.is_batch_size);
    knob.expect("one knob is the batch size").name
}

impl Machine {
    /// Returns true if a larger batch is tried when a change is kept.
    ///
    /// # Errors
    /// Returns an error if the trial is requested with a change that does not qualify for it.
    pub(super) fn tries_larger_batch(
        &self,
        change: &Change,
        asked: Option<bool>,
    ) -> Result<bool, CannotChange> {
        let suits = change.turns_on_memory_saver();
        match asked {
            Some(true) if !suits => Err(refused(
                "try_larger_batch",
                "a larger micro_batch is tried only after activation_checkpointing alone was turned on: apply the other knobs separately".into(),
            )),
            Some(asked) => Ok(asked),
            None => Ok(suits && self.spec.try_larger_batch.unwrap_or(false)),
        }
    }

    /// Returns the attempt whose change was kept and requests a larger batch that was not tried yet, and the current batch size if the
    /// run's own settings contain it.
    #[must_use]
    pub fn larger_batch_due(&self) -> Option<(AttemptNo, Option<u32>)> {
        let (id, change) = self.last_by_attempt()?;
        let kept = change
            .verdict
            .as_ref()
            .is_some_and(|verdict| verdict.decision == Decision::Kept);
        let tried = self.changes().any(|(_, made)| made.follows == Some(id.attempt));
        let due = change.try_larger_batch
            && change.no_larger_batch.is_none()
            && kept
            && !tried
            && self.pending.is_none()
            && self.trains()
            && self.cannot_change().is_none();
        let known = current(&self.spec, &self.current().knobs.values, batch_size())
            .and_then(|text| text.parse().ok());
        due.then_some((id.attempt, known))
    }

    /// Returns the request for a batch of twice as many samples.
    ///
    /// # Errors
    /// Returns a message if the batch size cannot be set.
    pub fn larger_batch(&self, attempt: AttemptNo, batch: u32) -> Result<KnobRequest, String> {
        place(&self.spec, batch_size())?;
        let mut changes = self.changes();
        let of_attempt = changes.find(|(id, _)| *id == ChangeId::of(attempt));
        let verdict = of_attempt.and_then(|(_, change)| change.verdict.as_ref());
        if verdict.is_none_or(|verdict| verdict.after.samples_per_second.is_none()) {
            return Err("no samples per second are known, and the verdict needs them".into());
        }
        let request = KnobRequest::set(batch_size(), batch.saturating_mul(2).to_string(), Some(attempt));
        match self.change_for(&request) {
            Ok(Some(_)) => Ok(request),
            Ok(None) => Err("it already has that value".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn no_larger_batch(&mut self, attempt: AttemptNo, why: &str) {
        if let Some(change) = self.change_mut(ChangeId::of(attempt)) {
            change.no_larger_batch.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Reverts a larger batch whose attempt failed, most likely because memory ran out: it would fail the same way again. If the cause lies
    /// outside the training, such as a lost node, the change is reverted too, but with an undecided verdict.
    pub(super) fn revert_failed_trial(&mut self, outcome: &Outcome) {
        let proved = |change: &Change| {
            let verdict = change.verdict.as_ref();
            verdict.is_some_and(|verdict| verdict.decision == Decision::Kept)
        };
        let tries = |change: &Change| change.follows.is_some() && !proved(change);
        let no = self.current().no;
        let over =
            self.desired != DesiredState::Run || matches!(outcome.cause, Cause::Succeeded | Cause::Stopped);
        if over || self.pending.is_some() || !self.current().knobs.change.as_deref().is_some_and(tries) {
            return;
        }
        let (decision, why) = if outcome.cause.says_nothing_of_training() {
            let why = "the attempt with the larger batch ended before it could be judged, for another reason";
            (
                Decision::Undecided,
                format!("{why} ({}): {}", outcome.cause, outcome.message),
            )
        } else {
            let why = format!("the attempt with the larger batch failed: {}", outcome.message);
            (Decision::Rejected, why)
        };
        if let Some(change) = self.change_mut(ChangeId::of(no)) {
            let verdict = change.verdict.get_or_insert_with(Verdict::default);
            verdict.decision = decision;
            verdict.summary.clone_from(&why);
        }
        let request = KnobRequest::revert(ChangeId::of(no), Some(why));
        if let Ok(Some(pending)) = self.change_for(&request) {
            self.pending = Some(Box::new(pending));
        }
    }
}
