//! How often to read, by what reading costs. A driver whose calls became slow must not be held busy by its observer: every
//! call takes a lock that training needs too.
//!
//! ```text
//! period ──a round longer than the period, or three in a row longer than BUDGET of it──▶ twice the period
//!        ◀──CALM rounds in a row that take less than an eighth of the budget at half the period ── half the period
//! ```

use std::time::Duration;

/// Rounds above the budget before the period doubles: one may be chance.
const LATE_ROUNDS: u32 = 3;
/// Rounds well below it before the period halves.
const CALM_ROUNDS: u32 = 30;

/// The period of one kind of round, and what is known of its cost.
#[derive(Debug)]
pub(crate) struct Pace {
    shortest: Duration,
    /// The period is the shortest times two to this power.
    doubled: u32,
    doubled_max: u32,
    /// The share of the period that a round may take.
    budget: f64,
    late: u32,
    calm: u32,
}

impl Pace {
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

    /// The time from one round's beginning to the next one's.
    pub(crate) fn period(&self) -> Duration {
        self.shortest * 2_u32.pow(self.doubled)
    }

    /// Learns what a round cost. Says whether the period has changed.
    pub(crate) fn took(&mut self, cost: Duration) -> bool {
        let (period, before) = (self.period(), self.doubled);
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

    fn pace() -> Pace {
        Pace::new(Duration::from_secs(1), 4, 0.25)
    }

    fn after(pace: &mut Pace, rounds: u32, milliseconds: u64) -> Duration {
        (0..rounds).for_each(|_| {
            pace.took(Duration::from_millis(milliseconds));
        });
        pace.period()
    }

    #[test]
    fn one_late_round_is_chance_and_three_are_not() {
        let mut pace = pace();
        after(&mut pace, 2, 300);
        assert_eq!(after(&mut pace, 1, 10), Duration::from_secs(1));
        assert_eq!(after(&mut pace, 3, 300), Duration::from_secs(2));
        // Of two seconds the same is affordable.
        assert_eq!(after(&mut pace, 100, 300), Duration::from_secs(2));
    }

    #[test]
    fn a_round_longer_than_its_period_counts_at_once_and_there_is_an_end() {
        let mut pace = pace();
        assert_eq!(after(&mut pace, 1, 1_100), Duration::from_secs(2));
        assert_eq!(after(&mut pace, 99, 60_000), Duration::from_secs(16));
    }

    #[test]
    fn calm_brings_the_pace_back() {
        let mut pace = pace();
        after(&mut pace, 1, 5_000);
        after(&mut pace, 1, 5_000);
        assert_eq!(pace.period(), Duration::from_secs(4));
        assert_eq!(after(&mut pace, CALM_ROUNDS, 20), Duration::from_secs(2));
        assert_eq!(after(&mut pace, CALM_ROUNDS, 20), Duration::from_secs(1));
        assert_eq!(after(&mut pace, 500, 20), Duration::from_secs(1));
    }
}
