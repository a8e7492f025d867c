//! `/api/store`: what the store holds, whether it is sound, and what a backup is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// What the store holds, and how much room it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreStats {
    /// Series known.
    pub series: u64,
    /// Sealed chunks, roll-ups among them.
    pub chunks: u64,
    /// Samples in chunks.
    pub chunk_samples: u64,
    /// Bytes of those.
    pub chunk_bytes: u64,
    /// Buckets of roll-ups.
    pub rollup_buckets: u64,
    /// Bytes of those.
    pub rollup_bytes: u64,
    /// `chunk_bytes / chunk_samples`; none without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_sample: Option<f64>,
    /// Memory of samples that are not in chunks yet.
    pub head_bytes: u64,
    /// Memory of chunks that are kept for recent queries.
    pub recent_chunk_bytes: u64,
    /// Memory of chunks on disk that are kept for queries that come again.
    #[serde(default)]
    pub cached_chunk_bytes: u64,
    /// Bytes of the write-ahead files.
    pub wal_bytes: u64,
    /// Bytes of the files of series and state, write-ahead included.
    pub file_bytes: u64,
    /// The earliest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<TimestampMs>,
    /// The latest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_ms: Option<TimestampMs>,
    /// The disk under the data folder.
    pub disk: DiskSpace,
}

/// Free space where the data is, and whether it stops ingest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskSpace {
    /// Bytes free for the collector's user.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Samples are refused below this many free bytes.
    pub floor_bytes: u64,
    /// Why samples are refused now, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}

/// Why no samples are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Blocked {
    /// The free space is below the floor.
    DiskFull,
    /// A write failed for want of space, whatever the free space says: a quota, for example.
    WriteFailed,
}

impl Blocked {
    /// The word of metrics and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::DiskFull => "disk_full",
            Self::WriteFailed => "write_failed",
        }
    }
}

/// One line of `GET /api/store/check`, which answers with a JSON value a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CheckLine {
    /// How far it is.
    Progress(CheckProgress),
    /// The end: what was found.
    Report(CheckReport),
    /// The end: it could not be carried out.
    Failed {
        /// Why.
        message: String,
    },
}

/// How far a check is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckProgress {
    /// What is looked at: `lockstep.db`, `state.db`, `chunks`, `write-ahead`.
    pub part: String,
    /// How many of them are done.
    pub done: u64,
    /// Of how many.
    pub of: u64,
}

/// What a check of the store found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// Whether SQLite's `integrity_check` was made instead of the `quick_check`.
    pub full: bool,
    /// Series and their groups looked at.
    pub series: u64,
    /// See `series`.
    pub groups: u64,
    /// Chunks decoded.
    pub chunks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub chunk_bytes: u64,
    /// Write-ahead batches decoded.
    pub batches: u64,
    /// Samples in them.
    pub batch_samples: u64,
    /// How long it took.
    pub took_ms: u64,
    /// Chunks that could not be read and were taken out, when that was asked for.
    #[serde(default)]
    pub set_aside: u64,
    /// What is wrong, at most [`PROBLEMS_MAX`].
    pub problems: Vec<CheckProblem>,
    /// How many problems there are in all.
    pub problems_total: u64,
}

/// Problems that are told one by one; a disk that has lost a file brings millions, and the first thousand say it all.
pub const PROBLEMS_MAX: usize = 1_000;

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckProblem {
    /// The file.
    pub file: String,
    /// Where in it: a chunk, a batch, a series; what it holds, and of when.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }

    /// Adds a problem.
    pub fn add(&mut self, problem: CheckProblem) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// The archive's format this version writes, and the newest it reads.
pub const BACKUP_FORMAT: u32 = 1;

/// The first entry of a backup, `backup.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupHead {
    /// [`BACKUP_FORMAT`]; checked before anything else is believed.
    pub format: u32,
    /// The Lockstep that wrote it.
    pub version: String,
    /// When; everything acknowledged before is in it.
    pub created_ms: TimestampMs,
    /// The files that follow, in their order.
    pub files: Vec<BackupFile>,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupFile {
    /// Its name, without a folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of it, in hexadecimal.
    pub sha256: String,
}
