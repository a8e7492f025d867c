//! Range vectors: the samples of each series, and the windows over them.

use std::ops::Range;
use std::sync::Arc;

use domain::series::{ABSENT, Labels, is_absent, is_stale};
use domain::time::TimestampMs;

use super::column::{Column, Columns};
use super::windows::{WindowCache, Windows, windows};
use super::{Evaluator, Result, without_name};
use crate::error::EvalError;
use crate::expr::{Expr, Selector, Subquery};
use crate::function::Function;
use crate::output::MatrixSeries;
use crate::plan::{Grid, SUBQUERY_STEPS_MAX};

/// A range vector at every step.
pub(super) struct Ranges {
    pub(super) series: Vec<RangeSeries>,
    /// Ends of the windows; only one if `@` fixes it for all steps.
    ends: Grid,
    range_ms: i64,
}

/// One series: its samples without missing values and staleness markers, and a window for each end.
pub(super) struct RangeSeries {
    pub(super) labels: Labels,
    pub(super) drop_name: bool,
    times: Arc<[TimestampMs]>,
    values: Arc<[f64]>,
    windows: Arc<Windows>,
}

/// The samples that a range function receives at one step.
pub(super) struct Window<'a> {
    pub(super) times: &'a [TimestampMs],
    pub(super) values: &'a [f64],
    /// End of the window, inclusive.
    pub(super) end_ms: TimestampMs,
    pub(super) range_ms: i64,
}

impl Evaluator<'_> {
    /// Evaluates a range selector or a sub-query at the steps of `grid`.
    pub(super) fn ranges(&self, expr: &Expr, grid: Grid, function: Option<Function>) -> Result<Ranges> {
        match expr {
            Expr::Window { selector, range_ms } => self.selected_ranges(selector, *range_ms, grid, function),
            Expr::Subquery(subquery) => self.subquery_ranges(subquery, grid),
            _ => Err(EvalError::execution("a range vector is expected here")),
        }
    }

    fn selected_ranges(
        &self,
        selector: &Selector,
        range_ms: i64,
        grid: Grid,
        function: Option<Function>,
    ) -> Result<Ranges> {
        let selection = self.bounds.range_selection(selector, grid, range_ms, function);
        let set = self.source.select(&selection, self.budget)?;
        let ends = self.bounds.shifted(grid, selector.shift);
        let mut cache = WindowCache::default();
        let mut all = Vec::with_capacity(set.series.len());
        for series in &set.series {
            self.budget.check_cancelled()?;
            let windows = cache.of(&series.times_ms, ends, range_ms);
            all.push(dense(
                &series.labels,
                false,
                &series.times_ms,
                &series.values,
                windows,
            ));
        }
        Ok(Ranges {
            series: all,
            ends,
            range_ms,
        })
    }

    fn subquery_ranges(&self, subquery: &Subquery, grid: Grid) -> Result<Ranges> {
        let ends = self.bounds.shifted(grid, subquery.shift);
        let range_ms = subquery.range_ms;
        let inner = self.bounds.subquery_grid(subquery, grid);
        if inner.count as i64 > SUBQUERY_STEPS_MAX {
            return Err(EvalError::execution(format!(
                "a sub-query has {} steps, more than the {SUBQUERY_STEPS_MAX} allowed; use a larger step",
                inner.count
            )));
        }
        if inner.count == 0 {
            return Ok(Ranges {
                series: Vec::new(),
                ends,
                range_ms,
            });
        }
        self.take_cells_from_budget(1, inner)?;
        let columns = match self.eval(&subquery.expr, inner)? {
            Columns::Vector(columns) => columns,
            _ => return Err(EvalError::execution("subquery is only allowed on vector")),
        };
        let times: Arc<[TimestampMs]> = inner.times().collect();
        let shared = Arc::new(windows(&times, ends, range_ms));
        let series = columns
            .into_iter()
            .map(|column| {
                let values: Arc<[f64]> = column.values.into();
                dense(
                    &column.labels,
                    column.drop_name,
                    &times,
                    &values,
                    Arc::clone(&shared),
                )
            })
            .collect();
        Ok(Ranges {
            series,
            ends,
            range_ms,
        })
    }

    /// Applies a function to each series. It returns one value for each end of a window.
    pub(super) fn over_series(
        &self,
        ranges: &Ranges,
        grid: Grid,
        keeps_name: bool,
        function: impl Fn(&RangeSeries) -> Result<Vec<f64>>,
    ) -> Result<Vec<Column>> {
        self.take_cells_from_budget(ranges.series.len(), grid)?;
        let mut columns = Vec::with_capacity(ranges.series.len());
        for series in &ranges.series {
            self.budget.check_cancelled()?;
            let mut values = function(series)?;
            if values.len() != grid.count {
                values = vec![values[0]; grid.count];
            }
            columns.push(Column {
                labels: series.labels.clone(),
                drop_name: series.drop_name || !keeps_name,
                values,
            });
        }
        columns.retain(|column| !column.is_empty());
        Ok(columns)
    }

    /// Applies a function to the window of every step. If it returns nothing, the value is [`ABSENT`].
    pub(super) fn over_windows(
        &self,
        ranges: Ranges,
        grid: Grid,
        keeps_name: bool,
        function: impl Fn(&Window, usize) -> Option<f64>,
    ) -> Result<Vec<Column>> {
        self.over_series(&ranges, grid, keeps_name, |series| {
            let mut values = Vec::with_capacity(grid.count);
            for step in 0..grid.count {
                self.budget.check_cancelled()?;
                let window = ranges.window(series, step);
                let value = if window.values.is_empty() {
                    None
                } else {
                    function(&window, step)
                };
                values.push(value.unwrap_or(ABSENT));
            }
            Ok(values)
        })
    }
}

impl RangeSeries {
    /// Returns all samples, including those in no window.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }
}

impl Ranges {
    fn window<'a>(&self, series: &'a RangeSeries, step: usize) -> Window<'a> {
        let at = if self.ends.count == 1 { 0 } else { step };
        let (low, high) = series.windows[at];
        let span = low as usize..high as usize;
        Window {
            times: &series.times[span.clone()],
            values: &series.values[span],
            end_ms: self.ends.time(at),
            range_ms: self.range_ms,
        }
    }

    /// Returns the windows of a series, one per end, with the indexes of their samples. Both bounds of the indexes never decrease.
    pub(super) fn windows<'a>(
        &'a self,
        series: &'a RangeSeries,
    ) -> impl ExactSizeIterator<Item = (Window<'a>, Range<usize>)> {
        (0..self.ends.count).map(|at| {
            let (low, high) = series.windows[at];
            (self.window(series, at), low as usize..high as usize)
        })
    }

    /// Returns true if a series has a sample in any window.
    pub(super) fn has_samples(&self, series: &RangeSeries) -> bool {
        series.windows.iter().any(|(low, high)| low < high)
    }

    /// Returns the raw samples of the first window: the result of an instant query for a range vector.
    pub(super) fn samples(&self) -> Vec<MatrixSeries> {
        let series = self.series.iter().filter(|series| self.has_samples(series));
        let mut matrix: Vec<MatrixSeries> = series
            .map(|series| {
                let window = self.window(series, 0);
                let labels = if series.drop_name {
                    without_name(&series.labels)
                } else {
                    series.labels.clone()
                };
                MatrixSeries {
                    labels,
                    times: window.times.to_vec(),
                    values: window.values.to_vec(),
                }
            })
            .collect();
        matrix.sort_by(|a, b| a.labels.cmp(&b.labels));
        matrix
    }
}

/// Returns the series without missing values. If it has none, it shares the time axis and windows of its neighbours; otherwise it gets its
/// own.
fn dense(
    labels: &Labels,
    drop_name: bool,
    times: &Arc<[TimestampMs]>,
    values: &Arc<[f64]>,
    windows: Arc<Windows>,
) -> RangeSeries {
    let labels = labels.clone();
    let is_hole = |value: f64| is_absent(value) || is_stale(value);
    // Both are NaNs, so many values can be checked at once.
    let may_have_holes = |some: &[f64]| some.iter().fold(false, |any, value| any | value.is_nan());
    let has_holes = |some: &[f64]| may_have_holes(some) && some.iter().any(|value| is_hole(*value));
    if !values.chunks(64).any(has_holes) {
        return RangeSeries {
            labels,
            drop_name,
            times: Arc::clone(times),
            values: Arc::clone(values),
            windows,
        };
    }
    // `kept[i]` is the number of samples before index `i`, which is the new index of `i`.
    let mut kept = Vec::with_capacity(values.len() + 1);
    let mut count = 0;
    for value in values.iter() {
        kept.push(count);
        count += u32::from(!is_hole(*value));
    }
    kept.push(count);
    let present = || {
        times
            .iter()
            .zip(values.iter())
            .filter(|(_, value)| !is_hole(**value))
    };
    RangeSeries {
        labels,
        drop_name,
        times: present().map(|(time, _)| *time).collect(),
        values: present().map(|(_, value)| *value).collect(),
        windows: Arc::new(
            windows
                .iter()
                .map(|(low, high)| (kept[*low as usize], kept[*high as usize]))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_staleness_markers_leave_a_range() {
        let times: Arc<[i64]> = [10, 20, 30, 40].into();
        let values: Arc<[f64]> = [1.0, ABSENT, domain::series::STALE, 4.0].into();
        let series = dense(
            &Labels::empty(),
            false,
            &times,
            &values,
            Arc::new(vec![(0, 2), (1, 3), (1, 4)]),
        );
        assert_eq!(
            (&*series.times, &*series.values),
            (&[10, 40][..], &[1.0, 4.0][..])
        );
        assert_eq!(*series.windows, [(0, 1), (1, 1), (1, 2)]);
    }
}
