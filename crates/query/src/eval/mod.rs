//! The evaluator: computes columns from an expression.
//!
//! ```text
//! Columns::Scalar  one value per step
//! Columns::Vector  Column { labels, values: one per step, ABSENT where the series has none }
//! ```
//! No code here may do arithmetic on [`ABSENT`]: it marks a missing value and is recognised by its bits.

mod absent;
mod aggregate;
mod binary;
mod calendar;
mod call;
mod column;
mod extreme;
mod histogram;
mod labels;
mod limit_ratio;
mod matching;
mod math;
mod numeric;
mod over_time;
mod pairs;
mod range;
mod ranked;
mod rate;
mod select;
mod sums;
mod value_label;
mod windows;

use std::cell::RefCell;

use domain::series::{Budget, Labels, METRIC_NAME, SeriesSource, is_absent};

use crate::error::EvalError;
use crate::expr::{Expr, Kind};
use crate::output::{MatrixSeries, Output, Value, VectorSample};
use crate::plan::{Bounds, Grid, Params};
use column::{Column, Columns};

type Result<T> = std::result::Result<T, EvalError>;

/// State that all nodes of one evaluation share.
struct Evaluator<'a> {
    source: &'a dyn SeriesSource,
    budget: &'a Budget,
    bounds: Bounds,
    is_instant: bool,
    notes: RefCell<Notes>,
}

#[derive(Default)]
struct Notes {
    warnings: Vec<String>,
    infos: Vec<String>,
}

pub(crate) fn evaluate(
    expr: &Expr,
    source: &dyn SeriesSource,
    params: &Params,
    budget: &Budget,
) -> Result<Output> {
    params.check()?;
    budget.check_cancelled()?;
    let evaluator = Evaluator {
        source,
        budget,
        bounds: Bounds::of(params),
        is_instant: params.is_instant(),
        notes: RefCell::default(),
    };
    let value = evaluator.value(expr, params.grid())?;
    let notes = evaluator.notes.into_inner();
    Ok(Output {
        value,
        warnings: notes.warnings,
        infos: notes.infos,
    })
}

impl Evaluator<'_> {
    fn value(&self, expr: &Expr, grid: Grid) -> Result<Value> {
        if self.is_instant {
            return self.instant_value(expr, grid);
        }
        let refused = match expr.kind() {
            Kind::Matrix => "range vector",
            Kind::Text => "string",
            Kind::Scalar | Kind::Vector => return self.range_value(expr, grid),
        };
        Err(EvalError::Params(format!(
            "invalid expression type \"{refused}\" for range query, must be Scalar or instant Vector"
        )))
    }

    fn instant_value(&self, expr: &Expr, grid: Grid) -> Result<Value> {
        if expr.kind() == Kind::Matrix {
            return self
                .ranges(expr, grid, None)
                .map(|ranges| Value::Matrix(ranges.samples()));
        }
        let time = grid.start_ms;
        Ok(match self.eval(expr, grid)? {
            Columns::Scalar(values) => Value::Scalar(time, values[0]),
            Columns::Text(text) => Value::String(time, text),
            Columns::Vector(columns) => {
                let columns = column::merged(
                    columns.into_iter().map(Column::named).collect(),
                    column::SAME_LABELS,
                )?;
                let present = columns.into_iter().filter(|column| !is_absent(column.values[0]));
                Value::Vector(
                    present
                        .map(|column| -> VectorSample { (column.labels, time, column.values[0]) })
                        .collect(),
                )
            }
        })
    }

    fn range_value(&self, expr: &Expr, grid: Grid) -> Result<Value> {
        let columns = match self.eval(expr, grid)? {
            Columns::Scalar(values) => vec![Column::unlabelled(values)],
            Columns::Vector(columns) => columns,
            Columns::Text(_) => return Err(EvalError::execution("a string has no values over time")),
        };
        let columns = column::merged(
            columns.into_iter().map(Column::named).collect(),
            column::SAME_LABELS,
        )?;
        let mut matrix: Vec<MatrixSeries> = columns
            .into_iter()
            .map(|column| samples(column, grid))
            .filter(|series| !series.times.is_empty())
            .collect();
        matrix.sort_by(|a, b| a.labels.cmp(&b.labels));
        Ok(Value::Matrix(matrix))
    }

    /// Evaluates a node at the steps of `grid`.
    fn eval(&self, expr: &Expr, grid: Grid) -> Result<Columns> {
        self.budget.check_cancelled()?;
        match expr {
            Expr::Number(number) => Ok(Columns::Scalar(vec![*number; grid.count])),
            Expr::Text(text) => Ok(Columns::Text(text.clone())),
            Expr::Select(selector) => self.instant(selector, grid).map(Columns::Vector),
            Expr::Window { .. } | Expr::Subquery(_) => Err(EvalError::execution(
                "a range vector needs a function around it, such as rate()",
            )),
            Expr::Call { function, args } => self.call(*function, args, grid),
            Expr::Aggregate(aggregate) => self.aggregate(aggregate, grid).map(Columns::Vector),
            Expr::Binary(binary) => self.binary(binary, grid),
            Expr::Negate(inner) => self.negate(inner, grid),
        }
    }

    fn vector(&self, expr: &Expr, grid: Grid) -> Result<Vec<Column>> {
        match self.eval(expr, grid)? {
            Columns::Vector(columns) => Ok(columns),
            _ => Err(EvalError::execution("an instant vector is expected here")),
        }
    }

    fn scalar(&self, expr: &Expr, grid: Grid) -> Result<Vec<f64>> {
        match self.eval(expr, grid)? {
            Columns::Scalar(values) => Ok(values),
            _ => Err(EvalError::execution("a scalar is expected here")),
        }
    }

    fn text(&self, expr: &Expr, grid: Grid) -> Result<String> {
        match self.eval(expr, grid)? {
            Columns::Text(text) => Ok(text),
            _ => Err(EvalError::execution("a string is expected here")),
        }
    }

    fn texts(&self, args: &[Expr], grid: Grid) -> Result<Vec<String>> {
        args.iter().map(|arg| self.text(arg, grid)).collect()
    }

    fn negate(&self, inner: &Expr, grid: Grid) -> Result<Columns> {
        Ok(match self.eval(inner, grid)? {
            Columns::Scalar(values) => Columns::Scalar(values.into_iter().map(|value| -value).collect()),
            Columns::Vector(columns) => Columns::Vector(column::mapped(columns, |value| -value)),
            Columns::Text(text) => Columns::Text(text),
        })
    }

    /// Takes the cells of a result matrix from the budget before the matrix is allocated.
    fn take_cells_from_budget(&self, series: usize, grid: Grid) -> Result<()> {
        Ok(self
            .budget
            .take(0, (series as u64).saturating_mul(grid.count as u64))?)
    }

    fn warn(&self, message: String) {
        note(&mut self.notes.borrow_mut().warnings, "warning", message);
    }

    fn inform(&self, message: String) {
        note(&mut self.notes.borrow_mut().infos, "info", message);
    }
}

/// Maximum number of notes of one kind, because many series can have the same problem.
const NOTES_MAX: usize = 10;

fn note(notes: &mut Vec<String>, level: &str, message: String) {
    let message = format!("PromQL {level}: {message}");
    if notes.len() < NOTES_MAX && !notes.contains(&message) {
        notes.push(message);
    }
}

/// Returns the samples of a column, without missing values.
fn samples(column: Column, grid: Grid) -> MatrixSeries {
    if !column.values.iter().any(|value| is_absent(*value)) {
        return MatrixSeries {
            labels: column.labels,
            times: grid.times().collect(),
            values: column.values,
        };
    }
    let present = grid
        .times()
        .zip(&column.values)
        .filter(|(_, value)| !is_absent(**value));
    let (times, values) = present.map(|(time, value)| (time, *value)).unzip();
    MatrixSeries {
        labels: column.labels,
        times,
        values,
    }
}

/// Labels that describe the metric. They are dropped together with its name.
const METADATA_LABELS: [&str; 3] = [METRIC_NAME, "__type__", "__unit__"];

/// Returns the labels without the metric's name.
fn without_name(labels: &Labels) -> Labels {
    let is_metadata = |name: &str| METADATA_LABELS.contains(&name);
    if labels.iter().any(|label| is_metadata(&label.name)) {
        labels.filtered(|name| !is_metadata(name))
    } else {
        labels.clone()
    }
}
