//! What of a run's logs is read.

use domain::api::runs::LogSource;

/// What is read: a log's end as it grows, or a piece of it.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Place {
    /// Which log; the first where none was chosen.
    pub(super) source: Option<LogSource>,
    /// From which byte; none follows the end.
    pub(super) offset: Option<u64>,
}
