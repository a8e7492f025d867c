//! Sums and means of windows. Several windows are computed at once, because each addition of a compensated sum depends on the one before.

use std::ops::Range;

use domain::series::ABSENT;

use super::Result;
use super::numeric::Sum;
use super::range::{RangeSeries, Ranges, Window};
use crate::function::Function;

/// Number of windows that are summed at once.
const LANES: usize = 8;

/// Computes the result from a finite sum and the number of values.
type Finish = fn(Sum, f64) -> f64;

/// Returns how the result is computed from the sum; `None` if the function does not use a sum.
pub(super) fn finish(function: Function) -> Option<Finish> {
    match function {
        Function::SumOverTime => Some(|sum, _| sum.total()),
        // A sum that is finite at the end was finite at each step. Then the mean is the sum divided by the count.
        Function::AvgOverTime => Some(|sum, count| sum.sum / count + sum.compensation / count),
        _ => None,
    }
}

/// Returns the value of the function for each window, equal to that of `alone`. A window whose sum is not finite is computed by `alone`.
/// `check_cancelled` returns an error if the query was cancelled: windows may be long, and overlap.
pub(super) fn over(
    ranges: &Ranges,
    series: &RangeSeries,
    finish: Finish,
    alone: fn(&Window) -> f64,
    check_cancelled: impl Fn() -> Result<()>,
) -> Result<Vec<f64>> {
    let windows: Vec<_> = ranges.windows(series).collect();
    let mut out = Vec::with_capacity(windows.len());
    for some in windows.chunks(LANES) {
        check_cancelled()?;
        // The last chunk may have fewer windows. The other lanes are empty.
        let lane = |at| some.get(at).map_or(0..0, |(_, range)| Range::clone(range));
        let sums = sums(series.values(), std::array::from_fn(lane));
        let each = some.iter().zip(sums);
        out.extend(each.map(|((window, _), sum)| match window.values.len() {
            0 => ABSENT,
            count if (sum.sum + sum.compensation).is_finite() => finish(sum, count as f64),
            _ => alone(window),
        }));
    }
    Ok(out)
}

/// Returns compensated sums of several ranges of values. They are identical to the last bit to sums computed one after another, unless a
/// sum or compensation is not finite.
fn sums(values: &[f64], mut windows: [Range<usize>; LANES]) -> [Sum; LANES] {
    let (mut sum, mut compensation) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    // Starts with the first value and not with 0, because -0 is not 0.
    for (lane, window) in windows.iter_mut().enumerate() {
        if let Some(at) = window.next() {
            sum[lane] = values[at];
        }
    }
    let together = windows.iter().map(ExactSizeIterator::len).min().unwrap_or(0);
    let rows = windows
        .each_ref()
        .map(|window| &values[window.start..window.start + together]);
    for at in 0..together {
        let row = rows.map(|row| row[at]);
        for lane in 0..LANES {
            // Rounding error of the addition, by Knuth's method: the same result as the two cases of Neumaier's method, without a branch.
            let (before, value) = (sum[lane], row[lane]);
            let after = before + value;
            let added = after - before;
            compensation[lane] += (before - (after - added)) + (value - added);
            sum[lane] = after;
        }
    }
    std::array::from_fn(|lane| {
        let mut of_lane = Sum {
            sum: sum[lane],
            compensation: compensation[lane],
        };
        let rest = windows[lane].start + together..windows[lane].end;
        values[rest].iter().for_each(|value| of_lane.add(*value));
        of_lane
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one_by_one(values: &[f64]) -> Sum {
        let mut sum = Sum::new(values.first().copied().unwrap_or_default());
        values.iter().skip(1).for_each(|value| sum.add(*value));
        sum
    }

    proptest! {
        #[test]
        fn side_by_side_is_one_by_one(
            values in prop::collection::vec(
                prop_oneof![
                    -1e3..1e3_f64,
                    prop::num::f64::NORMAL,
                    Just(-0.0),
                    Just(1e16),
                    Just(-1e16),
                    Just(f64::INFINITY),
                    Just(f64::NAN),
                    Just(f64::MAX),
                    Just(-f64::MAX),
                ],
                1..60,
            ),
            places in prop::array::uniform8((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        ) {
            let windows = places.map(|(a, b)| {
                let (a, b) = (a.index(values.len() + 1), b.index(values.len() + 1));
                a.min(b)..a.max(b)
            });
            for (window, sum) in windows.clone().into_iter().zip(sums(&values, windows)) {
                let expected = one_by_one(&values[window]);
                prop_assert!(!sum.sum.is_finite() || expected.sum.is_finite());
                if (sum.sum + sum.compensation).is_finite() {
                    prop_assert_eq!(sum.sum.to_bits(), expected.sum.to_bits());
                    prop_assert_eq!(sum.compensation, expected.compensation);
                }
            }
        }
    }
}
