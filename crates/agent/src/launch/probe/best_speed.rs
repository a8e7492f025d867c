//! The best speed of a rank in this attempt. Rules compare the current speed with it.
//!
//! ```text
//! samples per second of each step ─▶ median of each minute ─▶ the maximum of these medians
//! ```
//! A lasting fault must not become the usual value: a slow minute never replaces a faster one.

use domain::time::TimestampMs;

const MINUTE_MS: i64 = 60_000;
/// Minimum number of steps for the median of a minute. With long steps, the minute is extended.
const RATES_MIN: usize = 6;
/// Maximum number of rates that are kept per minute: enough for a median at any speed.
const RATES_MAX: usize = 1_024;

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
