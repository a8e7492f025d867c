//! A doubled `micro_batch`, tried by itself once activation checkpointing has proved itself: what memory it left free may train faster.
//!
//! ```text
//!  activation_checkpointing, kept ──▶ micro_batch × 2, as another attempt ──samples a second up──▶ kept
//!                                                 │ not up, or the attempt fails, whatever for
//!                                                 └──▶ taken back by itself
//! ```
//! Only where it is asked for: the global batch doubles with it, and with that what is learned in a step.

use std::collections::BTreeMap;

use crate::ident::AttemptNo;
use crate::run::knob::{Change, ChangeId, Decision, KNOBS, Verdict, current, place};
use crate::run::state::change::{CannotChange, Wish, refused};
use crate::run::state::machine::{Machine, Wished};
use crate::run::state::{Cause, Outcome};

fn batch_size() -> &'static str {
    let knob = KNOBS.iter().find(|knob| knob.is_batch_size);
    knob.expect("one knob is the batch size").name
}

impl Machine {
    /// Whether a larger batch is tried when a change is kept.
    ///
    /// # Errors
    /// When it is asked for with a change that cannot be kept by the rule.
    pub(super) fn tries_larger_batch(
        &self,
        change: &Change,
        asked: Option<bool>,
    ) -> Result<bool, CannotChange> {
        let suits = change.turns_on_memory_saver();
        match asked {
            Some(true) if !suits => Err(refused(
                "try_larger_batch",
                "a larger micro_batch is tried after activation_checkpointing alone, where it was off: apply the others by themselves".into(),
            )),
            Some(asked) => Ok(asked),
            None => Ok(suits && self.spec.try_larger_batch.unwrap_or(false)),
        }
    }

    /// The attempt whose change was kept and asks for a larger batch that nobody has tried; with the batch as far as the run itself
    /// says what it is.
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

    /// The wish for a batch of twice as many samples.
    ///
    /// # Errors
    /// In words, when it cannot be set.
    pub fn larger_batch(&self, attempt: AttemptNo, batch: u32) -> Result<Wish, String> {
        place(&self.spec, batch_size())?;
        let mut changes = self.changes();
        let of_attempt = changes.find(|(id, _)| *id == ChangeId::of(attempt));
        let verdict = of_attempt.and_then(|(_, change)| change.verdict.as_ref());
        if verdict.is_none_or(|verdict| verdict.after.samples_per_second.is_none()) {
            return Err("no samples a second are known, which it would be judged by".into());
        }
        let wish = Wish::Apply {
            set: BTreeMap::from([(batch_size().to_owned(), batch.saturating_mul(2).to_string())]),
            auto_revert: Some(true),
            from_start: false,
            restart: false,
            try_larger_batch: None,
            follows: Some(attempt),
        };
        match self.change_for(&wish) {
            Ok(Some(_)) => Ok(wish),
            Ok(None) => Err("it is set already".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn no_larger_batch(&mut self, attempt: AttemptNo, why: &str) {
        if let Some(change) = self.change_mut(ChangeId::of(attempt)) {
            change.no_larger_batch.get_or_insert_with(|| why.to_owned());
        }
    }

    /// An attempt that tried a larger batch has failed, most likely for want of memory: it would fail the same way again. Where a node
    /// was lost or the like it is taken back too, but that says nothing of the batch.
    pub(super) fn take_failed_trial_back(&mut self, outcome: &Outcome) {
        let proved = |change: &Change| {
            let verdict = change.verdict.as_ref();
            verdict.is_some_and(|verdict| verdict.decision == Decision::Kept)
        };
        let tries = |change: &Change| change.follows.is_some() && !proved(change);
        let no = self.current().no;
        let over = self.wished != Wished::Run || matches!(outcome.cause, Cause::Succeeded | Cause::Stopped);
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
        let wish = Wish::Revert {
            attempt: Some(no),
            live: None,
            reason: Some(why),
            from_start: false,
            restart: false,
        };
        if let Ok(Some(pending)) = self.change_for(&wish) {
            self.pending = Some(Box::new(pending));
        }
    }
}
