//! `/api/store`: contents of the store, its check, and the format of backups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// Contents of the store, and its disk space.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreStats {
    /// Number of series.
    pub series: u64,
    /// Number of sealed chunks, including roll-ups.
    pub chunks: u64,
    /// Number of samples in chunks.
    pub chunk_samples: u64,
    /// Size of these samples in bytes.
    pub chunk_bytes: u64,
    /// Number of buckets in roll-ups.
    pub rollup_buckets: u64,
    /// Size of these buckets in bytes.
    pub rollup_bytes: u64,
    /// `chunk_bytes / chunk_samples`; absent if there are no samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_sample: Option<f64>,
    /// Memory of samples that are not in chunks yet, in bytes.
    pub head_bytes: u64,
    /// Memory of recently sealed chunks that are kept for queries, in bytes.
    pub recent_chunk_bytes: u64,
    /// Memory of chunks from disk that are cached for repeated queries, in bytes.
    #[serde(default)]
    pub cached_chunk_bytes: u64,
    /// Size of the write-ahead log files in bytes.
    pub wal_bytes: u64,
    /// Size of the files of series and state in bytes, including write-ahead logs.
    pub file_bytes: u64,
    /// Time of the oldest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<TimestampMs>,
    /// Time of the newest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_ms: Option<TimestampMs>,
    /// Disk of the data folder.
    pub disk: DiskSpace,
}

/// Free space of the data folder's disk, and whether ingest is blocked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskSpace {
    /// Bytes available to the collector's user.
    pub free_bytes: u64,
    /// Total size of the disk in bytes.
    pub total_bytes: u64,
    /// Free bytes below which the collector rejects samples.
    pub floor_bytes: u64,
    /// Why the collector rejects samples now. Absent if it accepts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}

/// Why the collector rejects samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Blocked {
    /// The free space is below `floor_bytes`.
    DiskFull,
    /// A write failed because the disk has no space left, although there may be free space: because of a quota, for example.
    WriteFailed,
}

impl Blocked {
    /// Returns the word used in metrics and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::DiskFull => "disk_full",
            Self::WriteFailed => "write_failed",
        }
    }
}

/// One line of `GET /api/store/check`, which responds with one JSON value per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CheckLine {
    /// Progress of the check.
    Progress(CheckProgress),
    /// Last line: result of the check.
    Report(CheckReport),
    /// Last line: the check failed.
    Failed {
        /// Why the check failed.
        message: String,
    },
}

/// Progress of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckProgress {
    /// Part that is checked now: `lockstep.db`, `state.db`, `chunks` or `write-ahead`.
    pub part: String,
    /// Number of checked items of this part.
    pub done: u64,
    /// Total number of items of this part.
    pub of: u64,
}

/// Result of a check of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// True if SQLite's `integrity_check` ran instead of `quick_check`.
    pub full: bool,
    /// Number of checked series.
    pub series: u64,
    /// Number of checked groups of series.
    pub groups: u64,
    /// Number of decoded chunks.
    pub chunks: u64,
    /// Number of samples in these chunks.
    pub samples: u64,
    /// Size of these chunks in bytes.
    pub chunk_bytes: u64,
    /// Number of decoded batches of the write-ahead log.
    pub batches: u64,
    /// Number of samples in these batches.
    pub batch_samples: u64,
    /// Duration of the check.
    pub took_ms: u64,
    /// Number of unreadable chunks that the check moved out of the store, if that was requested.
    #[serde(default)]
    pub set_aside: u64,
    /// Problems, at most [`PROBLEMS_MAX`].
    pub problems: Vec<CheckProblem>,
    /// Total number of problems.
    pub problems_total: u64,
}

/// Maximum number of problems in a report. A disk that lost a file can cause millions of problems; 1,000 are enough to understand it.
pub const PROBLEMS_MAX: usize = 1_000;

/// One problem in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckProblem {
    /// File with the problem.
    pub file: String,
    /// Place in the file: a chunk, a batch or a series, with its contents and period.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl CheckReport {
    /// Returns true if the check found no problems.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }

    /// Adds a problem. Beyond [`PROBLEMS_MAX`] the problem is only counted.
    pub fn add(&mut self, problem: CheckProblem) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Format of backup archives that this version writes, and the newest that it reads.
pub const BACKUP_FORMAT: u32 = 1;

/// First entry of a backup, `backup.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupHead {
    /// [`BACKUP_FORMAT`]. It is checked before the rest is read.
    pub format: u32,
    /// Version of Lockstep that wrote the backup.
    pub version: String,
    /// When the backup was made. The backup contains everything acknowledged before.
    pub created_ms: TimestampMs,
    /// Files that follow, in this order.
    pub files: Vec<BackupFile>,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupFile {
    /// File name, without a folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}
