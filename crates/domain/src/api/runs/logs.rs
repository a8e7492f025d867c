//! Lines and parts of a run's log files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::log_level::LogLevel;
use crate::time::TimestampMs;

/// Response of `GET /api/runs/{id}/logs/search?q=&regex=&attempt=&rank=&stream=&limit=`: matching lines of a run's logs, ordered by file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LogMatches {
    /// Matching lines.
    pub matches: Vec<LogMatch>,
    /// True if there are more matches than the limit, or the search reached its time limit.
    pub truncated: bool,
}

/// One matching line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogMatch {
    /// Log file of the line.
    pub source: LogSource,
    /// Byte offset of the line in the file, for reading from here.
    pub offset: u64,
    /// Text of the line without escape sequences; shortened if very long.
    pub line: String,
}

/// Response of `GET /api/runs/{id}/logs?attempt=&rank=&stream=&offset=&limit=`: a part of one log file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogPiece {
    /// Log file: of a rank, or for `launcher` that of torchrun and the shim on the node.
    pub source: LogSource,
    /// Byte offset of `text` in the file.
    pub offset: u64,
    /// Byte offset from which to read next.
    pub next_offset: u64,
    /// Current length of the file in bytes.
    pub length: u64,
    /// Text of the log, including escape sequences ([`log_text`](crate::run::log_text) removes them). Invalid UTF-8 is replaced.
    pub text: String,
    /// Number of bytes after `offset` that are no longer stored. If it is not 0, `text` is a note that says so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Response of `GET /api/runs/{id}/logs/lines?attempt=&ranks=&stream=&q=&level=&before=&after=&at_ms=&limit=`: lines of all logs of an attempt
/// in one list, ordered by the time at which the collector received the end of each line.
///
/// A cursor is a position between two lines. One response has the lines between `earlier` and `later` that match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLines {
    /// Number of the attempt.
    pub attempt: AttemptNo,
    /// Matching lines.
    pub lines: Vec<LogLine>,
    /// Cursor before the first searched line, for `before`; absent if no line is before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// Cursor after the last searched line, for `after`.
    pub later: String,
    /// True if no line is after `later`. Ranks that still run may add some.
    pub at_end: bool,
    /// Start of the searched period.
    pub searched_from_ms: TimestampMs,
    /// End of the searched period.
    pub searched_to_ms: TimestampMs,
    /// Number of logs that begin with lines without a time, which an earlier version stored. Such lines are not in the list.
    #[serde(default)]
    pub untimed_logs: u32,
}

/// One line of [`LogLines`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Log file of the line.
    pub source: LogSource,
    /// When the collector received the end of the line.
    pub time_ms: TimestampMs,
    /// Byte offset of the line in the file, for reading from here.
    pub offset: u64,
    /// Level of the line, by its beginning; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// Text of the line without escape sequences; shortened if very long.
    pub text: String,
}

/// Identifies one log file of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LogSource {
    /// Number of the attempt.
    pub attempt: AttemptNo,
    /// Node that wrote the log.
    pub node: String,
    /// Rank; absent for the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// `stdout` or `stderr`.
    pub stream: String,
}
