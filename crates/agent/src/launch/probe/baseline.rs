//! The usual values of a rank in this attempt: the noise of its loss, and its best speed. Rules compare the current values with them.
//!
//! ```text
//! losses      |difference of two consecutive losses|, the last 256 ─▶ 90th percentile: the noise
//! speed       samples per second of each step ─▶ median of each minute ─▶ the maximum of these medians
//! ```
//! A lasting fault must not become the usual value. So a loss far above its noise does not add to the noise, and a slow minute never
//! replaces a faster one.

use std::collections::VecDeque;

use domain::time::TimestampMs;

/// Number of differences that are kept. With fewer than `DIFFERENCES_MIN`, there is no value.
const DIFFERENCES_MAX: usize = 256;
const DIFFERENCES_MIN: usize = 16;
/// If the loss does not return to near the first loss, the noise is at most this share of the first loss: a run that diverges in its first
/// steps has no other loss for comparison.
const FIRST_LOSS_SHARE_MAX: f64 = 0.08;
/// A loss is far above the first one if it exceeds this multiple of it. The loss of a small batch may be several times that of the next
/// one.
const FIRST_LOSS_MULTIPLE_MAX: f64 = 4.0;
/// The loss counts as returning to near the first one if one of this many losses does. The first batch may have a loss that is a fifth of
/// the usual loss by chance.
const NEAR_FIRST_ONE_IN: usize = 16;
/// Number of losses at the start that do not count for the check whether the loss returns.
const FIRST_LOSSES: usize = 8;
/// A difference greater than this multiple of the noise is an event, not noise.
const NOISE_MULTIPLE_MAX: f64 = 20.0;
const MINUTE_MS: i64 = 60_000;
/// Minimum number of steps for the median of a minute. With long steps, the minute is extended.
const RATES_MIN: usize = 6;
/// Maximum number of rates that are kept per minute: enough for a median at any speed.
const RATES_MAX: usize = 1_024;

/// How much a loss varies from step to step.
#[derive(Debug, Default)]
pub(super) struct LossNoise {
    first: Option<f64>,
    last: Option<f64>,
    differences: VecDeque<f64>,
    /// The same differences, in ascending order.
    sorted: Vec<f64>,
    count: usize,
    /// Whether each of the last losses was near the first one: at most `DIFFERENCES_MAX` entries, without the first losses.
    near_first: VecDeque<bool>,
}

impl LossNoise {
    /// Takes the loss of a step.
    pub(super) fn take(&mut self, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        let first = *self.first.get_or_insert(loss);
        if self.near_first.len() == DIFFERENCES_MAX {
            self.near_first.pop_front();
        }
        if self.count >= FIRST_LOSSES {
            self.near_first
                .push_back(loss.abs() <= FIRST_LOSS_MULTIPLE_MAX * first.abs());
        }
        self.count += 1;
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

    /// Returns the 90th percentile of the differences. If the loss does not return to near the first loss, the first loss limits it.
    pub(super) fn value(&self) -> Option<f64> {
        if self.sorted.len() < DIFFERENCES_MIN {
            return None;
        }
        let noise = self.sorted[self.sorted.len() * 9 / 10];
        let near = self.near_first.iter().filter(|near| **near).count();
        if NEAR_FIRST_ONE_IN * near >= self.near_first.len() {
            return Some(noise);
        }
        Some(noise.min(FIRST_LOSS_SHARE_MAX * self.first?.abs()))
    }
}

/// The fastest minute so far.
#[derive(Debug, Default)]
pub(super) struct BestSpeed {
    since_ms: Option<TimestampMs>,
    rates: Vec<f64>,
    best: Option<f64>,
}

impl BestSpeed {
    /// Takes the samples per second of a step.
    pub(super) fn take(&mut self, at_ms: TimestampMs, samples_per_second: f64) {
        if !samples_per_second.is_finite() {
            return;
        }
        let since_ms = *self.since_ms.get_or_insert(at_ms);
        if self.rates.len() < RATES_MAX {
            self.rates.push(samples_per_second);
        }
        if at_ms - since_ms < MINUTE_MS || self.rates.len() < RATES_MIN {
            return;
        }
        let middle = self.rates.len() / 2;
        let median = *self.rates.select_nth_unstable_by(middle, f64::total_cmp).1;
        self.best = Some(self.best.map_or(median, |best| best.max(median)));
        self.rates.clear();
        self.since_ms = Some(at_ms);
    }

    /// Returns the best speed; `None` during the first minute.
    pub(super) fn value(&self) -> Option<f64> {
        self.best
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

    #[test]
    fn a_run_that_explodes_at_once_is_not_merely_noisy() {
        let mut noise = LossNoise::default();
        noise.take(3.3);
        for step in 0..100 {
            noise.take(20.0 + 500.0 * f64::from(step % 2));
        }
        let value = noise.value().expect("enough losses");
        assert!((value - 0.264).abs() < 1e-9, "{value}");
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

    /// Like above, but the first batch has by chance a fifth of the usual loss.
    #[test]
    fn a_first_loss_that_is_small_by_chance_does_not_bound_the_noise() {
        let mut noise = LossNoise::default();
        noise.take(0.2);
        for _ in 0..100 {
            for loss in [1.0, 0.9, 2.1, 1.1, 0.9, 1.4, 0.6, 3.0, 0.13] {
                noise.take(loss);
            }
        }
        let (value, above_best) = (noise.value().expect("enough losses"), 3.0 - 0.13);
        assert!(above_best < 50.0 * value, "{value}");
    }

    #[test]
    fn uneven_batches_and_pauses_leave_the_best_minute_as_it_is() {
        let mut speed = BestSpeed::default();
        let mut at_ms = 0;
        let mut train = |seconds: i64, rate: fn(i64) -> f64| {
            for second in 0..seconds {
                at_ms += 1_000;
                speed.take(at_ms, rate(second));
            }
            speed.value()
        };
        assert_eq!(train(59, |_| 250.0), None);
        // 100 to 400 samples per second, in rotation.
        let best = train(180, |second| 100.0 + 100.0 * (second % 4) as f64).expect("a minute has passed");
        assert!((200.0..=300.0).contains(&best), "{best}");
        // Three times slower, for one hour.
        assert_eq!(train(3_600, |_| 80.0), Some(best));
    }
}
