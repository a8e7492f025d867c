//! Decides which steps of a rank are pooled to one sample. Pools end at step numbers that are multiples of a power of two, about one per
//! second.
//!
//! ```text
//! steps      1 … 30 | 31 32 | 33 … 40 | 41 … 48 | 49 50 | 51 | 52 … 56     steps of 0.12 s: exponent 3; step 51 takes 4 s
//! pools      1 each |   2   |    8    |    8    |   2   |  1 |    5
//! ```
//! All ranks of a synchronous run see the same time per step, so they choose the same exponent without communication. If a rank chooses
//! another exponent for a while, its pools are half or twice as long: every end of a coarse pool is also the end of a finer one.

use std::collections::VecDeque;

/// Steps at the start that are not pooled: the first seconds of a run in full detail.
const BURST_STEPS: u64 = 30;
/// A step of at least this time is always a sample of its own.
const ALONE_S: f64 = 1.0;
/// Bounds for a pool's duration, by the usual step time. Outside them, another exponent is chosen, for a duration of 0.71 to 1.41 seconds.
/// The bounds are more than a factor of two apart, so that the next pool does not undo the choice.
const POOL_S: std::ops::RangeInclusive<f64> = 0.6..=1.7;
/// If a pool is open for longer than this, the usual step time is computed again: the steps have become slower.
const OPEN_MAX_S: f64 = 2.0;
/// Maximum exponent: 65,536 steps, more than any training makes in one second.
const EXPONENT_MAX: u32 = 16;
/// The usual step time is the median of this many steps, so that one long step changes nothing.
const RECENT: usize = 9;

/// Decides where the pools of one rank end.
#[derive(Debug, Default)]
pub(super) struct PoolSchedule {
    exponent: u32,
    first_step: Option<u64>,
    /// The last step of the previous pool.
    closed: Option<u64>,
    open: Option<Open>,
    recent: VecDeque<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    from: u64,
    last: u64,
    seconds: f64,
}

/// A closed pool, from its first to its last step, including steps whose records were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) steps: u64,
}

/// The pools that a step ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The pool of the steps before this one.
    pub(super) before: Option<Span>,
    /// The pool that includes this step.
    pub(super) after: Option<Span>,
}

impl PoolSchedule {
    /// Takes the next step of the rank.
    pub(super) fn take(&mut self, number: u64, step_s: Option<f64>) -> Cut {
        let first = *self.first_step.get_or_insert(number);
        let is_alone = step_s.is_some_and(|seconds| seconds >= ALONE_S);
        let is_cut =
            |open: Open| is_alone || number <= open.last || self.window(open.last) != self.window(number);
        let before = if self.open.is_some_and(is_cut) {
            self.close()
        } else {
            None
        };
        let from = self.open.map_or_else(|| self.opens_at(number), |open| open.from);
        let seconds = self.open.map_or(0.0, |open| open.seconds) + step_s.unwrap_or(0.0);
        self.open = Some(Open {
            from,
            last: number,
            seconds,
        });
        self.remember(step_s);
        let is_early = (first..first.saturating_add(BURST_STEPS)).contains(&number);
        if seconds >= OPEN_MAX_S && !is_alone {
            self.exponent = self.exponent.min(self.fitting());
        }
        let after = if is_early || is_alone || number.is_multiple_of(1 << self.exponent) {
            let span = self.close();
            self.exponent = if number + 1 < first.saturating_add(BURST_STEPS) {
                0
            } else {
                self.fitting()
            };
            span
        } else {
            None
        };
        Cut { before, after }
    }

    /// Closes the open pool: no more steps follow, or none for a while.
    pub(super) fn close(&mut self) -> Option<Span> {
        let open = self.open.take()?;
        self.closed = Some(open.last);
        let steps = open.last - open.from + 1;
        Some(Span { steps })
    }

    /// Returns which of the pools with ends at multiples of 2^exponent contains a step.
    fn window(&self, number: u64) -> u64 {
        number.saturating_sub(1) >> self.exponent
    }

    /// Returns the first step of a pool. It follows the previous pool, so that steps with lost records belong to one of the two.
    fn opens_at(&self, number: u64) -> u64 {
        match self.closed {
            Some(closed) if closed < number => {
                let start = (self.window(number) << self.exponent) + 1;
                start.max(closed + 1).min(number)
            }
            _ => number,
        }
    }

    fn remember(&mut self, step_s: Option<f64>) {
        let Some(seconds) = step_s.filter(|seconds| *seconds > 0.0) else {
            return;
        };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(seconds);
    }

    fn fitting(&self) -> u32 {
        let mut recent: Vec<f64> = self.recent.iter().copied().collect();
        recent.sort_by(f64::total_cmp);
        let Some(usual_s) = recent.get(recent.len() / 2) else {
            return self.exponent;
        };
        if POOL_S.contains(&(usual_s * f64::from(1_u32 << self.exponent))) {
            return self.exponent;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a small positive number"
        )]
        let exponent = (-usual_s.log2()).round().clamp(0.0, f64::from(EXPONENT_MAX)) as u32;
        exponent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pools of a rank whose steps take `step_s(number)`: `(last step, steps)`.
    fn pools(steps: std::ops::RangeInclusive<u64>, step_s: impl Fn(u64) -> f64) -> Vec<(u64, u64)> {
        let mut schedule = PoolSchedule::default();
        let (mut found, mut last) = (Vec::new(), 0);
        for number in steps {
            let cut = schedule.take(number, Some(step_s(number)));
            found.extend(cut.before.map(|span| (last, span.steps)));
            last = number;
            found.extend(cut.after.map(|span| (last, span.steps)));
        }
        found.extend(schedule.close().map(|span| (last, span.steps)));
        found
    }

    fn behind_the_burst(pools: &[(u64, u64)]) -> &[(u64, u64)] {
        &pools[30..]
    }

    #[test]
    fn the_first_steps_are_pools_of_their_own_then_pools_end_at_multiples_of_a_power_of_two() {
        let found = pools(1..=50, |_| 0.12);
        assert!(
            found[..30]
                .iter()
                .enumerate()
                .all(|(at, pool)| *pool == (at as u64 + 1, 1))
        );
        assert_eq!(behind_the_burst(&found), [(32, 2), (40, 8), (48, 8), (50, 2)]);
    }

    #[test]
    fn steps_of_a_second_are_seen_one_by_one_and_a_stall_stands_alone() {
        assert!(pools(1..=60, |_| 1.0).iter().all(|(_, steps)| *steps == 1));
        let found = pools(1..=56, |number| if number == 51 { 4.0 } else { 0.12 });
        assert_eq!(
            behind_the_burst(&found),
            [(32, 2), (40, 8), (48, 8), (50, 2), (51, 1), (56, 5)]
        );
    }

    #[test]
    fn steps_that_become_slower_or_faster_change_the_pools_within_seconds() {
        // From 10 ms to 0.9 s: pools of 128 steps would take two minutes.
        let slower = pools(1..=400, |number| if number <= 260 { 0.01 } else { 0.9 });
        let late: Vec<_> = slower.iter().filter(|(last, _)| *last > 260).collect();
        assert!(late[0].0 <= 266, "{late:?}");
        assert!(late[1..].iter().all(|(_, steps)| *steps == 1), "{late:?}");
        let faster = pools(1..=4_000, |number| if number <= 60 { 0.9 } else { 0.01 });
        assert_eq!(faster.last(), Some(&(4_000, 32)));
        assert_eq!(faster[faster.len() - 2], (3_968, 128));
    }

    #[test]
    fn lost_records_keep_the_ends_of_pools() {
        let mut schedule = PoolSchedule::default();
        let mut found = Vec::new();
        for number in (1..=64).filter(|number| !(38..=42).contains(number)) {
            let cut = schedule.take(number, Some(0.12));
            found.extend(cut.before.map(|span| ("before", number, span.steps)));
            found.extend(cut.after.map(|span| ("after", number, span.steps)));
        }
        assert_eq!(
            behind_the_burst_of(&found),
            [
                ("after", 32, 2),
                ("before", 43, 5),
                ("after", 48, 8),
                ("after", 56, 8),
                ("after", 64, 8)
            ]
        );
    }

    fn behind_the_burst_of<'a>(found: &'a [(&'static str, u64, u64)]) -> &'a [(&'static str, u64, u64)] {
        &found[30..]
    }

    /// Returns numbers from 0 to 1 that look random and are the same in every test run.
    fn noise(rank: u64, number: u64) -> f64 {
        let mixed = (rank * 1_000_003 + number)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        f64::from((mixed >> 40) as u32) / f64::from(1_u32 << 24)
    }

    #[test]
    fn the_pools_of_four_ranks_end_at_the_same_steps_though_each_measures_a_little_differently() {
        // At 75 ms, a pool of 8 steps is at the bound: the ranks' exponents may differ by one for a while.
        for usual_s in [0.004, 0.03, 0.075, 0.09, 0.4, 0.95] {
            let ranks: Vec<Vec<(u64, u64)>> = (0..4)
                .map(|rank| pools(1..=6_000, |number| usual_s * (0.97 + 0.06 * noise(rank, number))))
                .collect();
            let ends = |pools: &[(u64, u64)]| -> std::collections::BTreeSet<u64> {
                pools.iter().map(|(last, _)| *last).collect()
            };
            let coarsest = ranks
                .iter()
                .map(|pools| ends(pools))
                .min_by_key(|ends| ends.len());
            for (rank, pools) in ranks.iter().enumerate() {
                let ends = ends(pools);
                for end in coarsest.iter().flatten() {
                    assert!(
                        ends.contains(end),
                        "rank {rank} has no pool that ends at step {end} of {usual_s} s"
                    );
                }
                let covered: u64 = pools.iter().map(|(_, steps)| steps).sum();
                assert_eq!(covered, 6_000, "no step is in two pools, and none is in none");
                let shortest = behind_the_burst(pools).len() as f64;
                let seconds = usual_s * 5_970.0;
                assert!(
                    (0.5..=1.8).contains(&(seconds / shortest)),
                    "{}",
                    seconds / shortest
                );
            }
        }
    }
}
