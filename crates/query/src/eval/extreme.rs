//! `min_over_time` and `max_over_time` that read each sample once instead of once per window.
//!
//! ```text
//! window      3 1 4 1 [5 9 2 6] 5        candidates for the maximum: 9 6, the largest first
//! next        3 1 4 1 5 [9 2 6 5]                                    9 6 5
//! ```
//! A sample is a candidate until a better sample follows it: it leaves the window before that one, so it can no longer be the best.

use std::collections::VecDeque;

use domain::series::ABSENT;

use super::range::{RangeSeries, Ranges, Window};
use crate::function::Function;

type IsBetter = fn(f64, f64) -> bool;

/// Returns the function that says whether one value is better than another.
pub(super) fn comparison(function: Function) -> Option<IsBetter> {
    match function {
        Function::MinOverTime => Some(|new, best| new < best),
        Function::MaxOverTime => Some(|new, best| new > best),
        _ => None,
    }
}

/// Returns the best value of each window of a series. If the series contains NaN, calls `statistic` for each window instead.
pub(super) fn over(
    ranges: &Ranges,
    series: &RangeSeries,
    is_better: IsBetter,
    statistic: fn(&Window) -> f64,
) -> Vec<f64> {
    let values = series.values();
    if values.iter().any(|value| value.is_nan()) {
        let of = |window: Window| {
            if window.values.is_empty() {
                ABSENT
            } else {
                statistic(&window)
            }
        };
        return ranges.windows(series).map(|(window, _)| of(window)).collect();
    }
    let mut candidates: VecDeque<usize> = VecDeque::new();
    let mut next = 0;
    let best = |(_, span): (Window, std::ops::Range<usize>)| {
        next = next.max(span.start);
        while candidates.front().is_some_and(|at| *at < span.start) {
            candidates.pop_front();
        }
        for at in next..span.end {
            // Of equal values, the first is kept.
            while candidates
                .back()
                .is_some_and(|back| is_better(values[at], values[*back]))
            {
                candidates.pop_back();
            }
            candidates.push_back(at);
        }
        next = next.max(span.end);
        candidates.front().map_or(ABSENT, |at| values[*at])
    };
    ranges.windows(series).map(best).collect()
}
