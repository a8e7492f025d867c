//! PromQL with the semantics of Prometheus 3, for any [`SeriesSource`].
//!
//! ```text
//! text ─ parse ─▶ Query ─ selections(params) ─▶ what a store prefetches (asynchronously, outside of this crate)
//!                   └──── evaluate(source, params, budget) ─▶ Output ─ format ─▶ the HTTP API's JSON
//! ```
//! The crate has no clock, I/O or async. It evaluates by columns: each node of the expression returns, for every series, one value per
//! step. Therefore the work on labels (matching, grouping) is done once per series and not once per step.
//!
//! The name of a metric is dropped at the end of the evaluation (delayed name removal, as in Prometheus), so that `label_replace` can use
//! it after `rate`.

mod error;
mod eval;
mod expr;
mod extremes;
pub mod format;
mod function;
mod output;
mod parse;
mod plan;

use domain::series::{Budget, Selection, SeriesSource};

pub use error::{EvalError, ParseError};
pub use output::{MatrixSeries, Output, Value, VectorSample};
pub use parse::{parse, parse_selector, pretty};
pub use plan::{LOOKBACK_DEFAULT_MS, Params, STEPS_MAX};

/// A parsed query. Its types are checked, and it is within the limits of size and nesting.
#[derive(Debug, Clone)]
pub struct Query {
    text: String,
    expr: expr::Expr,
}

/// The queries for the least and the greatest value within each step of another query.
#[derive(Debug, Clone)]
pub struct Extremes {
    /// The query for the least values.
    pub min: Query,
    /// The query for the greatest values.
    pub max: Query,
    /// How often each of them evaluates the expression of the other query per step. If the extremes follow from the samples of a selector,
    /// it is 1, and each of them costs about as much as the other query.
    pub evaluations_per_step: u64,
}

impl Query {
    /// Returns the text of the query.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the queries for the least and the greatest value within the last `step_ms`. `None` if this query is no vector. The queries
    /// keep the text of this one.
    #[must_use]
    pub fn extremes(&self, step_ms: i64) -> Option<Extremes> {
        let over_step = |function| {
            let (expr, evaluations_per_step) = extremes::over_step(&self.expr, function, step_ms)?;
            let text = self.text.clone();
            Some((Self { text, expr }, evaluations_per_step))
        };
        let (min, evaluations_per_step) = over_step(function::Function::MinOverTime)?;
        let (max, _) = over_step(function::Function::MaxOverTime)?;
        Some(Extremes {
            min,
            max,
            evaluations_per_step,
        })
    }

    /// Returns the samples that a store must provide for this query, each selection once. Range, lookback, offset and `@` are included.
    /// [`Query::evaluate`] requests exactly these selections (equal by `Eq`) from its source.
    #[must_use]
    pub fn selections(&self, params: &Params) -> Vec<Selection> {
        plan::selections(&self.expr, params)
    }

    /// Returns true if [`Query::evaluate`] takes no longer than reading the selected samples, provided they are few. Such a query takes
    /// microseconds and needs no thread of its own.
    #[must_use]
    pub fn is_light(&self, params: &Params) -> bool {
        plan::is_light(&self.expr, params)
    }

    /// Evaluates the query at one time (`step_ms` is 0) or at several steps.
    ///
    /// # Errors
    /// Returns an error if the parameters are not valid, the budget is spent, the source fails, or the query cannot be evaluated with this
    /// data (series that cannot be matched, equal label sets). The messages are those of Prometheus.
    pub fn evaluate(
        &self,
        source: &dyn SeriesSource,
        params: &Params,
        budget: &Budget,
    ) -> Result<Output, EvalError> {
        eval::evaluate(&self.expr, source, params, budget)
    }
}
