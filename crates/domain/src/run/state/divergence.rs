//! When the loss of an attempt began to diverge, from its series.
//!
//! ```text
//! loss │                    ╭── bad
//!      │                   ╱
//!      │ · ·· ·  · · ··· · ─ ─ good_below: the usual loss, half of it more, and its noise
//!      └──────────────────┴───── step
//!           last_good_step
//! ```
//! The loss of a step shows the weights before that step. So a good loss at step N says that the weights after step N - 1 are good, and a
//! checkpoint of a later step may contain diverged weights.

use serde::{Deserialize, Serialize};

use crate::ident::Rank;
use crate::time::TimestampMs;

/// Number of samples whose median is the usual loss. The window with the lowest median counts: a slow divergence does not raise it.
const WINDOW: usize = 9;
/// A loss is good up to this share above the usual loss, plus its noise.
const ABOVE_USUAL: f64 = 0.5;
/// The noise, in median deviations from the usual loss.
const DEVIATIONS: f64 = 4.0;
/// Number of samples in a row with a good loss after which a divergence is over.
pub const RECOVERED_SAMPLES: usize = 10;

/// The loss of a rank at one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossSample {
    /// When the step ended.
    pub at_ms: TimestampMs,
    /// The step.
    pub step: u64,
    /// The loss; may be NaN or infinite.
    pub loss: f64,
}

/// A divergence of the loss of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The rank whose loss shows it.
    pub rank: Rank,
    /// The last step after which the weights are known to be good.
    pub last_good_step: u64,
    /// When the loss was good for the last time.
    pub last_good_ms: TimestampMs,
    /// The first known step with a loss that is not good.
    pub bad_step: u64,
    /// A loss up to this value is good.
    pub good_below: f64,
    /// The highest loss so far. `None` if a loss is NaN or infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_loss: Option<f64>,
}

impl Divergence {
    /// Returns the divergence in the samples of a rank, which are in order. `None` if the last loss is good, or if there are too few samples
    /// to know the usual loss.
    #[must_use]
    pub fn find(rank: Rank, samples: &[LossSample]) -> Option<Self> {
        let finite: Vec<f64> = losses(samples).filter(|loss| loss.is_finite()).collect();
        let usual = finite.windows(WINDOW).map(UsualLoss::of);
        let usual = usual.min_by(|a, b| a.median.total_cmp(&b.median))?;
        let good_below = Some(usual.good_below()).filter(|limit| limit.is_finite())?;
        let last_good = samples.iter().rposition(|sample| sample.loss <= good_below)?;
        let (good, bad) = samples.split_at(last_good + 1);
        let (good, first_bad) = (good.last()?, bad.first()?);
        let worst = losses(bad).fold(f64::NEG_INFINITY, |worst, loss| match loss.is_finite() {
            true => loss.max(worst),
            false => f64::INFINITY,
        });
        Some(Self {
            rank,
            last_good_step: good.step.saturating_sub(1),
            last_good_ms: good.at_ms,
            bad_step: first_bad.step,
            good_below,
            worst_loss: Some(worst).filter(|worst| worst.is_finite()),
        })
    }

    /// Returns true if the loss is good again in all of these samples, which are the last ones of the rank.
    #[must_use]
    pub fn is_over(&self, samples: &[LossSample]) -> bool {
        let is_good = |sample: &LossSample| sample.step > self.bad_step && sample.loss <= self.good_below;
        samples.len() >= RECOVERED_SAMPLES && samples.iter().all(is_good)
    }
}

fn losses(samples: &[LossSample]) -> impl Iterator<Item = f64> {
    samples.iter().map(|sample| sample.loss)
}

struct UsualLoss {
    median: f64,
    deviation: f64,
}

impl UsualLoss {
    fn of(losses: &[f64]) -> Self {
        let median = middle(losses.to_vec());
        let distances = losses.iter().map(|loss| (loss - median).abs());
        Self {
            median,
            deviation: middle(distances.collect()),
        }
    }

    fn good_below(&self) -> f64 {
        self.median + ABOVE_USUAL * self.median.abs() + DEVIATIONS * self.deviation
    }
}

/// Returns the median of an odd number of values.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(losses: &[f64]) -> Vec<LossSample> {
        let sample = |(step, loss): (u64, &f64)| LossSample {
            at_ms: 1_000 * i64::try_from(step).expect("a small number"),
            step,
            loss: *loss,
        };
        (1..).zip(losses).map(sample).collect()
    }

    const FALLING: [f64; 12] = [9.0, 7.0, 5.0, 4.0, 3.0, 2.0, 1.2, 1.1, 0.9, 1.0, 1.1, 1.0];

    #[test]
    fn the_last_good_step_is_the_one_before_the_last_good_loss() {
        let calm = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.1, 0.9];
        for (rise, last_good_step, bad_step, worst) in [
            // The loss of step 10 is 1.2, so the weights after step 9 are good.
            (&[1.2, 2.9, 80.0][..], 9, 11, Some(80.0)),
            (&[80.0], 8, 10, Some(80.0)),
            (&[1.0, f64::NAN, 4.0], 9, 11, None),
            (&[1.0, f64::INFINITY], 9, 11, None),
            // It was good once more in between.
            (&[80.0, 1.0, 90.0], 10, 12, Some(90.0)),
        ] {
            let found =
                Divergence::find(Rank(3), &samples(&[&calm[..], rise].concat())).expect("a divergence");
            assert_eq!(
                (found.last_good_step, found.bad_step, found.worst_loss),
                (last_good_step, bad_step, worst),
                "{rise:?}"
            );
            assert_eq!(
                found.last_good_ms,
                1_000 * i64::try_from(last_good_step + 1).expect("small")
            );
            assert_eq!(found.rank, Rank(3));
        }
    }

    #[test]
    fn a_slow_divergence_begins_where_the_loss_leaves_its_lowest_level() {
        let rise = (0..60).map(|n| 1.05_f64.powi(n));
        let losses: Vec<f64> = FALLING.into_iter().chain(rise).collect();
        let found = Divergence::find(Rank(0), &samples(&losses)).expect("a divergence");
        let last_good = losses[usize::try_from(found.last_good_step).expect("small")];
        assert!((1.0..=found.good_below).contains(&last_good), "{found:?}");
        assert!(found.good_below < 3.0 && found.bad_step < 40, "{found:?}");
    }

    #[test]
    fn a_good_loss_and_too_few_samples_are_no_divergence() {
        assert_eq!(Divergence::find(Rank(0), &samples(&FALLING)), None);
        assert_eq!(Divergence::find(Rank(0), &samples(&[1.0, 1.0, 900.0])), None);
        assert_eq!(Divergence::find(Rank(0), &[]), None);
    }

    #[test]
    fn a_divergence_is_over_when_the_loss_stays_good() {
        let found = Divergence::find(Rank(0), &samples(&[&FALLING[..], &[90.0]].concat())).expect("one");
        let after = |losses: &[f64]| {
            let mut after = samples(losses);
            after.iter_mut().for_each(|sample| sample.step += found.bad_step);
            after
        };
        assert!(found.is_over(&after(&[1.0; 10])));
        assert!(!found.is_over(&after(&[1.0; 9])), "too few");
        assert!(!found.is_over(&samples(&FALLING)), "from before it");
        for bad in [90.0, f64::NAN] {
            assert!(!found.is_over(&after(&[&[1.0; 10][..], &[bad]].concat())));
        }
    }
}
