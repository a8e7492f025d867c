//! Lines and pieces of a run's log files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};

/// `GET /api/runs/{id}/logs/search?q=&regex=&attempt=&rank=&stream=&limit=`: lines of a run's logs, in the order of their files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LogMatches {
    /// The lines.
    pub matches: Vec<LogMatch>,
    /// There are more than were asked for, or the time to look was over.
    pub truncated: bool,
}

/// One line that matches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogMatch {
    /// Where it stands.
    pub source: LogSource,
    /// Byte offset of the line in the file: read on from here.
    pub offset: u64,
    /// The line, without escape sequences, cut when very long.
    pub line: String,
}

/// `GET /api/runs/{id}/logs?attempt=&rank=&stream=&offset=&limit=`: a piece of one log file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogPiece {
    /// The rank (or, for `launcher`, the node's torchrun and shim).
    pub source: LogSource,
    /// Byte offset of `text` in the file.
    pub offset: u64,
    /// Where to go on reading.
    pub next_offset: u64,
    /// The file's length now.
    pub length: u64,
    /// The bytes as they were written, escape sequences in them ([`log_text`](crate::run::log_text) takes those out); invalid UTF-8
    /// is replaced.
    pub text: String,
    /// So many bytes behind `offset` are not kept any more; `text` is a note that says so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Which log file of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LogSource {
    /// The attempt.
    pub attempt: AttemptNo,
    /// The node it was written on.
    pub node: String,
    /// The rank; none for the launcher itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// `stdout` or `stderr`.
    pub stream: String,
}
