//! Classic histograms: quantiles and fractions of cumulative buckets with the label `le`.

use std::collections::HashMap;

use domain::series::{ABSENT, Labels, is_absent};

use super::column::Column;
use super::{Evaluator, Result};
use crate::error::EvalError;
use crate::expr::Expr;
use crate::plan::Grid;

/// Name of the label that contains the upper bound of a bucket.
const BUCKET_LABEL: &str = "le";
/// Relative difference below which two counts are equal: the rounding error of adding floats.
const COUNT_TOLERANCE: f64 = 1e-12;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    upper: f64,
    /// Number of observations at or below `upper`.
    count: f64,
}

/// The series of one histogram: upper bounds with the columns of their counts.
struct Histogram {
    labels: Labels,
    name: String,
    buckets: Vec<(f64, usize)>,
}

impl Evaluator<'_> {
    pub(super) fn histogram_quantile(&self, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let [q, vector] = args else {
            return Err(EvalError::execution("histogram_quantile() needs two arguments"));
        };
        let quantiles = self.scalar(q, grid)?;
        self.warn_of_quantiles(&quantiles);
        let columns = self.vector(vector, grid)?;
        self.of_histograms(&columns, grid, |buckets, step, name| {
            if ensure_monotonic(buckets) {
                self.inform(format!(
                    "input to histogram_quantile needed to be fixed for monotonicity for metric name {name:?}"
                ));
            }
            quantile(quantiles[step], buckets)
        })
    }

    pub(super) fn histogram_fraction(&self, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let [low, high, vector] = args else {
            return Err(EvalError::execution("histogram_fraction() needs three arguments"));
        };
        let (low, high) = (self.scalar(low, grid)?, self.scalar(high, grid)?);
        let columns = self.vector(vector, grid)?;
        self.of_histograms(&columns, grid, |buckets, step, _| {
            fraction(low[step], high[step], buckets)
        })
    }

    /// Applies a function to the buckets of every histogram at every step. The buckets are sorted, those with equal bounds are added, and
    /// the last bound is infinity. Without that bucket the result is NaN.
    fn of_histograms(
        &self,
        columns: &[Column],
        grid: Grid,
        function: impl Fn(&mut [Bucket], usize, &str) -> f64,
    ) -> Result<Vec<Column>> {
        let mut results = Vec::new();
        for histogram in self.histograms(columns) {
            self.budget.check_cancelled()?;
            let mut buckets = Vec::with_capacity(histogram.buckets.len());
            let mut value_at = |step: usize| {
                buckets_at(&histogram, columns, step, &mut buckets);
                match buckets.last() {
                    None => ABSENT,
                    Some(last) if last.upper != f64::INFINITY => f64::NAN,
                    Some(_) => function(&mut buckets, step, &histogram.name),
                }
            };
            let values = (0..grid.count).map(&mut value_at).collect();
            results.push(Column {
                labels: histogram.labels,
                drop_name: true,
                values,
            });
        }
        Ok(results)
    }

    /// Groups series into histograms by all labels except `le`.
    fn histograms(&self, columns: &[Column]) -> Vec<Histogram> {
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut histograms: Vec<Histogram> = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            let bound = column.labels.get(BUCKET_LABEL).unwrap_or("");
            let Some(upper) = bucket_bound(bound) else {
                self.warn(format!(
                    "bucket label {BUCKET_LABEL:?} is missing or has a malformed value of {bound:?} for metric name {:?}",
                    column.labels.metric_name().unwrap_or("")
                ));
                continue;
            };
            let labels = column.labels.filtered(|name| name != BUCKET_LABEL);
            let place = *places.entry(labels.clone()).or_insert_with(|| {
                let name = column.labels.metric_name().unwrap_or("").to_owned();
                histograms.push(Histogram {
                    labels,
                    name,
                    buckets: Vec::new(),
                });
                histograms.len() - 1
            });
            histograms[place].buckets.push((upper, at));
        }
        histograms
            .iter_mut()
            .for_each(|histogram| histogram.buckets.sort_by(|a, b| a.0.total_cmp(&b.0)));
        histograms
    }
}

/// Parses the upper bound in the label of a bucket.
fn bucket_bound(text: &str) -> Option<f64> {
    text.parse().ok()
}

/// Collects the buckets that exist at a step. Buckets with the same bound are added.
fn buckets_at(histogram: &Histogram, columns: &[Column], step: usize, buckets: &mut Vec<Bucket>) {
    buckets.clear();
    for (upper, at) in &histogram.buckets {
        let count = columns[*at].values[step];
        match buckets.last_mut() {
            _ if is_absent(count) => {}
            Some(last) if last.upper == *upper => last.count += count,
            _ => buckets.push(Bucket { upper: *upper, count }),
        }
    }
}

/// Makes counts non-decreasing. Returns true if a count decreased by more than rounding (a scrape during an update).
fn ensure_monotonic(buckets: &mut [Bucket]) -> bool {
    let mut was_broken = false;
    let mut highest = buckets[0].count;
    for bucket in &mut buckets[1..] {
        if almost_equal(bucket.count, highest) {
            bucket.count = highest;
        } else if bucket.count < highest {
            bucket.count = highest;
            was_broken = true;
        } else {
            highest = bucket.count;
        }
    }
    was_broken
}

fn almost_equal(a: f64, b: f64) -> bool {
    let size = a.abs() + b.abs();
    a == b || (a - b).abs() < COUNT_TOLERANCE * size.min(f64::MAX)
}

/// Returns the value below which the share `q` of all observations lies, interpolated linearly within a bucket.
fn quantile(q: f64, buckets: &[Bucket]) -> f64 {
    if q.is_nan() || buckets.len() < 2 {
        return f64::NAN;
    }
    if !(0.0..=1.0).contains(&q) {
        return if q < 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let last = buckets.len() - 1;
    let observations = buckets[last].count;
    if observations == 0.0 || observations.is_nan() {
        return f64::NAN;
    }
    let rank = q * observations;
    let at = buckets[..last].partition_point(|bucket| bucket.count < rank);
    if at == last {
        return buckets[last - 1].upper;
    }
    if at == 0 && buckets[0].upper <= 0.0 {
        return buckets[0].upper;
    }
    let (start, below) = if at == 0 {
        (0.0, 0.0)
    } else {
        (buckets[at - 1].upper, buckets[at - 1].count)
    };
    start + (buckets[at].upper - start) * ((rank - below) / (buckets[at].count - below))
}

/// Returns the share of observations between two values, interpolated linearly within a bucket.
fn fraction(low: f64, high: f64, buckets: &[Bucket]) -> f64 {
    let observations = buckets[buckets.len() - 1].count;
    if observations == 0.0 || observations.is_nan() || low.is_nan() || high.is_nan() {
        return f64::NAN;
    }
    if low >= high {
        return 0.0;
    }
    (rank_of(high, buckets) - rank_of(low, buckets)) / observations
}

/// Returns the number of observations below a value.
fn rank_of(value: f64, buckets: &[Bucket]) -> f64 {
    let mut below = Bucket {
        upper: if buckets[0].upper > 0.0 {
            0.0
        } else {
            f64::NEG_INFINITY
        },
        count: 0.0,
    };
    for bucket in buckets {
        if below.upper >= value {
            return below.count;
        }
        if bucket.upper > value {
            // In a bucket with an infinite bound, all observations are assumed to be at that bound.
            let share = match (below.upper.is_infinite(), bucket.upper.is_infinite()) {
                (true, _) => 1.0,
                (false, true) => 0.0,
                (false, false) => (value - below.upper) / (bucket.upper - below.upper),
            };
            return below.count + (bucket.count - below.count) * share;
        }
        below = *bucket;
    }
    below.count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(pairs: &[(f64, f64)]) -> Vec<Bucket> {
        pairs
            .iter()
            .map(|(upper, count)| Bucket {
                upper: *upper,
                count: *count,
            })
            .collect()
    }

    #[test]
    fn quantiles_are_linear_within_a_bucket() {
        let buckets = buckets(&[(0.1, 10.0), (0.2, 30.0), (f64::INFINITY, 40.0)]);
        assert!((quantile(0.5, &buckets) - 0.15).abs() < 1e-12);
        assert_eq!(quantile(0.9, &buckets), 0.2);
        assert_eq!(quantile(-1.0, &buckets), f64::NEG_INFINITY);
        assert!((fraction(0.1, 0.2, &buckets) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn falling_counts_are_corrected_and_reported() {
        let mut broken = buckets(&[(0.1, 10.0), (0.2, 9.0), (f64::INFINITY, 12.0)]);
        assert!(ensure_monotonic(&mut broken));
        assert_eq!(broken[1].count, 10.0);
        let mut noisy = buckets(&[(0.1, 0.3), (0.2, 0.1 + 0.2), (f64::INFINITY, 12.0)]);
        assert!(!ensure_monotonic(&mut noisy));
    }
}
