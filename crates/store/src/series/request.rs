//! What the sealer is asked to do, and what it answers.

use std::sync::Arc;

use domain::series::matcher::CompiledMatcher;
use domain::time::{TimeRange, TimestampMs};
use tokio::sync::oneshot;

use super::AppendError;

/// Where the answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, AppendError>>;

/// Something to do now.
#[derive(Debug)]
pub(crate) enum Request {
    Seal {
        reply: Reply<()>,
    },
    Retain {
        now_ms: TimestampMs,
        reply: Reply<()>,
    },
    /// Merges some of what can be merged, and says whether there may be more.
    Compact {
        now_ms: TimestampMs,
        reply: Reply<bool>,
    },
    Delete(Deletion),
}

/// A deletion on its way to the sealer.
#[derive(Debug)]
pub(crate) struct Deletion {
    pub(crate) sets: Vec<Vec<CompiledMatcher>>,
    pub(crate) range: TimeRange,
    pub(crate) reply: oneshot::Sender<Result<Deleted, DeleteError>>,
}

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Series that lost something.
    pub series: u64,
    /// Samples and buckets of roll-ups that were stored.
    pub samples: u64,
}

/// Why not everything that matches was deleted. What was deleted until then stays deleted; repeat it to delete the rest.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeleteError {
    /// No set, or one that holds for every series.
    #[error(
        "each set of matchers needs one that does not hold for an empty value; it would delete every series"
    )]
    Everything,
    /// A matcher that cannot be used.
    #[error("{0}")]
    Matcher(String),
    /// The database failed.
    #[error("the samples could not be deleted; look at the free space and health of the data folder's disk")]
    Write(#[source] Arc<sqlx::Error>),
    /// A chunk that cannot be read, so that nobody knows what is in it.
    #[error("chunk {chunk} cannot be read and was left as it is; check the disk")]
    Damaged {
        /// Its id.
        chunk: i64,
    },
    /// The store is closing.
    #[error("the store is closed")]
    Closed,
}

impl From<sqlx::Error> for DeleteError {
    fn from(error: sqlx::Error) -> Self {
        Self::Write(Arc::new(error))
    }
}
