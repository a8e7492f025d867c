//! `min_over_time` and `max_over_time`, each sample looked at once and not once a window.
//!
//! ```text
//! window      3 1 4 1 [5 9 2 6] 5        candidates for the largest: 9 6, the largest first
//! one on      3 1 4 1 5 [9 2 6 5]                                    9 6 5
//! ```
//! A sample is a candidate until a better one comes: it leaves before it could be the best.

use std::collections::VecDeque;

use domain::series::ABSENT;

use super::range::{RangeSeries, Ranges, Window};
use crate::function::Function;

type IsBetter = fn(f64, f64) -> bool;

/// What makes the one value better than the other.
pub(super) fn comparison(function: Function) -> Option<IsBetter> {
    match function {
        Function::MinOverTime => Some(|new, best| new < best),
        Function::MaxOverTime => Some(|new, best| new > best),
        _ => None,
    }
}

/// The best value of each window of a series; `statistic` says it of one window, and is asked where numbers are not in order.
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
            // Of equals the first stays.
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
