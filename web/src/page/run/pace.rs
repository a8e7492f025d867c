//! The pace of an attempt and the time that it still needs, as pure functions.
//!
//! The pace is measured over the last half hour of the attempt, with its pauses for checkpoints and validation. There is no result unless the
//! attempt has trained for a while at a steady pace: no time is better than a wrong one.

use domain::time::TimestampMs;

/// The period that is measured. Longer ones follow a change of the pace too late.
pub(super) const RANGE_MS: i64 = 1_800_000;
/// Minimum time and minimum number of steps between the first and the last point.
const SPAN_MIN_MS: i64 = 120_000;
const STEPS_MIN: f64 = 20.0;
/// How long ago the last step may have ended; longer than any step of a measured attempt.
const IDLE_MAX_MS: i64 = 120_000;
/// How much slower one half of the points may be than the other.
const UNSTEADY: f64 = 1.5;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// The step that a run had finished at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StepAt {
    pub(super) at_ms: TimestampMs,
    pub(super) step: f64,
}

/// Returns the time per step in milliseconds of an attempt. `points` are in order of time.
pub(super) fn pace_ms(points: &[StepAt]) -> Option<f64> {
    let mut start = 0;
    // Torchrun may start the ranks of an attempt again. The pace begins with a step that is finished after that.
    for (n, pair) in points.windows(2).enumerate() {
        if pair[1].step < pair[0].step || pair[1].step <= points[start].step {
            start = n + 1;
        }
    }
    let measured = &points[start..];
    let (first, last) = (measured.first()?, measured.last()?);
    let middle = &measured[measured.len() / 2];
    let is_long_enough = last.at_ms - first.at_ms >= SPAN_MIN_MS && last.step - first.step >= STEPS_MIN;
    let ended = measured.iter().find(|point| point.step >= last.step)?;
    let is_active = last.at_ms - ended.at_ms <= IDLE_MAX_MS;
    // Infinite or NaN if no step was finished.
    let change = between(first, middle) / between(middle, last);
    let is_steady = (1.0 / UNSTEADY..=UNSTEADY).contains(&change);
    (is_long_enough && is_active && is_steady).then(|| between(first, last))
}

fn between(first: &StepAt, last: &StepAt) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "at most half an hour")]
    let duration_ms = (last.at_ms - first.at_ms) as f64;
    duration_ms / (last.step - first.step)
}

/// Returns the time for this number of steps in milliseconds, rounded to what the pace can tell.
pub(super) fn remaining_ms(steps: f64, pace_ms: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "rounded to minutes")]
    let exact_ms = (steps * pace_ms) as i64;
    let unit_ms = match exact_ms / HOUR_MS {
        ..2 => MINUTE_MS,
        2..10 => 10 * MINUTE_MS,
        10..48 => HOUR_MS,
        _ => 6 * HOUR_MS,
    };
    (exact_ms.saturating_add(unit_ms / 2) / unit_ms * unit_ms).max(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use domain::time::DisplayDuration;

    use super::*;

    /// One point per 10 s.
    fn points(steps: &[f64]) -> Vec<StepAt> {
        let times = (0..).map(|n| n * 10_000);
        times
            .zip(steps)
            .map(|(at_ms, step)| StepAt { at_ms, step: *step })
            .collect()
    }

    /// `count` points that begin at `first`, `per_point` steps apart.
    fn steps(count: u32, first: f64, per_point: f64) -> Vec<f64> {
        (0..count).map(|n| first + f64::from(n) * per_point).collect()
    }

    fn check(points: &[StepAt], expected: Option<f64>) {
        let found = pace_ms(points);
        let is_near = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-6,
            (found, expected) => found == expected,
        };
        assert!(is_near, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn a_steady_attempt_has_a_pace() {
        check(&points(&steps(20, 100.0, 5.0)), Some(2_000.0));
        // A pause of 20 s for a checkpoint counts.
        let mut paused = steps(20, 0.0, 5.0);
        for step in &mut paused[12..] {
            *step = (*step - 10.0).max(55.0);
        }
        check(&points(&paused), Some(190_000.0 / 85.0));
    }

    #[test]
    fn too_little_or_unsteady_progress_has_none() {
        check(&[], None);
        check(&points(&steps(1, 5.0, 1.0)), None);
        check(&points(&steps(12, 0.0, 5.0)), None); // 110 s
        check(&points(&steps(18, 0.0, 1.0)), None); // 17 steps
        check(&points(&steps(30, 7.0, 0.0)), None); // it hangs
        // It hangs since half of the time, and it has become three times as slow.
        let halves = |per_point| {
            let mut halves = steps(20, 0.0, 6.0);
            halves.extend(steps(20, 120.0, per_point));
            halves
        };
        check(&points(&halves(0.0)), None);
        check(&points(&halves(2.0)), None);
        let stopped = |count: usize| {
            let mut stopped = steps(100, 0.0, 5.0);
            stopped.extend(vec![495.0; count]);
            stopped
        };
        check(&points(&stopped(5)), Some(1_040_000.0 / 495.0));
        check(&points(&stopped(14)), None); // for 140 s
    }

    #[test]
    fn only_steps_after_the_last_start_of_the_ranks_count() {
        let mut both = steps(30, 0.0, 1.0);
        // The second start repeats steps, and is faster.
        both.extend(steps(20, 20.0, 5.0));
        check(&points(&both), Some(2_000.0));
        check(&points(&both[..40]), None);
        // The first step is measured for a while before the second one ends.
        let mut late = vec![50.0; 10];
        late.extend(steps(20, 55.0, 5.0));
        check(&points(&late), Some(2_000.0));
    }

    #[test]
    fn the_remaining_time_is_rounded() {
        for (steps, expected) in [
            (0.0, "1m"),
            (20.0, "1m"),
            (1_000.0, "33m"),
            (4_000.0, "2h10m"),
            (20_000.0, "11h"),
            (100_000.0, "2d6h"),
        ] {
            assert_eq!(
                DisplayDuration(remaining_ms(steps, 2_000.0)).to_string(),
                expected
            );
        }
    }
}
