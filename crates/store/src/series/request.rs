//! Requests to the sealer, and their results.

use std::sync::Arc;

use domain::series::matcher::CompiledMatcher;
use domain::time::{TimeRange, TimestampMs};
use tokio::sync::oneshot;

use super::AppendError;

/// The channel for the result.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, AppendError>>;

/// A request to the sealer.
#[derive(Debug)]
pub(crate) enum Request {
    Seal {
        reply: Reply<()>,
    },
    Retain {
        now_ms: TimestampMs,
        reply: Reply<()>,
    },
    /// Merges some of the chunks that can be merged. Returns true if there may be more.
    Compact {
        now_ms: TimestampMs,
        reply: Reply<bool>,
    },
    Delete(Deletion),
}

/// A deletion that waits for the sealer.
#[derive(Debug)]
pub(crate) struct Deletion {
    pub(crate) sets: Vec<Vec<CompiledMatcher>>,
    pub(crate) range: TimeRange,
    pub(crate) reply: oneshot::Sender<Result<Deleted, DeleteError>>,
}

/// The result of a deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The number of series that lost samples.
    pub series: u64,
    /// The number of deleted samples and roll-up buckets.
    pub samples: u64,
}

/// The reason why a deletion is incomplete. What was deleted stays deleted; repeat the deletion to delete the rest.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeleteError {
    /// No set of matchers, or a set that matches every series.
    #[error(
        "each set needs a matcher that does not match an empty value; otherwise it would delete every series"
    )]
    Everything,
    /// A matcher is malformed.
    #[error("{0}")]
    Matcher(String),
    /// The database failed.
    #[error("the samples could not be deleted; check the free space and health of the data folder's disk")]
    Write(#[source] Arc<sqlx::Error>),
    /// A chunk cannot be decoded, so its content is unknown.
    #[error("chunk {chunk} cannot be decoded and was not changed; check the disk")]
    Damaged {
        /// The id of the chunk.
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
