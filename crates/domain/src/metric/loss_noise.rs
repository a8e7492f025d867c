//! The noise of a rank's loss, with which rules compare a change of the loss.
//!
//! ```text
//! losses      |difference of two consecutive losses|, the last 256 ─▶ 90th percentile: the noise
//! ```
//! An explosion must not become noise: a difference far above the noise does not add to it.

use std::collections::VecDeque;

/// Number of differences that are kept. With fewer than `DIFFERENCES_MIN`, there is no value.
const DIFFERENCES_MAX: usize = 256;
const DIFFERENCES_MIN: usize = 16;
/// A run that diverges in its first steps has no other loss for comparison than its first one: its noise is at most this share of that.
const FIRST_LOSS_SHARE_MAX: f64 = 0.08;
/// Minimum first loss for a comparison with it. The loss of an untrained model is greater. A smaller one is a chance, or belongs to a run
/// that continues, or to an algorithm whose loss begins at zero.
const FIRST_LOSS_MIN: f64 = 0.1;
/// The last N losses are far from the first one if N times the least of them is at least this multiple of the first loss. If all losses had
/// an exponential distribution, with the first one as a small value by chance, this would be true for one run in 1,600.
const FAR_MULTIPLE: f64 = 1_600.0;
/// Minimum for N, so that one event does not suffice.
const FAR_MIN: usize = 4;
/// Maximum for N.
const FAR_MAX: usize = 256;
/// A difference greater than this multiple of the noise is an event, not noise.
const NOISE_MULTIPLE_MAX: f64 = 20.0;

/// How much a loss varies from step to step.
#[derive(Debug, Default)]
pub struct LossNoise {
    /// Whether the next loss is the first one of the attempt.
    is_at_start: bool,
    first: Option<f64>,
    last: Option<f64>,
    differences: VecDeque<f64>,
    /// The same differences, in ascending order.
    sorted: Vec<f64>,
    /// The absolute values of the last losses, if the first one is known.
    losses: VecDeque<f64>,
}

impl LossNoise {
    /// Creates the noise of a rank. `is_at_start`: the first loss that it takes is the first one of the attempt, not that of a moment at
    /// which an agent was restarted.
    pub fn new(is_at_start: bool) -> Self {
        Self {
            is_at_start,
            ..Self::default()
        }
    }

    /// Takes the loss of a step.
    pub fn take(&mut self, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        if std::mem::take(&mut self.is_at_start) && loss.abs() >= FIRST_LOSS_MIN {
            self.first = Some(loss.abs());
        } else if self.first.is_some() {
            if self.losses.len() == FAR_MAX {
                self.losses.pop_front();
            }
            self.losses.push_back(loss.abs());
        }
        let Some(last) = self.last.replace(loss) else {
            return;
        };
        let difference = (loss - last).abs();
        if self
            .value()
            .is_some_and(|noise| noise > 0.0 && difference > NOISE_MULTIPLE_MAX * noise)
        {
            return;
        }
        if self.differences.len() == DIFFERENCES_MAX
            && let Some(oldest) = self.differences.pop_front()
        {
            self.sorted.remove(self.place(oldest));
        }
        self.sorted.insert(self.place(difference), difference);
        self.differences.push_back(difference);
    }

    /// Returns the index of a difference among the sorted ones, or where to insert it.
    fn place(&self, difference: f64) -> usize {
        self.sorted.partition_point(|known| *known < difference)
    }

    /// Returns the 90th percentile of the differences. If the last losses are far from the first one, the first one limits it.
    pub fn value(&self) -> Option<f64> {
        let noise = (self.sorted.len() >= DIFFERENCES_MIN).then(|| self.sorted[self.sorted.len() * 9 / 10]);
        match self.first {
            Some(first) if self.is_far_from(first) => {
                let most = FIRST_LOSS_SHARE_MAX * first;
                Some(noise.map_or(most, |noise| noise.min(most)))
            }
            _ => noise,
        }
    }

    fn is_far_from(&self, first: f64) -> bool {
        let mut least = f64::INFINITY;
        self.losses.iter().rev().zip(1_u32..).any(|(loss, count)| {
            least = least.min(*loss);
            count as usize >= FAR_MIN && f64::from(count) * least >= FAR_MULTIPLE * first
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explosion_is_no_noise_and_does_not_become_usual() {
        let mut noise = LossNoise::default();
        for step in 0..100 {
            noise.take(3.0 - 0.01 * f64::from(step) + if step % 2 == 0 { 0.1 } else { 0.0 });
        }
        let before = noise.value().expect("enough losses");
        assert!((0.05..0.2).contains(&before), "{before}");
        for step in 0..200 {
            noise.take(50.0 + 40.0 * f64::from(step % 2));
        }
        assert_eq!(noise.value(), Some(before));
    }

    /// Losses of the recipe `ddp` with learning rates that are too high, in the first steps.
    #[test]
    fn a_run_that_explodes_at_once_is_not_merely_noisy() {
        let at_10 = [
            41.7, 298.5, 239.7, 549.9, 2_422.5, 2_589.9, 4_133.2, 3_471.1, 2_220.0,
        ];
        let at_1000 = [285_671.0, 3.58e6, 1.42e6, 2.36e7];
        for (before, losses) in [(1, &at_10[..]), (5, &at_10), (1, &at_1000)] {
            let mut noise = LossNoise::new(true);
            for step in 0..before {
                noise.take(3.96 - 0.1 * f64::from(step));
            }
            losses.iter().for_each(|loss| noise.take(*loss));
            let value = noise.value().expect("it is far from the first loss");
            assert!((value - 0.08 * 3.96).abs() < 1e-9, "{value}");
        }
    }

    /// Regression guard: an agent that was restarted had a small loss by chance as its first one, and the noise was a hundredth of the real
    /// one.
    #[test]
    fn a_small_loss_by_chance_does_not_bound_the_noise() {
        let usual = [
            1.251, 0.627, 0.492, 1.235, 0.734, 1.474, 2.108, 0.787, 1.392, 0.815,
        ];
        for (is_at_start, first) in [(false, 0.125), (true, 0.125), (true, 0.05)] {
            let mut noise = LossNoise::new(is_at_start);
            noise.take(first);
            let mut known = 0;
            for loss in usual.iter().cycle().take(300) {
                noise.take(*loss);
                if let Some(value) = noise.value() {
                    known += 1;
                    assert!(2.108 - 0.05 < 50.0 * value, "{value}");
                }
            }
            assert!(known > 280, "{known}");
        }
    }

    #[test]
    fn a_noise_is_known_after_some_steps_and_skips_what_is_not_finite() {
        let mut noise = LossNoise::default();
        for loss in [1.0, f64::NAN, 2.0] {
            noise.take(loss);
        }
        assert_eq!(noise.value(), None);
        for _ in 0..20 {
            noise.take(2.0);
        }
        assert_eq!(noise.value(), Some(0.0));
        // A loss that was constant may start to vary.
        for step in 0..100 {
            noise.take(2.0 + f64::from(step % 2));
        }
        assert_eq!(noise.value(), Some(1.0));
    }

    /// Batches of four samples with a mean loss of 1. The smallest of some hundred losses is a tenth of it, the largest six times it.
    #[test]
    fn losses_of_small_batches_are_noise() {
        let mut noise = LossNoise::default();
        for round in 0..100 {
            for loss in [1.0, 0.6, 2.1, 0.1, 0.9, 1.4, 0.4, 6.0, 0.7] {
                noise.take(loss + 0.001 * f64::from(round % 7));
            }
        }
        let (value, above_best) = (noise.value().expect("enough losses"), 6.0 - 0.1);
        assert!(above_best < 50.0 * value, "{value}");
    }
}
