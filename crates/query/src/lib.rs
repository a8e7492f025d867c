//! PromQL with the semantics of Prometheus 3, over any [`SeriesSource`].
//!
//! ```text
//! text ─ parse ─▶ Query ─ selections(params) ─▶ what a store prefetches (asynchronously, its own business)
//!                   └──── evaluate(source, params, budget) ─▶ Output ─ format ─▶ the HTTP API's JSON
//! ```
//! Pure: no clock, no I/O, no async. Evaluation goes by columns: each node of the expression yields, for every series, one
//! value a step, so that the work on labels (matching, grouping) is done once a series and not once a step.
//!
//! The name of a metric is dropped at the end of the evaluation (Prometheus' delayed name removal), so `label_replace` can
//! still see it after `rate`.

mod error;
mod eval;
mod expr;
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

/// A query that was understood: parsed, checked for types, within the limits of size and nesting.
#[derive(Debug, Clone)]
pub struct Query {
    text: String,
    expr: expr::Expr,
}

impl Query {
    /// The query as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What a store must hand out for this query, each selection once: range, lookback, offset and `@` are included.
    /// [`Query::evaluate`] asks its source for exactly these (equal by `Eq`).
    #[must_use]
    pub fn selections(&self, params: &Params) -> Vec<Selection> {
        plan::selections(&self.expr, params)
    }

    /// Whether [`Query::evaluate`] takes no longer than reading what the query selects, when that is little: a matter of
    /// microseconds, not of a thread of its own.
    #[must_use]
    pub fn is_light(&self, params: &Params) -> bool {
        plan::is_light(&self.expr, params)
    }

    /// Evaluates at one time (`step_ms` 0) or over steps.
    ///
    /// # Errors
    /// When the parameters make no sense, the budget is spent, the source fails, or the data does not fit the query (series
    /// that cannot be matched, equal label sets), worded as Prometheus words it.
    pub fn evaluate(
        &self,
        source: &dyn SeriesSource,
        params: &Params,
        budget: &Budget,
    ) -> Result<Output, EvalError> {
        eval::evaluate(&self.expr, source, params, budget)
    }
}
