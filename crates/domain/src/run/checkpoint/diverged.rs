//! Checkpoints that were saved after the loss had begun to diverge.
//!
//! They look complete, but a training that resumes from one continues with diverged weights. They stay where they are, and the next attempt
//! resumes from the one before them. When the loss of the attempt is good again, they count as before.

use crate::ident::AttemptNo;
use crate::run::checkpoint::Checkpoint;
use crate::run::state::{Divergence, Machine};
use crate::time::TimestampMs;

impl Machine {
    /// Stores a divergence of an attempt, or its end. Of several, the earliest counts.
    pub(in crate::run) fn loss_diverged(&mut self, attempt: AttemptNo, divergence: Option<&Divergence>) {
        let Some(attempt) = self.attempts.iter_mut().find(|known| known.no == attempt) else {
            return;
        };
        let known = &mut attempt.progress.divergence;
        let is_earlier = |new: &Divergence| {
            known
                .as_ref()
                .is_none_or(|known| new.last_good_step < known.last_good_step)
        };
        if divergence.is_none_or(is_earlier) {
            *known = divergence.cloned();
        }
        self.mark_diverged_checkpoints();
    }

    /// Marks each checkpoint that an attempt saved while its loss diverged, and no other.
    pub(super) fn mark_diverged_checkpoints(&mut self) {
        let began = self.attempts.iter().map(|attempt| attempt.started_ms);
        let ends: Vec<TimestampMs> = began.skip(1).chain([TimestampMs::MAX]).collect();
        let diverged: Vec<DivergedAttempt> = self
            .attempts
            .iter()
            .zip(ends)
            .filter_map(|(attempt, next_ms)| {
                let divergence = attempt.progress.divergence.as_ref()?;
                Some(DivergedAttempt {
                    from_ms: attempt.started_ms,
                    next_ms,
                    last_good_step: divergence.last_good_step,
                    last_good_ms: divergence.last_good_ms,
                })
            })
            .collect();
        for checkpoint in &mut self.checkpoints {
            let saving = diverged.iter().find(|attempt| attempt.has_saved(checkpoint));
            checkpoint.diverged_after = saving.map(|attempt| attempt.last_good_step);
        }
    }
}

struct DivergedAttempt {
    from_ms: TimestampMs,
    /// When the next attempt began.
    next_ms: TimestampMs,
    last_good_step: u64,
    last_good_ms: TimestampMs,
}

impl DivergedAttempt {
    /// Returns true if the attempt saved the checkpoint after its last good step. A checkpoint whose time is unknown may be any attempt's.
    fn has_saved(&self, checkpoint: &Checkpoint) -> bool {
        let saved_ms = checkpoint.finished_ms.or(checkpoint.changed_ms);
        let is_of_attempt = saved_ms.is_none_or(|saved| (self.from_ms..self.next_ms).contains(&saved));
        let is_later = match checkpoint.step {
            Some(step) => step > self.last_good_step,
            None => saved_ms.is_none_or(|saved| saved > self.last_good_ms),
        };
        is_of_attempt && is_later
    }
}
