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

impl Query {
    /// Returns the text of the query.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
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
