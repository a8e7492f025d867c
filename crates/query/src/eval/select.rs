//! Instant selectors: at each step the last sample within the lookback.

use domain::series::{ABSENT, Series, is_absent, is_stale};
use domain::time::TimestampMs;

use super::column::Column;
use super::windows::{WindowCache, Windows};
use super::{Evaluator, Result};
use crate::expr::Selector;
use crate::plan::Grid;

impl Evaluator<'_> {
    /// Returns the values of a selector at each step.
    pub(super) fn instant(&self, selector: &Selector, grid: Grid) -> Result<Vec<Column>> {
        self.instant_by(selector, grid, |_, value| value)
    }

    /// Returns the times, in seconds, of the samples that a selector finds.
    pub(super) fn timestamps(&self, selector: &Selector, grid: Grid) -> Result<Vec<Column>> {
        let mut columns = self.instant_by(selector, grid, |time, _| time as f64 / 1_000.0)?;
        columns.iter_mut().for_each(|column| column.drop_name = true);
        Ok(columns)
    }

    fn instant_by(
        &self,
        selector: &Selector,
        grid: Grid,
        pick: impl Fn(TimestampMs, f64) -> f64,
    ) -> Result<Vec<Column>> {
        let selection = self.bounds.instant_selection(selector, grid);
        let set = self.source.select(&selection, self.budget)?;
        self.take_cells_from_budget(set.series.len(), grid)?;
        let looks = self.bounds.shifted(grid, selector.shift);
        let mut cache = WindowCache::default();
        let mut columns = Vec::with_capacity(set.series.len());
        for series in &set.series {
            self.budget.check_cancelled()?;
            let windows = cache.of(&series.times_ms, looks, self.bounds.lookback_ms);
            let mut values = last_values(series, &windows, &pick);
            if looks.count != grid.count {
                values = vec![values[0]; grid.count];
            }
            columns.push(Column {
                labels: series.labels.clone(),
                drop_name: false,
                values,
            });
        }
        columns.retain(|column| !column.is_empty());
        Ok(columns)
    }
}

fn last_values(series: &Series, windows: &Windows, pick: impl Fn(TimestampMs, f64) -> f64) -> Vec<f64> {
    let (times, values) = (&*series.times_ms, &*series.values);
    let last_present = |low: usize, high: usize| {
        let at = (low..high).rev().find(|at| !is_absent(values[*at]))?;
        (!is_stale(values[at])).then(|| pick(times[at], values[at]))
    };
    let last = |&(low, high): &(u32, u32)| {
        let (low, high) = (low as usize, high as usize);
        if low >= high {
            return ABSENT;
        }
        // [`ABSENT`] and staleness markers are NaNs, so for nearly all samples one comparison is enough.
        let value = values[high - 1];
        if value.is_nan() {
            last_present(low, high).unwrap_or(ABSENT)
        } else {
            pick(times[high - 1], value)
        }
    };
    windows.iter().map(last).collect()
}
