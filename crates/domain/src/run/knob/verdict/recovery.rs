//! Decides whether a change has repaired what it was made for.
//!
//! ```text
//!  memory ran out after step N ──▶ recovered when a later step has finished; not recovered if memory runs out again
//!  the loss diverged           ──▶ recovered when the loss stays good for 10 samples after the step at which it diverged; not recovered
//!                                  if it is NaN, infinite or as high as before
//! ```
//! A change that does not repair it is not reverted automatically: the run would have the old problem again.

use super::{Decision, Verdict};
use crate::run::knob::performance::Trace;
use crate::run::knob::symptom::{Recovery, Symptom};
use crate::run::state::RECOVERED_SAMPLES;

impl Verdict {
    pub(super) fn decide_by_recovery(&mut self, symptom: &Symptom, after: &Trace) -> (Decision, String) {
        match symptom {
            Symptom::OutOfMemory { last_step } => self.decide_by_memory_left(*last_step, after),
            Symptom::Divergence {
                last_good_step,
                bad_step,
                good_below,
                worst_loss,
            } => {
                let limits = LossLimits {
                    last_good_step: *last_good_step,
                    bad_step: *bad_step,
                    good_below: *good_below,
                    worst_loss: *worst_loss,
                };
                self.decide_by_loss(&limits, after)
            }
        }
    }

    fn decide_by_memory_left(&mut self, last_step: u64, after: &Trace) -> (Decision, String) {
        let reached = after.samples.iter().map(|sample| sample.step).max();
        self.recovery = Some(Recovery::OutOfMemory {
            failed_after_step: last_step,
            reached_step: reached,
        });
        let before = format!("memory ran out after step {last_step}");
        let evidence = self.evidence();
        match reached.filter(|reached| *reached > last_step) {
            _ if after.out_of_memory => {
                let again = reached.unwrap_or(0);
                (
                    Decision::NotRecovered,
                    format!("{before}, and ran out again after step {again} with the change: {evidence}"),
                )
            }
            Some(reached) => (
                Decision::Recovered,
                format!("{before}; with the change, the run has finished step {reached}: {evidence}"),
            ),
            None if after.ended => (
                Decision::Undecided,
                format!("{before}; the attempts with the change ended before they passed that step"),
            ),
            None => (
                Decision::NotYet,
                format!("{before}; the run has not passed that step yet"),
            ),
        }
    }

    fn decide_by_loss(&mut self, limits: &LossLimits, after: &Trace) -> (Decision, String) {
        let losses = after.samples.iter();
        let losses: Vec<(u64, f64)> = losses
            .filter_map(|sample| Some((sample.step, sample.loss?)))
            .collect();
        let (step, loss) = losses.last().copied().unwrap_or((0, f64::NAN));
        self.recovery = Some(Recovery::Divergence {
            bad_step: limits.bad_step,
            worst_loss: limits.worst_loss,
            reached_step: after.samples.iter().map(|sample| sample.step).max(),
            loss: Some(loss).filter(|loss| loss.is_finite()),
        });
        let worst = limits.worst_loss;
        let worst = worst.map_or("NaN or infinite".to_owned(), |loss| format!("{loss:.4}"));
        let before = format!("loss {worst} before, diverged at step {}", limits.bad_step);
        if let Some((again, _)) = losses.iter().find(|loss| limits.has_diverged(**loss)) {
            let why = format!("{before}; with the change, it diverged again at step {again}");
            return (Decision::NotRecovered, why);
        }
        let good = losses.iter().rev().take_while(|loss| limits.is_good(**loss));
        let missing = RECOVERED_SAMPLES.saturating_sub(good.count());
        if missing == 0 {
            let evidence = self.evidence();
            let why = format!("{before}; with the change, the loss is {loss:.4} at step {step}: {evidence}");
            return (Decision::Recovered, why);
        }
        if after.ended {
            let why = "the attempts with the change ended before the loss was good for long enough";
            return (Decision::Undecided, format!("{before}; {why}"));
        }
        self.missing_steps = Some(missing);
        let limit = limits.good_below;
        let why =
            format!("{before}; the loss must stay below {limit:.4} after it for {missing} more samples");
        (Decision::NotYet, why)
    }
}

struct LossLimits {
    last_good_step: u64,
    bad_step: u64,
    good_below: f64,
    worst_loss: Option<f64>,
}

impl LossLimits {
    /// Losses of the steps before the divergence may be high, because the training may begin again far before it.
    fn has_diverged(&self, (step, loss): (u64, f64)) -> bool {
        let is_as_high = self.worst_loss.is_some_and(|worst| loss >= worst);
        !loss.is_finite() || (is_as_high && step > self.last_good_step)
    }

    /// Returns true if the loss of a step after the divergence is good.
    fn is_good(&self, (step, loss): (u64, f64)) -> bool {
        step > self.bad_step && loss <= self.good_below
    }
}
