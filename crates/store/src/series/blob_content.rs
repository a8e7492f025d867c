//! Decodes the content of blobs, for backup, check and statistics, which compare it with the tables.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use domain::api::store::{DiskSpace, StoreStats};
use domain::series::SelectError;
use domain::time::TimestampMs;
use tokio::sync::Mutex;

use super::{SeriesId, SeriesStore, chunk, lock, read, wal};

/// The content of a chunk, according to its row or its blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkContent {
    /// The number of series with samples, and the number with at least a place. A row may contain either.
    pub(crate) series: (u64, u64),
    /// The number of samples, or of roll-up buckets.
    pub(crate) samples: u64,
    /// The first and the last millisecond.
    pub(crate) span: Option<(TimestampMs, TimestampMs)>,
    /// 0 for samples.
    pub(crate) resolution_ms: i64,
}

impl fmt::Display for ChunkContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { series, samples, .. } = self;
        write!(f, "{samples} samples of {} series", series.0)?;
        match self.span {
            Some((min_ms, max_ms)) => write!(f, " from {min_ms} to {max_ms} ms"),
            None => Ok(()),
        }
    }
}

/// Decodes a whole chunk.
pub(crate) fn chunk_content(data: &[u8]) -> Result<ChunkContent, String> {
    let stored = chunk::Stored::decode(data).map_err(|error| error.to_string())?;
    let placed: HashSet<SeriesId> = stored.sets[0]
        .iter()
        .flat_map(|frame| &frame.series)
        .copied()
        .collect();
    Ok(ChunkContent {
        series: (stored.ids().len() as u64, placed.len() as u64),
        samples: stored.len() as u64,
        span: stored.range(),
        resolution_ms: stored.resolution_ms,
    })
}

/// Decodes a whole write-ahead batch, and returns the number of its samples.
pub(crate) fn batch_samples(data: &[u8]) -> Result<u64, String> {
    let entries = wal::decode(data).map_err(|error| error.to_string())?;
    let frames = entries.iter().flat_map(|entry| &entry.frames);
    Ok(frames.map(|frame| frame.samples() as u64).sum())
}

/// Returns the write-ahead files of a folder, oldest first.
pub(crate) fn wal_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(wal::list(folder)?.into_iter().map(|(_, path)| path).collect())
}

/// Totals of all chunks of samples, or of all roll-ups.
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

    /// Returns the last number of each sending session.
    pub(crate) fn session_numbers(&self) -> Vec<(String, u64, TimestampMs)> {
        lock(&self.shared.sessions).all()
    }

    /// The lock that is held while write-ahead files are removed.
    pub(crate) fn unlinking(&self) -> &Mutex<()> {
        &self.shared.unlinking
    }

    /// Returns the free space of the disk, and whether it stops ingest.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        self.shared.disk_guard.disk_space()
    }

    /// Returns the totals of all stored samples. This reads a page of each chunk, so do not call it every second.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
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

    /// Returns the first and the last time in memory.
    fn head_span(&self) -> Option<(TimestampMs, TimestampMs)> {
        let groups = read(&self.shared.index).groups();
        let spans = groups.iter().filter_map(|group| group.lock().span());
        spans.reduce(|(min, max), (from, to)| (min.min(from), max.max(to)))
    }
}

/// Returns the size of all files of series and state in bytes.
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
