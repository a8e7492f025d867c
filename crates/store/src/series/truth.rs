//! What blobs hold, for those who compare it with what the tables say: backup, check, statistics.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use domain::api::store::{DiskSpace, StoreStats};
use domain::series::SelectError;
use domain::time::TimestampMs;
use tokio::sync::Mutex;

use super::{SeriesId, SeriesStore, chunk, lock, read, wal};

/// What a chunk holds, as its row says or as its blob does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkTruth {
    /// Series with samples, and those that have a place at least: a row may count either.
    pub(crate) series: (u64, u64),
    /// Samples, or the buckets of a roll-up.
    pub(crate) samples: u64,
    /// The first and the last millisecond.
    pub(crate) span: Option<(TimestampMs, TimestampMs)>,
    /// 0 for samples.
    pub(crate) resolution_ms: i64,
}

impl fmt::Display for ChunkTruth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { series, samples, .. } = self;
        write!(f, "{samples} samples of {} series", series.0)?;
        match self.span {
            Some((min_ms, max_ms)) => write!(f, " from {min_ms} to {max_ms} ms"),
            None => Ok(()),
        }
    }
}

/// What a write-ahead batch holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchTruth {
    pub(crate) samples: u64,
}

/// Decodes a whole chunk.
pub(crate) fn chunk_truth(data: &[u8]) -> Result<ChunkTruth, String> {
    let stored = chunk::Stored::decode(data).map_err(|error| error.to_string())?;
    let placed: HashSet<SeriesId> = stored.sets[0]
        .iter()
        .flat_map(|frame| &frame.series)
        .copied()
        .collect();
    Ok(ChunkTruth {
        series: (stored.ids().len() as u64, placed.len() as u64),
        samples: stored.len() as u64,
        span: stored.range(),
        resolution_ms: stored.resolution_ms,
    })
}

/// Decodes a whole batch.
pub(crate) fn batch_truth(data: &[u8]) -> Result<BatchTruth, String> {
    let entries = wal::decode(data).map_err(|error| error.to_string())?;
    let frames = entries.iter().flat_map(|entry| &entry.frames);
    Ok(BatchTruth {
        samples: frames.map(|frame| frame.samples() as u64).sum(),
    })
}

/// The write-ahead files of a folder, oldest first.
pub(crate) fn wal_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(wal::list(folder)?.into_iter().map(|(_, path)| path).collect())
}

/// What the chunks of samples, or those of roll-ups, come to.
#[derive(Debug, Clone, Default, sqlx::FromRow)]
struct Sum {
    rolled_up: bool,
    chunks: i64,
    samples: i64,
    bytes: i64,
    min_ms: Option<TimestampMs>,
    max_ms: Option<TimestampMs>,
}

impl SeriesStore {
    pub(crate) fn data_dir(&self) -> &Path {
        &self.shared.config.data_dir
    }

    /// The last number of each sending session.
    pub(crate) fn session_numbers(&self) -> Vec<(String, u64, TimestampMs)> {
        lock(&self.shared.sessions).all()
    }

    /// Held while write-ahead files are removed.
    pub(crate) fn unlinking(&self) -> &Mutex<()> {
        &self.shared.unlinking
    }

    /// The room on the disk, and whether it stops ingest.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        self.shared.space.look()
    }

    /// What is stored, counted: reads a page of each chunk, so not something for every second.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn totals(&self) -> Result<StoreStats, SelectError> {
        let sums: Vec<Sum> = sqlx::query_as(
            "SELECT resolution_ms > 0 AS rolled_up, count(*) AS chunks, sum(samples) AS samples, sum(length(data)) AS bytes,
             min(min_ms) AS min_ms, max(max_ms) AS max_ms FROM chunks GROUP BY rolled_up ORDER BY rolled_up",
        )
        .fetch_all(&self.shared.database.readers)
        .await
        .map_err(|error| SelectError::Store(Box::new(error)))?;
        let of = |rolled_up| sums.iter().find(|sum| sum.rolled_up == rolled_up).cloned();
        let (raw, rolled_up) = (of(false).unwrap_or_default(), of(true).unwrap_or_default());
        let (stats, head) = (self.stats(), self.head_span());
        let (samples, bytes) = (raw.samples.unsigned_abs(), raw.bytes.unsigned_abs());
        Ok(StoreStats {
            series: stats.series,
            chunks: (raw.chunks + rolled_up.chunks).unsigned_abs(),
            chunk_samples: samples,
            chunk_bytes: bytes,
            rollup_buckets: rolled_up.samples.unsigned_abs(),
            rollup_bytes: rolled_up.bytes.unsigned_abs(),
            bytes_per_sample: (samples > 0).then(|| bytes as f64 / samples as f64),
            head_bytes: stats.head_bytes,
            recent_chunk_bytes: stats.recent_chunk_bytes,
            cached_chunk_bytes: stats.cached_chunk_bytes,
            wal_bytes: stats.wal_bytes,
            file_bytes: file_bytes(self.data_dir()),
            oldest_ms: [raw.min_ms, rolled_up.min_ms, head.map(|(min, _)| min)]
                .into_iter()
                .flatten()
                .min(),
            newest_ms: [raw.max_ms, head.map(|(_, max)| max)].into_iter().flatten().max(),
            disk: self.disk_space(),
        })
    }

    /// The times of what memory holds.
    fn head_span(&self) -> Option<(TimestampMs, TimestampMs)> {
        let groups = read(&self.shared.index).groups();
        let spans = groups.iter().filter_map(|group| group.lock().span());
        spans.reduce(|(min, max), (from, to)| (min.min(from), max.max(to)))
    }
}

/// Bytes of all files of series and state.
fn file_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().contains(".db"))
        .filter_map(|entry| entry.metadata().ok())
        .map(|file| file.len())
        .sum()
}
