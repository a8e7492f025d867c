//! Statistics of the store, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{AppendError, Appended, SeriesStore, lock, read};

/// The upper bounds of the append latency's buckets, in seconds.
const LATENCY_BOUNDS_S: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0];

/// Current values, and totals since the start of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// The number of series.
    pub series: u64,
    /// Bytes of memory for names, labels and postings.
    pub index_bytes: u64,
    /// Bytes of memory for samples that are not in chunks yet.
    pub head_bytes: u64,
    /// Bytes of memory for chunks that are kept for recent queries.
    pub recent_chunk_bytes: u64,
    /// Bytes of memory for chunks on disk that are cached for repeated queries.
    pub cached_chunk_bytes: u64,
    /// Groups whose chunks a query found in this cache.
    pub chunk_cache_hits_total: u64,
    /// Groups whose chunks a query had to read from disk.
    pub chunk_cache_misses_total: u64,
    /// Bytes of write-ahead files.
    pub wal_bytes: u64,
    /// Bytes of the database file with the chunks.
    pub chunk_file_bytes: u64,
    /// Appends acknowledged.
    pub appends_total: u64,
    /// Appends refused or failed.
    pub appends_failed_total: u64,
    /// Samples stored.
    pub samples_total: u64,
    /// Samples that were already stored with the same value.
    pub duplicates_total: u64,
    /// Samples dropped because another value was stored at the same time.
    pub conflicts_total: u64,
    /// Samples dropped because they were too old.
    pub too_old_total: u64,
    /// Samples dropped because they were too far ahead of the clock.
    pub too_new_total: u64,
    /// Samples sealed into chunks.
    pub sealed_samples_total: u64,
    /// Bytes of the chunks that they were sealed into.
    pub sealed_bytes_total: u64,
    /// The time from the call of an append to its acknowledgement.
    pub append_latency: Latency,
}

/// A histogram of the append latency.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Latency {
    /// The upper bound in seconds, and the number of appends that took at most this long.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all latencies, in seconds.
    pub sum_s: f64,
    /// The number of appends.
    pub count: u64,
}

impl SeriesStore {
    /// Returns the statistics of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let closed: u64 = lock(&shared.wal_files).iter().map(|file| file.bytes).sum();
        let chunk_file = shared.config.data_dir.join("lockstep.db");
        Stats {
            series: read(&shared.index).len() as u64,
            index_bytes: read(&shared.index).heap_bytes() as u64,
            head_bytes: shared.memory.unsealed(),
            recent_chunk_bytes: shared.memory.sealed(),
            cached_chunk_bytes: lock(&shared.chunk_cache).bytes() as u64,
            wal_bytes: closed + shared.wal_bytes.load(Ordering::Relaxed).unsigned_abs(),
            chunk_file_bytes: std::fs::metadata(chunk_file).map_or(0, |file| file.len()),
            ..shared.counters.stats()
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    appends: AtomicU64,
    failed: AtomicU64,
    samples: AtomicU64,
    duplicates: AtomicU64,
    conflicts: AtomicU64,
    too_old: AtomicU64,
    too_new: AtomicU64,
    sealed_samples: AtomicU64,
    sealed_bytes: AtomicU64,
    chunk_cache_hits: AtomicU64,
    chunk_cache_misses: AtomicU64,
    latency_us: AtomicU64,
    latency: [AtomicU64; LATENCY_BOUNDS_S.len()],
}

impl Counters {
    pub(crate) fn note(&self, answer: &Result<Appended, AppendError>, took: Duration) {
        let Ok(appended) = answer else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.appends.fetch_add(1, Ordering::Relaxed);
        self.samples.fetch_add(appended.accepted, Ordering::Relaxed);
        self.duplicates.fetch_add(appended.duplicates, Ordering::Relaxed);
        self.conflicts.fetch_add(appended.conflicts, Ordering::Relaxed);
        self.too_old.fetch_add(appended.too_old, Ordering::Relaxed);
        self.too_new.fetch_add(appended.too_new, Ordering::Relaxed);
        self.latency_us.fetch_add(
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        let bucket = LATENCY_BOUNDS_S
            .iter()
            .position(|bound| took.as_secs_f64() <= *bound);
        if let Some(bucket) = bucket {
            self.latency[bucket].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_chunk(&self, samples: u64, bytes: u64) {
        self.sealed_samples.fetch_add(samples, Ordering::Relaxed);
        self.sealed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_chunk_lookup(&self, hit: bool) {
        let counter = match hit {
            true => &self.chunk_cache_hits,
            false => &self.chunk_cache_misses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut below = 0;
        let cumulated = LATENCY_BOUNDS_S.iter().zip(&self.latency).map(|(bound, count)| {
            below += get(count);
            (*bound, below)
        });
        let buckets = cumulated.collect();
        Stats {
            appends_total: get(&self.appends),
            appends_failed_total: get(&self.failed),
            samples_total: get(&self.samples),
            duplicates_total: get(&self.duplicates),
            conflicts_total: get(&self.conflicts),
            too_old_total: get(&self.too_old),
            too_new_total: get(&self.too_new),
            sealed_samples_total: get(&self.sealed_samples),
            sealed_bytes_total: get(&self.sealed_bytes),
            chunk_cache_hits_total: get(&self.chunk_cache_hits),
            chunk_cache_misses_total: get(&self.chunk_cache_misses),
            append_latency: Latency {
                buckets,
                sum_s: get(&self.latency_us) as f64 / 1e6,
                count: get(&self.appends),
            },
            ..Stats::default()
        }
    }
}
