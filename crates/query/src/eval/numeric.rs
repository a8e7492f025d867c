//! Sums and means with small rounding errors, in the order of operations that Prometheus uses.

/// A compensated sum (Kahan's algorithm with Neumaier's improvement).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) sum: f64,
    pub(super) compensation: f64,
}

impl Sum {
    pub(super) fn new(first: f64) -> Self {
        Self {
            sum: first,
            compensation: 0.0,
        }
    }

    pub(super) fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        if sum.is_infinite() {
            self.compensation = 0.0;
        } else if self.sum.abs() >= value.abs() {
            self.compensation += (self.sum - sum) + value;
        } else {
            self.compensation += (value - sum) + self.sum;
        }
        self.sum = sum;
    }

    pub(super) fn total(self) -> f64 {
        if self.sum.is_infinite() {
            self.sum
        } else {
            self.sum + self.compensation
        }
    }
}

/// A mean: a sum and a count. Once the sum would overflow, an incremental mean.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mean {
    /// The sum, or the mean itself if `is_incremental` is true.
    state: Sum,
    count: f64,
    is_incremental: bool,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1.0;
        if self.count == 1.0 {
            self.state = Sum::new(value);
            return;
        }
        if !self.is_incremental {
            let mut next = self.state;
            next.add(value);
            if !next.sum.is_infinite() {
                self.state = next;
                return;
            }
            self.is_incremental = true;
            self.state.sum /= self.count - 1.0;
            self.state.compensation /= self.count - 1.0;
        }
        let share = (self.count - 1.0) / self.count;
        self.state = Sum {
            sum: self.state.sum * share,
            compensation: self.state.compensation * share,
        };
        self.state.add(value / self.count);
    }

    pub(super) fn value(self) -> f64 {
        if self.is_incremental {
            self.state.sum + self.state.compensation
        } else {
            self.state.sum / self.count + self.state.compensation / self.count
        }
    }
}

/// Population variance with Welford's method, compensated.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Variance {
    count: f64,
    mean: Sum,
    squares: Sum,
}

impl Variance {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1.0;
        let delta = value - (self.mean.sum + self.mean.compensation);
        self.mean.add(delta / self.count);
        self.squares
            .add(delta * (value - (self.mean.sum + self.mean.compensation)));
    }

    pub(super) fn value(self) -> f64 {
        (self.squares.sum + self.squares.compensation) / self.count
    }
}

/// Returns a quantile of the values, interpolated linearly between neighbours. Sorts the values. For `q` outside of `0..=1` the result is
/// infinite; for no values it is NaN.
pub(super) fn quantile(q: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() || q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    // NaNs first, as in Prometheus.
    values.sort_unstable_by(|a, b| match (a.is_nan(), b.is_nan()) {
        (false, false) => a.total_cmp(b),
        (a, b) => b.cmp(&a),
    });
    let last = values.len() - 1;
    let rank = q * last as f64;
    let lower = (rank.floor() as usize).min(last);
    let upper = (lower + 1).min(last);
    let weight = rank - rank.floor();
    values[lower] * (1.0 - weight) + values[upper] * weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compensated_sum_keeps_what_a_plain_one_loses() {
        let mut sum = Sum::default();
        [1.0, 1e100, 1.0, -1e100]
            .into_iter()
            .for_each(|value| sum.add(value));
        assert_eq!(sum.total(), 2.0);
    }

    #[test]
    fn a_mean_survives_overflow() {
        let mut mean = Mean::default();
        [f64::MAX, f64::MAX, f64::MAX]
            .into_iter()
            .for_each(|value| mean.add(value));
        assert!((mean.value() / f64::MAX - 1.0).abs() < 1e-12);
    }

    #[test]
    fn quantiles_are_linear_between_neighbours() {
        assert_eq!(quantile(0.5, &mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(quantile(1.0, &mut [4.0, 1.0]), 4.0);
        assert_eq!(quantile(1.1, &mut [4.0, 1.0]), f64::INFINITY);
        assert!(quantile(0.5, &mut []).is_nan());
    }
}
