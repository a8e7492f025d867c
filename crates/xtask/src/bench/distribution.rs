//! The order statistics of a measurement.

/// Values in ascending order.
#[derive(Debug, Clone, Default)]
pub(super) struct Distribution(Vec<f64>);

impl Distribution {
    pub(super) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest value that is at least as large as a share `p` of all values (nearest rank). NaN if there are no values.
    pub(super) fn quantile(&self, p: f64) -> f64 {
        let rank = (p * self.0.len() as f64).ceil() as usize;
        let value = self.0.get(rank.max(1) - 1);
        value.copied().unwrap_or(f64::NAN)
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(super) fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let hundred = Distribution::new((1..=100).rev().map(f64::from).collect());
        let found = [0.0, 0.5, 0.95, 0.99, 1.0].map(|p| hundred.quantile(p));
        assert_eq!(found, [1.0, 50.0, 95.0, 99.0, 100.0]);
        let ten = Distribution::new((1..=10).map(f64::from).collect());
        assert_eq!((ten.median(), ten.quantile(0.95), ten.max()), (5.0, 10.0, 10.0));
        assert!(Distribution::default().quantile(0.5).is_nan());
    }
}
