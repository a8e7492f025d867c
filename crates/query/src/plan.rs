//! Which times an expression reads: the steps of a query, and the selections that follow from them.
//!
//! Both [`crate::Query::selections`] and the evaluator compute times with this module, so they always agree.

use domain::series::Selection;
use domain::time::TimestampMs;

use crate::error::EvalError;
use crate::expr::{At, Expr, Selector, Shift, Subquery};
use crate::function::Function;

/// Default lookback of an instant selector, as in Prometheus.
pub const LOOKBACK_DEFAULT_MS: i64 = 300_000;
/// Maximum number of steps of a query, as in Prometheus: more than the columns of any screen.
pub const STEPS_MAX: i64 = 11_000;
/// Step of a sub-query that specifies none: Prometheus' default evaluation interval.
pub(crate) const SUBQUERY_STEP_DEFAULT_MS: i64 = 60_000;
/// Maximum number of steps of a sub-query: about 11 days in seconds; 8 MB per series.
pub(crate) const SUBQUERY_STEPS_MAX: i64 = 1_000_000;
/// Maximum nodes times steps of a light expression: a dozen nodes over the width of a screen.
const LIGHT_CELLS_MAX: usize = 1 << 13;
/// Maximum number of selectors of a light expression, and of range selectors among them. The samples of each selector are read separately.
const LIGHT_SELECTORS_MAX: usize = 4;
const LIGHT_WINDOWS_MAX: usize = 2;
/// Maximum number of windows of a light expression that contain the same sample.
const LIGHT_OVERLAP_MAX: i64 = 4;
/// Times beyond this (about 100,000 years) are rejected, so that sums of times and durations cannot overflow.
const TIME_MS_MAX: i64 = i64::MAX / 2_048;

/// Times at which a query is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// First step.
    pub start_ms: TimestampMs,
    /// No step is later than this.
    pub end_ms: TimestampMs,
    /// Time between steps; 0 for an instant query, where start equals end.
    pub step_ms: i64,
    /// Lookback of an instant selector.
    pub lookback_ms: i64,
}

impl Params {
    /// Returns the parameters for one time, with the default lookback.
    #[must_use]
    pub fn instant(time_ms: TimestampMs) -> Self {
        Self {
            start_ms: time_ms,
            end_ms: time_ms,
            step_ms: 0,
            lookback_ms: LOOKBACK_DEFAULT_MS,
        }
    }

    /// Returns the parameters for every `step_ms` from start to end, with the default lookback.
    #[must_use]
    pub fn range(start_ms: TimestampMs, end_ms: TimestampMs, step_ms: i64) -> Self {
        Self {
            start_ms,
            end_ms,
            step_ms,
            lookback_ms: LOOKBACK_DEFAULT_MS,
        }
    }

    /// Returns true if there is only one time.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        self.step_ms == 0
    }

    /// # Errors
    /// Returns an error if the times, the step or the lookback are not valid, or there are too many steps.
    pub(crate) fn check(&self) -> Result<(), EvalError> {
        let refuse = |message: &str| Err(EvalError::Params(message.to_owned()));
        let (start, end) = (self.start_ms, self.end_ms);
        if [start, end, self.step_ms, self.lookback_ms]
            .iter()
            .any(|time| time.unsigned_abs() > TIME_MS_MAX as u64)
        {
            return refuse("a time or duration of the query is out of range");
        }
        if end < start {
            return refuse("end timestamp must not be before start time");
        }
        if self.lookback_ms <= 0 || self.step_ms < 0 || (self.step_ms == 0 && start != end) {
            return refuse(
                "zero or negative query resolution step widths are not accepted. Try a positive integer",
            );
        }
        if self.step_ms > 0 && (end - start) / self.step_ms > STEPS_MAX {
            return refuse(
                "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)",
            );
        }
        Ok(())
    }

    pub(crate) fn grid(&self) -> Grid {
        let count = if self.step_ms == 0 {
            1
        } else {
            (self.end_ms - self.start_ms) / self.step_ms + 1
        };
        Grid {
            start_ms: self.start_ms,
            step_ms: self.step_ms,
            count: count as usize,
        }
    }
}

/// The steps at which an expression is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) start_ms: TimestampMs,
    pub(crate) step_ms: i64,
    pub(crate) count: usize,
}

impl Grid {
    pub(crate) fn time(&self, step: usize) -> TimestampMs {
        self.start_ms + self.step_ms * step as i64
    }

    pub(crate) fn last(&self) -> TimestampMs {
        self.time(self.count.saturating_sub(1))
    }

    pub(crate) fn times(self) -> impl ExactSizeIterator<Item = TimestampMs> {
        (0..self.count).map(move |step| self.time(step))
    }
}

/// First and last time of the whole query, for `start()` and `end()`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) start_ms: TimestampMs,
    pub(crate) end_ms: TimestampMs,
    pub(crate) step_ms: i64,
    pub(crate) lookback_ms: i64,
}

impl Bounds {
    pub(crate) fn of(params: &Params) -> Self {
        Self {
            start_ms: params.start_ms,
            end_ms: params.end_ms,
            step_ms: params.step_ms,
            lookback_ms: params.lookback_ms,
        }
    }

    /// Returns the times that a selector with `shift` reads if the expression is evaluated at the steps of `grid`. With `@` it is the same
    /// time for all steps.
    pub(crate) fn shifted(&self, grid: Grid, shift: Shift) -> Grid {
        let fixed = shift.at.map(|at| match at {
            At::Start => self.start_ms,
            At::End => self.end_ms,
            At::Time(time) => time,
        });
        match fixed {
            Some(time) => Grid {
                start_ms: time - shift.offset_ms,
                step_ms: grid.step_ms,
                count: 1,
            },
            None => Grid {
                start_ms: grid.start_ms - shift.offset_ms,
                ..grid
            },
        }
    }

    /// Returns what an instant selector reads at the shifted steps.
    pub(crate) fn instant_selection(&self, selector: &Selector, grid: Grid) -> Selection {
        let looks = self.shifted(grid, selector.shift);
        Selection {
            latest: looks.count == 1,
            ..selection(selector, looks, self.lookback_ms, None)
        }
    }

    /// Returns what a range selector reads at the shifted steps, and for which function.
    pub(crate) fn range_selection(
        &self,
        selector: &Selector,
        grid: Grid,
        range_ms: i64,
        function: Option<Function>,
    ) -> Selection {
        selection(selector, self.shifted(grid, selector.shift), range_ms, function)
    }

    /// Returns the steps at which the expression inside a sub-query is evaluated: multiples of its own step, within `(first - range,
    /// last]`. The number is not limited here; the evaluator rejects more than [`SUBQUERY_STEPS_MAX`].
    pub(crate) fn subquery_grid(&self, subquery: &Subquery, grid: Grid) -> Grid {
        let outer = self.shifted(grid, subquery.shift);
        let step_ms = subquery.step_ms.unwrap_or(SUBQUERY_STEP_DEFAULT_MS);
        let open = outer.start_ms - subquery.range_ms;
        let start_ms = (open.div_euclid(step_ms) + 1) * step_ms;
        let count = if outer.last() < start_ms {
            0
        } else {
            (outer.last() - start_ms) / step_ms + 1
        };
        Grid {
            start_ms,
            step_ms,
            count: count as usize,
        }
    }
}

fn selection(selector: &Selector, grid: Grid, width_ms: i64, function: Option<Function>) -> Selection {
    Selection {
        matchers: selector.matchers.clone(),
        // Windows do not include their start.
        start_ms: grid.start_ms - width_ms + 1,
        end_ms: grid.last(),
        step_ms: grid.step_ms,
        function: function.map(|function| function.name().to_owned()),
        latest: false,
    }
}

/// Returns every selection of the expression, each once. Returns none for parameters that [`Params::check`] rejects.
pub(crate) fn selections(expr: &Expr, params: &Params) -> Vec<Selection> {
    let mut found = Vec::new();
    if params.check().is_ok() {
        collect(expr, &Bounds::of(params), params.grid(), None, &mut found);
    }
    found
}

fn collect(expr: &Expr, bounds: &Bounds, grid: Grid, function: Option<Function>, found: &mut Vec<Selection>) {
    match expr {
        Expr::Number(_) | Expr::Text(_) => {}
        Expr::Select(selector) => add(found, bounds.instant_selection(selector, grid)),
        Expr::Window { selector, range_ms } => {
            add(found, bounds.range_selection(selector, grid, *range_ms, function));
        }
        Expr::Subquery(subquery) => {
            let inner = bounds.subquery_grid(subquery, grid);
            if inner.count > 0 && inner.count as i64 <= SUBQUERY_STEPS_MAX {
                collect(&subquery.expr, bounds, inner, None, found);
            }
        }
        Expr::Call { function, args } => {
            args.iter()
                .for_each(|arg| collect(arg, bounds, grid, Some(*function), found));
        }
        Expr::Aggregate(aggregate) => {
            aggregate
                .param
                .iter()
                .for_each(|param| collect(param, bounds, grid, None, found));
            collect(&aggregate.expr, bounds, grid, None, found);
        }
        Expr::Binary(binary) => {
            collect(&binary.lhs, bounds, grid, None, found);
            collect(&binary.rhs, bounds, grid, None, found);
        }
        Expr::Negate(inner) => collect(inner, bounds, grid, None, found),
    }
}

/// Returns true if evaluating the expression takes no longer than reading the selected samples, provided they are few.
pub(crate) fn is_light(expr: &Expr, params: &Params) -> bool {
    if params.check().is_err() {
        return false;
    }
    let mut weight = Weight::default();
    let is_known = weigh(expr, params.step_ms, &mut weight);
    is_known
        && weight.nodes.saturating_mul(params.grid().count) <= LIGHT_CELLS_MAX
        && weight.selectors <= LIGHT_SELECTORS_MAX
        && weight.windows <= LIGHT_WINDOWS_MAX
}

/// Number of parts of an expression.
#[derive(Default)]
struct Weight {
    nodes: usize,
    selectors: usize,
    windows: usize,
}

/// Counts the parts of an expression. Returns false if its cost cannot be derived from the parts.
fn weigh(expr: &Expr, step_ms: i64, weight: &mut Weight) -> bool {
    weight.nodes += 1;
    match expr {
        Expr::Number(_) => true,
        Expr::Select(_) => {
            weight.selectors += 1;
            true
        }
        Expr::Window { range_ms, .. } => {
            weight.selectors += 1;
            weight.windows += 1;
            step_ms == 0 || *range_ms <= step_ms.saturating_mul(LIGHT_OVERLAP_MAX)
        }
        // A sub-query has its own steps, and a text may be a regular expression.
        Expr::Subquery(_) | Expr::Text(_) => false,
        Expr::Call { function, args } => {
            !function.sorts_samples() && args.iter().all(|arg| weigh(arg, step_ms, weight))
        }
        Expr::Aggregate(aggregate) => {
            let mut parts = aggregate.param.iter().chain([&aggregate.expr]);
            parts.all(|part| weigh(part, step_ms, weight))
        }
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs]
            .into_iter()
            .all(|side| weigh(side, step_ms, weight)),
        Expr::Negate(inner) => weigh(inner, step_ms, weight),
    }
}

fn add(found: &mut Vec<Selection>, selection: Selection) {
    if !found.contains(&selection) {
        found.push(selection);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    /// `(start, end, step, function)` of each selection, in seconds.
    fn spans(query: &str, params: &Params) -> Vec<(i64, i64, i64, Option<String>)> {
        let selections = crate::parse(query).unwrap().selections(params);
        selections
            .into_iter()
            .map(|s| (s.start_ms, s.end_ms, s.step_ms, s.function))
            .collect()
    }

    #[test]
    fn light_is_what_looks_at_each_sample_a_few_times() {
        let steps = |step_ms| Params::range(0, 720_000, step_ms);
        for (text, params, light) in [
            ("x", steps(1_000), true),
            ("1", Params::instant(0), true),
            ("-sum by (a) (rate(x[4s])) / on (a) y > 3", steps(1_000), true),
            ("rate(x[5s])", steps(1_000), false),
            ("rate(x[30d])", Params::instant(0), true),
            ("topk(2, x)", steps(1_000), true),
            ("quantile_over_time(0.5, x[4s])", steps(1_000), false),
            ("max_over_time(x[1h:1m])", Params::instant(0), false),
            (r#"label_replace(x, "a", "$1", "b", "(.*)")"#, steps(1_000), false),
            ("x", Params::range(10, 0, 1), false),
            ("x", Params::range(i64::MIN, i64::MAX, 1), false),
            (
                "rate(x[1d]) + rate(x[2d]) + rate(x[3d])",
                Params::instant(0),
                false,
            ),
            ("a + b + c + d", steps(1_000), true),
            ("a + b + c + d + e", steps(1_000), false),
            (&["1"; 12].join(" + "), steps(1_000), false),
            (&["1"; 12].join(" + "), steps(10_000), true),
        ] {
            let query = crate::parse(text).unwrap();
            assert_eq!(query.is_light(&params), light, "{text}");
        }
    }

    #[test]
    fn selections_include_range_lookback_offset_and_at() {
        let range = Params {
            start_ms: 1_000_000,
            end_ms: 1_095_000,
            step_ms: 10_000,
            lookback_ms: 300_000,
        };
        assert_eq!(spans("x", &range), [(700_001, 1_090_000, 10_000, None)]);
        assert_eq!(
            spans("rate(x[1m])", &range),
            [(940_001, 1_090_000, 10_000, Some("rate".into()))]
        );
        assert_eq!(spans("x offset 1m", &range), [(640_001, 1_030_000, 10_000, None)]);
        assert_eq!(
            spans("x offset -1m", &range),
            [(760_001, 1_150_000, 10_000, None)]
        );
        assert_eq!(spans("x @ 500", &range), [(200_001, 500_000, 10_000, None)]);
        assert_eq!(
            spans("x @ end() offset 5s", &range),
            [(790_001, 1_090_000, 10_000, None)]
        );
    }

    #[test]
    fn selections_inside_a_subquery_follow_its_own_steps() {
        let at = Params::instant(1_000_000);
        assert_eq!(
            spans("max_over_time(rate(x[1m])[5m:30s])", &at),
            [(720_000 - 59_999, 990_000, 30_000, Some("rate".into()))]
        );
    }

    #[test]
    fn one_look_of_an_instant_selector_needs_the_latest_sample_only() {
        let latest = |query: &str, params: &Params| {
            let selections = crate::parse(query).unwrap().selections(params);
            selections
                .iter()
                .map(|selection| selection.latest)
                .collect::<Vec<_>>()
        };
        let (at, range) = (Params::instant(600_000), Params::range(0, 600_000, 60_000));
        assert_eq!(latest("sum(x offset 1m)", &at), [true]);
        assert_eq!(latest("x / rate(x[5m])", &at), [true, false]);
        assert_eq!(latest("x[5m]", &at), [false]);
        assert_eq!(latest("max_over_time(x[5m:1m])", &at), [false]);
        assert_eq!(latest("x", &range), [false]);
        assert_eq!(latest("x @ end()", &range), [true]);
    }

    #[test]
    fn equal_selections_are_read_once() {
        let at = Params::instant(0);
        assert_eq!(spans("x / x", &at).len(), 1);
        assert_eq!(spans("x / rate(x[5m])", &at).len(), 2);
    }

    #[test]
    fn steps_are_capped_as_in_prometheus() {
        let error = Params::range(0, 11_001_000, 1_000)
            .check()
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("exceeded maximum resolution of 11,000 points per timeseries."),
            "{error}"
        );
        assert!(Params::range(0, 11_000_000, 1_000).check().is_ok());
        assert!(Params::range(0, 10, 0).check().is_err());
        assert!(Params::range(10, 0, 1).check().is_err());
        assert!(Params::range(i64::MIN, i64::MAX, 1).check().is_err());
    }
}
