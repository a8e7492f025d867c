//! The part of a run's logs that is shown.

use domain::api::runs::LogSource;

/// The part that is shown: the end of a log as it grows, or a part of it.
#[derive(Clone, Default, PartialEq)]
pub(super) struct LogPosition {
    /// The log; the first if none is chosen.
    pub(super) source: Option<LogSource>,
    /// The byte offset; `None` follows the end.
    pub(super) offset: Option<u64>,
}
