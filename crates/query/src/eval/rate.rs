//! Functions of a range that use differences: rates, slopes, changes.

use std::ops::Range;

use domain::series::ABSENT;

use super::numeric::Sum;
use super::range::{RangeSeries, Ranges, Window};

/// Number of values that are checked for resets together.
const RESET_BLOCK: usize = 64;

/// Options of `rate`, `increase` and `delta`.
#[derive(Clone, Copy)]
pub(super) struct Extrapolation {
    /// True if a decrease of the value is a reset to zero.
    pub(super) is_counter: bool,
    /// True if the result is divided by the range in seconds.
    pub(super) is_rate: bool,
}

impl Extrapolation {
    /// Returns the value of the function for each window of a series.
    pub(super) fn over(self, ranges: &Ranges, series: &RangeSeries) -> Vec<f64> {
        let values = series.values();
        // Resets of the counter, found once per series and not once per window.
        let resets = if self.is_counter {
            resets_in(values)
        } else {
            Vec::new()
        };
        let mut first = 0;
        let at_window = |(window, span): (Window, Range<usize>)| {
            while resets.get(first).is_some_and(|at| *at <= span.start) {
                first += 1;
            }
            let within = resets[first..].iter().take_while(|at| **at < span.end);
            self.of(&window, within.map(|at| values[at - 1]))
                .unwrap_or(ABSENT)
        };
        ranges.windows(series).map(at_window).collect()
    }

    /// Returns the difference between the first and last sample, extrapolated to the ends of the window as in Prometheus 3: to the end
    /// itself if it is within 1.1 sample intervals, otherwise by half an interval. A counter is never extrapolated to below zero. `lost`
    /// contains the values directly before the resets.
    fn of(self, window: &Window, lost: impl Iterator<Item = f64>) -> Option<f64> {
        let (values, times) = (window.values, window.times);
        let [first, .., last] = values else { return None };
        let (first_t, last_t) = (times[0], times[times.len() - 1]);
        let difference = lost.fold(last - first, |sum, value| sum + value);
        let seconds = |ms: i64| ms as f64 / 1_000.0;
        let sampled = seconds(last_t - first_t);
        let interval = sampled / (values.len() - 1) as f64;
        let threshold = interval * 1.1;
        let reach = |gap: f64| if gap >= threshold { interval / 2.0 } else { gap };
        let mut to_start = reach(seconds(first_t - (window.end_ms - window.range_ms)));
        if self.is_counter && difference > 0.0 && *first >= 0.0 {
            to_start = to_start.min(sampled * (first / difference));
        }
        let to_end = reach(seconds(window.end_ms - last_t));
        let mut factor = (sampled + to_start + to_end) / sampled;
        if self.is_rate {
            factor /= seconds(window.range_ms);
        }
        Some(difference * factor)
    }
}

/// Returns the indexes of values that are lower than the values before them.
fn resets_in(values: &[f64]) -> Vec<usize> {
    let mut resets = Vec::new();
    let (before, after) = (values, values.get(1..).unwrap_or_default());
    // A counter is rarely reset: many values are compared at once, and one by one only in a block with a reset.
    for (block, (after, before)) in after
        .chunks(RESET_BLOCK)
        .zip(before.chunks(RESET_BLOCK))
        .enumerate()
    {
        let falls = |(after, before): (&f64, &f64)| after < before;
        if after
            .iter()
            .zip(before)
            .fold(false, |any, pair| any | falls(pair))
        {
            let within = after
                .iter()
                .zip(before)
                .enumerate()
                .filter(|(_, pair)| falls(*pair));
            resets.extend(within.map(|(at, _)| block * RESET_BLOCK + at + 1));
        }
    }
    resets
}

/// `irate`: the rate between the last two samples.
pub(super) fn irate(window: &Window) -> Option<f64> {
    let [.., before, last] = window.values else {
        return None;
    };
    let [.., before_t, last_t] = window.times else {
        return None;
    };
    let difference = if last < before { *last } else { last - before };
    Some(difference / ((last_t - before_t) as f64 / 1_000.0))
}

/// `idelta`: the difference between the last two samples.
pub(super) fn idelta(window: &Window) -> Option<f64> {
    let [.., before, last] = window.values else {
        return None;
    };
    Some(last - before)
}

/// `changes`: how often the value changed. NaN equals NaN here.
pub(super) fn changes(window: &Window) -> Option<f64> {
    let changed = window
        .values
        .windows(2)
        .filter(|w| w[0] != w[1] && !(w[0].is_nan() && w[1].is_nan()));
    Some(changed.count() as f64)
}

/// `resets`: how often the value decreased.
pub(super) fn resets(window: &Window) -> Option<f64> {
    Some(window.values.windows(2).filter(|w| w[1] < w[0]).count() as f64)
}

/// `deriv`: the slope of the least-squares line per second.
pub(super) fn deriv(window: &Window) -> Option<f64> {
    (window.values.len() >= 2).then(|| line(window, window.times[0]).0)
}

/// `predict_linear`: the value of that line `seconds` after `now_ms`.
pub(super) fn predict_linear(window: &Window, now_ms: i64, seconds: f64) -> Option<f64> {
    (window.values.len() >= 2).then(|| {
        let (slope, intercept) = line(window, now_ms);
        slope * seconds + intercept
    })
}

/// Returns slope and intercept (at `origin_ms`) of the least-squares line.
fn line(window: &Window, origin_ms: i64) -> (f64, f64) {
    let first = window.values[0];
    if window.values.iter().all(|value| *value == first) {
        return if first.is_infinite() {
            (f64::NAN, f64::NAN)
        } else {
            (0.0, first)
        };
    }
    let count = window.values.len() as f64;
    let [mut x_sum, mut y_sum, mut xy_sum, mut xx_sum] = [Sum::default(); 4];
    for (time, y) in window.times.iter().zip(window.values) {
        let x = (time - origin_ms) as f64 / 1_000.0;
        x_sum.add(x);
        y_sum.add(*y);
        xy_sum.add(x * y);
        xx_sum.add(x * x);
    }
    let [x, y, xy, xx] = [x_sum, y_sum, xy_sum, xx_sum].map(|sum| sum.sum + sum.compensation);
    let covariance = xy - x * y / count;
    let variance = xx - x * x / count;
    let slope = covariance / variance;
    (slope, y / count - slope * x / count)
}

/// `double_exponential_smoothing` (Holt's linear method); `level` and `trend` are its two factors.
pub(super) fn double_exponential_smoothing(window: &Window, level: f64, trend: f64) -> Option<f64> {
    let [first, second, ..] = window.values else {
        return None;
    };
    let (mut smoothed_before, mut smoothed, mut slope) = (0.0, *first, second - first);
    for (at, value) in window.values.iter().enumerate().skip(1) {
        if at > 1 {
            slope = trend * (smoothed - smoothed_before) + (1.0 - trend) * slope;
        }
        let next = level * value + (1.0 - level) * (smoothed + slope);
        smoothed_before = smoothed;
        smoothed = next;
    }
    Some(smoothed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window<'a>(times: &'a [i64], values: &'a [f64]) -> Window<'a> {
        Window {
            times,
            values,
            end_ms: 60_000,
            range_ms: 60_000,
        }
    }

    fn increase(times: &[i64], values: &[f64]) -> Option<f64> {
        let increase = Extrapolation {
            is_counter: true,
            is_rate: false,
        };
        let lost = values
            .windows(2)
            .filter(|pair| pair[1] < pair[0])
            .map(|pair| pair[0]);
        increase.of(&window(times, values), lost)
    }

    #[test]
    fn increase_reaches_the_ends_of_its_window_but_not_below_zero() {
        let times = [15_000, 30_000, 45_000, 60_000];
        assert_eq!(increase(&times, &[100.0, 110.0, 120.0, 130.0]), Some(40.0));
        // By its slope this counter was 0 at 7.5 s, so it is extrapolated back to that time at most.
        assert_eq!(increase(&times, &[5.0, 15.0, 25.0, 35.0]), Some(35.0));
        assert_eq!(increase(&[60_000], &[5.0]), None);
    }

    #[test]
    fn a_reset_counts_from_zero() {
        let times = [15_000, 30_000, 45_000, 60_000];
        let increase = increase(&times, &[100.0, 110.0, 5.0, 15.0]);
        assert!((increase.unwrap_or(f64::NAN) - 25.0 / 45.0 * 60.0).abs() < 1e-9);
        assert_eq!(resets(&window(&times, &[100.0, 110.0, 5.0, 15.0])), Some(1.0));
    }

    #[test]
    fn resets_are_found_wherever_they_lie() {
        let mut values: Vec<f64> = (0..200).map(f64::from).collect();
        for at in [1, 63, 64, 65, 128, 199] {
            values[at] = -1.0 - values[at];
        }
        let one_by_one: Vec<usize> = (1..values.len())
            .filter(|at| values[*at] < values[at - 1])
            .collect();
        assert_eq!(resets_in(&values), one_by_one);
        assert!(one_by_one.len() >= 5 && resets_in(&[]).is_empty() && resets_in(&[1.0]).is_empty());
    }

    #[test]
    fn a_line_is_found_and_followed() {
        let window = window(&[0, 30_000, 60_000], &[0.0, 3.0, 6.0]);
        assert!((deriv(&window).unwrap_or(f64::NAN) - 0.1).abs() < 1e-12);
        assert!((predict_linear(&window, 60_000, 60.0).unwrap_or(f64::NAN) - 12.0).abs() < 1e-9);
    }
}
