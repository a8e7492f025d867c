//! Errors of queries. Their texts are for the client.

use domain::series::{BudgetExceeded, SelectError};

/// A text that is not a query, or that exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text is longer than [`crate::parse`] accepts.
    #[error("the query has {length} bytes, more than the {max} allowed")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// Brackets are nested too deeply, or there are too many operators or regular expressions.
    #[error("the query has more than {max} {what}; split it, or record parts of it with recording rules")]
    TooComplex {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A regular expression that is too large once compiled.
    #[error(
        "the regular expression {0:?} would take more than 1 MiB once compiled; use fewer repetitions, or split it"
    )]
    RegexTooLarge(String),
    /// Not PromQL.
    #[error("invalid query: {0}")]
    Syntax(String),
    /// PromQL that this engine does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
}

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// Times or steps that are not valid.
    #[error("{0}")]
    Params(String),
    /// The budget is spent, or the query was cancelled.
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// The source failed.
    #[error(transparent)]
    Select(SelectError),
    /// The query cannot be evaluated with this data.
    #[error("{0}")]
    Execution(String),
}

impl EvalError {
    pub(crate) fn execution(message: impl Into<String>) -> Self {
        Self::Execution(message.into())
    }
}

impl From<SelectError> for EvalError {
    /// If the source spent the budget, the error is [`EvalError::Budget`].
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::Budget(budget) => Self::Budget(budget),
            other => Self::Select(other),
        }
    }
}
