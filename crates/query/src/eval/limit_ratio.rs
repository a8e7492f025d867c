//! `limit_ratio(0.1, v)`: selects a tenth of the series, the same ones at each step and in each query.

use std::hash::{DefaultHasher, Hash, Hasher};

use domain::series::{ABSENT, Labels};

use super::column::Column;
use super::{Evaluator, Result};
use crate::error::EvalError;
use crate::expr::{Aggregate, Expr};
use crate::format;
use crate::plan::Grid;

impl Evaluator<'_> {
    /// Grouping has no effect: whether a series is selected depends only on its labels.
    pub(super) fn limit_ratio(
        &self,
        aggregate: &Aggregate,
        param: Option<&Expr>,
        grid: Grid,
    ) -> Result<Vec<Column>> {
        let param = param.ok_or_else(|| EvalError::execution("limit_ratio needs a parameter"))?;
        let ratios = self
            .scalar(param, grid)?
            .into_iter()
            .map(|ratio| self.capped(ratio))
            .collect::<Result<Vec<_>>>()?;
        let mut columns = self.vector(&aggregate.expr, grid)?;
        for column in &mut columns {
            self.budget.check_cancelled()?;
            let place = place(&column.labels);
            column
                .present_with(&ratios)
                .filter(|(_, ratio)| !is_picked(place, **ratio))
                .for_each(|(value, _)| *value = ABSENT);
        }
        columns.retain(|column| !column.is_empty());
        Ok(columns)
    }

    fn capped(&self, ratio: f64) -> Result<f64> {
        if ratio.is_nan() {
            return Err(EvalError::execution("Ratio value is NaN"));
        }
        let capped = ratio.clamp(-1.0, 1.0);
        if capped != ratio {
            self.warn(format!(
                "ratio value should be between -1 and 1, got {}, capping to {}",
                format::float(ratio),
                format::float(capped)
            ));
        }
        Ok(capped)
    }
}

/// Maps the labels of a series to a number from 0 to 1 (exclusive).
fn place(labels: &Labels) -> f64 {
    let mut hasher = DefaultHasher::new();
    labels.hash(&mut hasher);
    // 53 bits fit in a float exactly, and the result is less than 1.
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A negative ratio selects what its complement does not select: `-0.9` selects all that `0.1` does not.
fn is_picked(place: f64, ratio: f64) -> bool {
    if ratio < 0.0 {
        place >= 1.0 + ratio
    } else {
        place < ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_and_its_complement_share_the_series() {
        let names = (0..2_000).map(|n| Labels::new([("__name__", "x".to_owned()), ("gpu", n.to_string())]));
        let places: Vec<f64> = names.map(|labels| place(&labels.expect("well formed"))).collect();
        let picked = |ratio: f64| places.iter().filter(|place| is_picked(**place, ratio)).count();
        assert_eq!((picked(0.0), picked(1.0), picked(-1.0)), (0, 2_000, 2_000));
        assert_eq!(picked(0.25) + picked(-0.75), 2_000);
        assert!((400..600).contains(&picked(0.25)), "{}", picked(0.25));
    }
}
