//! What can go wrong, in words for the person who asked.

use domain::series::{BudgetExceeded, SelectError};

/// A text that is not a query, or one that is too large to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Longer than [`crate::parse`] accepts.
    #[error("the query has {length} bytes, more than the {max} allowed")]
    TooLong {
        /// Bytes.
        length: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Brackets too deep, or too many operators or regular expressions.
    #[error("the query has more than {max} {what}; split it, or record parts of it by rules")]
    TooComplex {
        /// What there is too much of.
        what: &'static str,
        /// How many are allowed.
        max: usize,
    },
    /// A regular expression that explodes once compiled.
    #[error(
        "the regular expression {0:?} would take more than 1 MiB once compiled; repeat less in it, or split it"
    )]
    RegexTooLarge(String),
    /// Not PromQL.
    #[error("invalid query: {0}")]
    Syntax(String),
    /// PromQL that this engine does not evaluate.
    #[error("not supported: {0}")]
    Unsupported(String),
}

/// Why an evaluation gave no result.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// Times or steps that make no sense.
    #[error("{0}")]
    Params(String),
    /// Too much work, or cancelled.
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// The source could not answer.
    #[error(transparent)]
    Select(SelectError),
    /// The data does not fit the query.
    #[error("{0}")]
    Execution(String),
}

impl EvalError {
    pub(crate) fn execution(message: impl Into<String>) -> Self {
        Self::Execution(message.into())
    }
}

impl From<SelectError> for EvalError {
    /// A budget spent inside the source is a spent budget.
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::Budget(budget) => Self::Budget(budget),
            other => Self::Select(other),
        }
    }
}
