//! Decides how often to read, from the cost of reading. If the calls of a driver become slow, the agent must not keep the driver busy:
//! every call takes a lock that training needs too.
//!
//! ```text
//! period ──a round longer than the period, or LATE_ROUNDS in a row above the budget──▶ twice the period
//!        ◀──CALM_ROUNDS in a row that take less than an eighth of the budget── half the period
//! ```

use std::time::Duration;

/// The number of consecutive rounds above the budget before the period doubles. One may be chance.
const LATE_ROUNDS: u32 = 3;
/// The number of consecutive rounds well below the budget before the period halves.
const CALM_ROUNDS: u32 = 30;

/// The period of one kind of round, and the cost of recent rounds.
#[derive(Debug)]
pub(crate) struct ReadPeriod {
    shortest: Duration,
    /// The period is `shortest` times two to this power.
    doubled: u32,
    doubled_max: u32,
    /// The share of the period that a round may take.
    budget: f64,
    late: u32,
    calm: u32,
}

impl ReadPeriod {
    /// Starts with the shortest period.
    pub(crate) fn new(shortest: Duration, doubled_max: u32, budget: f64) -> Self {
        Self {
            shortest,
            doubled: 0,
            doubled_max,
            budget,
            late: 0,
            calm: 0,
        }
    }

    /// Returns the time from the start of one round to the start of the next.
    pub(crate) fn current(&self) -> Duration {
        self.shortest * 2_u32.pow(self.doubled)
    }

    /// Records the cost of a round. Returns true if the period changed.
    pub(crate) fn record(&mut self, cost: Duration) -> bool {
        let (period, before) = (self.current(), self.doubled);
        let allowed = period.mul_f64(self.budget);
        self.late = if cost > allowed { self.late + 1 } else { 0 };
        self.calm = if cost < allowed / 8 { self.calm + 1 } else { 0 };
        if cost > period || self.late >= LATE_ROUNDS {
            self.doubled = self.doubled_max.min(self.doubled + 1);
        } else if self.calm >= CALM_ROUNDS {
            self.doubled = self.doubled.saturating_sub(1);
        }
        if self.doubled != before {
            (self.late, self.calm) = (0, 0);
        }
        self.doubled != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_second() -> ReadPeriod {
        ReadPeriod::new(Duration::from_secs(1), 4, 0.25)
    }

    fn after(period: &mut ReadPeriod, rounds: u32, milliseconds: u64) -> Duration {
        (0..rounds).for_each(|_| {
            period.record(Duration::from_millis(milliseconds));
        });
        period.current()
    }

    #[test]
    fn one_late_round_is_chance_and_three_are_not() {
        let mut period = one_second();
        after(&mut period, 2, 300);
        assert_eq!(after(&mut period, 1, 10), Duration::from_secs(1));
        assert_eq!(after(&mut period, 3, 300), Duration::from_secs(2));
        // With a period of two seconds, the same cost is within the budget.
        assert_eq!(after(&mut period, 100, 300), Duration::from_secs(2));
    }

    #[test]
    fn a_round_longer_than_its_period_counts_at_once_and_there_is_an_end() {
        let mut period = one_second();
        assert_eq!(after(&mut period, 1, 1_100), Duration::from_secs(2));
        assert_eq!(after(&mut period, 99, 60_000), Duration::from_secs(16));
    }

    #[test]
    fn calm_rounds_shorten_the_period_again() {
        let mut period = one_second();
        after(&mut period, 1, 5_000);
        after(&mut period, 1, 5_000);
        assert_eq!(period.current(), Duration::from_secs(4));
        assert_eq!(after(&mut period, CALM_ROUNDS, 20), Duration::from_secs(2));
        assert_eq!(after(&mut period, CALM_ROUNDS, 20), Duration::from_secs(1));
        assert_eq!(after(&mut period, 500, 20), Duration::from_secs(1));
    }
}
