//! Function calls: evaluates the arguments and applies the function.

use domain::series::{ABSENT, METRIC_NAME, is_absent};

use super::column::{Column, Columns, mapped};
use super::range::{Ranges, Window};
use super::rate::{self, Extrapolation};
use super::{Evaluator, Result, calendar, extreme, math, over_time, sums};
use crate::error::EvalError;
use crate::expr::Expr;
use crate::format;
use crate::function::Function;
use crate::plan::Grid;

/// Suffixes of the names of counters.
const COUNTER_SUFFIXES: [&str; 4] = ["_total", "_sum", "_count", "_bucket"];

impl Evaluator<'_> {
    pub(super) fn call(&self, function: Function, args: &[Expr], grid: Grid) -> Result<Columns> {
        if let Some(values) = self.scalar_call(function, args, grid)? {
            return Ok(Columns::Scalar(values));
        }
        if let Some(columns) = self.range_call(function, args, grid)? {
            return Ok(Columns::Vector(columns));
        }
        let first = || {
            args.first()
                .ok_or_else(|| EvalError::execution(format!("{}() needs an argument", function.name())))
        };
        if let Some(unary) = math::unary(function) {
            return Ok(Columns::Vector(mapped(self.vector(first()?, grid)?, unary)));
        }
        if let Some(part) = calendar::part(function) {
            return self.calendar(part, args, grid);
        }
        Ok(Columns::Vector(match function {
            Function::Absent => self.absent(first()?, grid)?,
            Function::AbsentOverTime => self.absent_over_time(first()?, grid)?,
            Function::Vector => vec![Column::unlabelled(self.scalar(first()?, grid)?)],
            Function::Timestamp => self.timestamp(first()?, grid)?,
            Function::Round => self.round(args, grid)?,
            Function::Clamp | Function::ClampMin | Function::ClampMax => self.clamp(function, args, grid)?,
            Function::LabelReplace => self.label_replace(args, grid)?,
            Function::LabelJoin => self.label_join(args, grid)?,
            Function::Sort => self.sorted(first()?, grid, false)?,
            Function::SortDesc => self.sorted(first()?, grid, true)?,
            Function::SortByLabel => self.sorted_by_label(args, grid, false)?,
            Function::SortByLabelDesc => self.sorted_by_label(args, grid, true)?,
            Function::HistogramQuantile => self.histogram_quantile(args, grid)?,
            Function::HistogramFraction => self.histogram_fraction(args, grid)?,
            Function::HistogramCount
            | Function::HistogramSum
            | Function::HistogramAvg
            | Function::HistogramStddev
            | Function::HistogramStdvar => self.of_native_histograms(first()?, grid)?,
            other => {
                return Err(EvalError::execution(format!(
                    "{}() cannot be called with these arguments",
                    other.name()
                )));
            }
        }))
    }

    /// Functions of native histograms ignore numbers, and all samples of this engine are numbers.
    fn of_native_histograms(&self, arg: &Expr, grid: Grid) -> Result<Vec<Column>> {
        self.vector(arg, grid).map(|_| Vec::new())
    }

    // === scalars ===

    fn scalar_call(&self, function: Function, args: &[Expr], grid: Grid) -> Result<Option<Vec<f64>>> {
        let constant = |ms: i64| Some(vec![ms as f64 / 1_000.0; grid.count]);
        Ok(match function {
            Function::Pi => Some(vec![std::f64::consts::PI; grid.count]),
            Function::Time => Some(seconds(grid)),
            Function::Start => constant(self.bounds.start_ms),
            Function::End => constant(self.bounds.end_ms),
            Function::Step => constant(self.bounds.step_ms),
            Function::Range => constant(self.bounds.end_ms - self.bounds.start_ms),
            Function::MinOf => Some(self.pairwise(args, grid, |a, b| a < b)?),
            Function::MaxOf => Some(self.pairwise(args, grid, |a, b| a > b)?),
            Function::Scalar => Some(only_values(&self.vector(arg(args, 0)?, grid)?, grid)),
            _ => None,
        })
    }

    /// Returns the better of two scalars at each step. NaN is the result if either is NaN.
    fn pairwise(&self, args: &[Expr], grid: Grid, is_better: fn(f64, f64) -> bool) -> Result<Vec<f64>> {
        let (left, right) = (
            self.scalar(arg(args, 0)?, grid)?,
            self.scalar(arg(args, 1)?, grid)?,
        );
        let pick = |(a, b): (f64, f64)| if a.is_nan() || is_better(a, b) { a } else { b };
        Ok(left.into_iter().zip(right).map(pick).collect())
    }

    // === range functions ===

    fn range_call(&self, function: Function, args: &[Expr], grid: Grid) -> Result<Option<Vec<Column>>> {
        let over = |at: usize| self.ranges(arg(args, at)?, grid, Some(function));
        if let Some(statistic) = over_time::statistic(function) {
            let ranges = over(0)?;
            let keeps_name = over_time::keeps_name(function);
            let columns = if let Some(is_better) = extreme::comparison(function) {
                self.over_series(&ranges, grid, keeps_name, |series| {
                    Ok(extreme::over(&ranges, series, is_better, statistic))
                })
            } else if let Some(finish) = sums::finish(function) {
                self.over_series(&ranges, grid, keeps_name, |series| {
                    let check_cancelled = || Ok(self.budget.check_cancelled()?);
                    sums::over(&ranges, series, finish, statistic, check_cancelled)
                })
            } else {
                self.over_windows(ranges, grid, keeps_name, |window, _| Some(statistic(window)))
            };
            return columns.map(Some);
        }
        let simple = |of: fn(&Window) -> Option<f64>| -> Result<Vec<Column>> {
            self.over_windows(over(0)?, grid, false, |window, _| of(window))
        };
        let columns = match function {
            Function::Rate => self.extrapolated(over(0)?, grid, true, true),
            Function::Increase => self.extrapolated(over(0)?, grid, true, false),
            Function::Delta => self.extrapolated(over(0)?, grid, false, false),
            Function::Irate => simple(rate::irate),
            Function::Idelta => simple(rate::idelta),
            Function::Changes => simple(rate::changes),
            Function::Resets => simple(rate::resets),
            Function::Deriv => simple(rate::deriv),
            Function::PredictLinear => {
                let ahead = self.scalar(arg(args, 1)?, grid)?;
                self.over_windows(over(0)?, grid, false, |window, step| {
                    rate::predict_linear(window, grid.time(step), ahead[step])
                })
            }
            Function::QuantileOverTime => {
                let quantiles = self.scalar(arg(args, 0)?, grid)?;
                self.warn_of_quantiles(&quantiles);
                self.over_windows(over(1)?, grid, false, |window, step| {
                    Some(over_time::quantile_of(window, quantiles[step]))
                })
            }
            Function::DoubleExponentialSmoothing => self.smoothed(args, grid, function),
            _ => return Ok(None),
        };
        columns.map(Some)
    }

    fn extrapolated(
        &self,
        ranges: Ranges,
        grid: Grid,
        is_counter: bool,
        is_rate: bool,
    ) -> Result<Vec<Column>> {
        if is_counter {
            self.inform_of_gauges(&ranges);
        }
        let extrapolation = Extrapolation { is_counter, is_rate };
        self.over_series(&ranges, grid, false, |series| {
            Ok(extrapolation.over(&ranges, series))
        })
    }

    fn smoothed(&self, args: &[Expr], grid: Grid, function: Function) -> Result<Vec<Column>> {
        let factor = |at: usize, name: &str| -> Result<Vec<f64>> {
            let values = self.scalar(arg(args, at)?, grid)?;
            match values.iter().find(|value| !(0.0..=1.0).contains(*value)) {
                None => Ok(values),
                Some(value) => Err(EvalError::execution(format!(
                    "invalid {name} factor. Expected: 0 <= {} <= 1, got: {value}",
                    if at == 1 { "sf" } else { "tf" }
                ))),
            }
        };
        let (level, trend) = (factor(1, "smoothing")?, factor(2, "trend")?);
        let ranges = self.ranges(arg(args, 0)?, grid, Some(function))?;
        self.over_windows(ranges, grid, false, |window, step| {
            rate::double_exponential_smoothing(window, level[step], trend[step])
        })
    }

    /// Adds a remark if `rate` or a similar function is applied to a metric whose name is not that of a counter, a common mistake.
    fn inform_of_gauges(&self, ranges: &Ranges) {
        for series in ranges.series.iter().filter(|series| ranges.has_samples(series)) {
            let Some(name) = series.labels.get(METRIC_NAME) else {
                continue;
            };
            if !COUNTER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
                self.inform(format!(
                    "metric might not be a counter, name does not end in _total/_sum/_count/_bucket: {name:?}"
                ));
            }
        }
    }

    pub(super) fn warn_of_quantiles(&self, quantiles: &[f64]) {
        for q in quantiles.iter().filter(|q| !(0.0..=1.0).contains(*q)) {
            self.warn(format!(
                "quantile value should be between 0 and 1, got {}",
                format::float(*q)
            ));
        }
    }

    // === value by value ===

    fn calendar(&self, part: fn(f64) -> f64, args: &[Expr], grid: Grid) -> Result<Columns> {
        let columns = match args.first() {
            Some(arg) => self.vector(arg, grid)?,
            None => vec![Column::unlabelled(seconds(grid))],
        };
        Ok(Columns::Vector(mapped(columns, part)))
    }

    fn timestamp(&self, arg: &Expr, grid: Grid) -> Result<Vec<Column>> {
        if let Expr::Select(selector) = arg {
            return self.timestamps(selector, grid);
        }
        let times = seconds(grid);
        let mut columns = self.vector(arg, grid)?;
        for column in &mut columns {
            column.drop_name = true;
            column
                .present_with(&times)
                .for_each(|(value, time)| *value = *time);
        }
        Ok(columns)
    }

    fn round(&self, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let nearest = match args.get(1) {
            Some(arg) => self.scalar(arg, grid)?,
            None => vec![1.0; grid.count],
        };
        let columns = self.vector(arg(args, 0)?, grid)?;
        Ok(stepwise(columns, |value, step| math::round(value, nearest[step])))
    }

    fn clamp(&self, function: Function, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let unbounded = |bound: f64| vec![bound; grid.count];
        let (low, high) = match function {
            Function::ClampMin => (self.scalar(arg(args, 1)?, grid)?, unbounded(f64::INFINITY)),
            Function::ClampMax => (unbounded(f64::NEG_INFINITY), self.scalar(arg(args, 1)?, grid)?),
            _ => (
                self.scalar(arg(args, 1)?, grid)?,
                self.scalar(arg(args, 2)?, grid)?,
            ),
        };
        let columns = self.vector(arg(args, 0)?, grid)?;
        let mut columns = stepwise(columns, |value, step| match (low[step], high[step]) {
            (low, high) if low > high => ABSENT,
            (low, high) if low.is_nan() || high.is_nan() || value.is_nan() => f64::NAN,
            (low, high) => value.min(high).max(low),
        });
        columns.retain(|column| !column.is_empty());
        Ok(columns)
    }
}

fn arg(args: &[Expr], at: usize) -> Result<&Expr> {
    args.get(at)
        .ok_or_else(|| EvalError::execution("an argument of a function is missing"))
}

/// Returns the time of each step in seconds.
fn seconds(grid: Grid) -> Vec<f64> {
    grid.times().map(|time| time as f64 / 1_000.0).collect()
}

/// Returns at each step the value of the only series; NaN if there is none or more than one.
fn only_values(columns: &[Column], grid: Grid) -> Vec<f64> {
    let only = |step: usize| {
        let mut present = columns
            .iter()
            .map(|column| column.values[step])
            .filter(|value| !is_absent(*value));
        match (present.next(), present.next()) {
            (Some(value), None) => value,
            _ => f64::NAN,
        }
    };
    (0..grid.count).map(only).collect()
}

/// Applies a function to each value and its step, and drops the metric's name.
fn stepwise(mut columns: Vec<Column>, function: impl Fn(f64, usize) -> f64) -> Vec<Column> {
    for column in &mut columns {
        column.drop_name = true;
        for (step, value) in column
            .values
            .iter_mut()
            .enumerate()
            .filter(|(_, value)| !is_absent(**value))
        {
            *value = function(*value, step);
        }
    }
    columns
}
