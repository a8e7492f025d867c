//! Series: named by labels, appended to in batches, read by selections.
//!
//! ```text
//! append → queue → committer: write-ahead row, then head, then the acknowledgement
//!                             head  → sealer: chunk row, then the write-ahead file is unlinked
//! prefetch ← index, head, chunks
//! ```

mod committer;
mod request;
mod seal;
mod sealer;

mod sessions;
mod window;

mod counts;
mod group_id;
mod head;
mod lane;
mod memory;
mod names;
mod segment;
mod shape;
mod wal;

mod index;
mod join;
mod pattern;
mod postings;
mod search;
mod vocabulary;

mod chunk;
mod chunk_cache;
mod chunk_data;
mod chunk_rows;
mod codec;
mod column;
mod packed;
mod pages;
mod ticks;

mod age;
mod chores;
mod compact;
mod delete;
mod plan;
mod rollup;
mod row;
mod union;

mod retention;
mod select;
pub(crate) mod space;
mod stats;
mod truth;

mod reading;

mod cores;
mod cut;
mod fetch;
mod members;
mod merge;
mod piece;

mod load;
mod open;

#[doc(hidden)]
pub mod fuzzing;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use domain::bytes::DisplayBytes;
use domain::series::Labels;
use domain::series::batch::FrameError;
use domain::time::TimestampMs;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::OpenError;
use crate::sqlite::Database;

pub use join::joined;
pub use request::{DeleteError, Deleted};
pub use select::Prefetched;
pub use shape::{Block, Shape};
pub use stats::{Latency, Stats};
pub(crate) use truth::{BatchTruth, ChunkTruth, batch_truth, chunk_truth, wal_files};

/// A sample further ahead of the clock than this is a broken clock, not a sample: it would hide all that follow.
pub const FUTURE_MS_MAX: i64 = 10 * 60_000;
/// The longest name of a sending session.
pub const SESSION_BYTES_MAX: usize = 64;
/// The most samples one append may carry; a sender with more splits them.
pub const APPEND_SAMPLES_MAX: usize = 1 << 20;
/// Samples that wait for the committer, 16 MB of values: several seconds of a thousand nodes. When full, callers wait.
const QUEUE_SAMPLES_MAX: usize = 2 << 20;
/// Appends that wait for the committer; small ones are bounded by their number.
const QUEUE_APPENDS_MAX: usize = 16_384;

const DAY_MS: i64 = 24 * 3_600_000;

/// Where and how long to keep samples.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The folder of all files; made when missing.
    pub data_dir: PathBuf,
    /// How long samples are kept. With roll-ups at least an hour longer than samples may be late.
    pub retention_ms: i64,
    /// How long their roll-ups to a minute are kept, from the samples' time on; 0 for none.
    pub rollup_1m_ms: i64,
    /// How long their roll-ups to an hour are kept, from the samples' time on; 0 for none.
    pub rollup_1h_ms: i64,
    /// The most that chunks and roll-ups may take on disk; beyond it the oldest go, whatever their age.
    pub size_max_bytes: Option<u64>,
    /// How late a sample may come; at least as long as agents spool.
    pub out_of_order_ms: i64,
    /// Samples younger than this are answered from memory.
    pub head_horizon_ms: i64,
    /// Older ones too, up to an hour, while their chunks take no more memory than this.
    pub recent_bytes_max: u64,
    /// The most memory for chunks that were read from disk and may be asked for again; 0 for none, by the machine's memory when
    /// nothing is given.
    pub chunk_cache_bytes_max: Option<u64>,
    /// The most series there may be.
    pub series_max: usize,
    /// How long the committer gathers appends before it commits them together.
    pub gather_ms: u64,
    /// The size at which the next write-ahead file is begun.
    pub wal_file_bytes: u64,
    /// The most memory for samples that are not in chunks yet, or half a kilobyte a series if that is more; appends wait when
    /// it is full.
    pub head_bytes_max: u64,
    /// The SQLite VFS of all files; none is the system's. For tests that break the disk.
    pub vfs: Option<&'static str>,
    /// Below this many free bytes on the disk no samples are taken; by the size of the disk when none is given.
    pub min_free_bytes: Option<u64>,
    /// How long nothing is written after a write that found no room, although the disk says that it has some.
    pub full_pause_ms: u64,
}

impl StoreConfig {
    /// The defaults: 15 days, 90 days by the minute, 2 years by the hour, 70 minutes late, 2 minutes in memory, a million series, commits each 100 ms.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            retention_ms: 15 * DAY_MS,
            rollup_1m_ms: 90 * DAY_MS,
            rollup_1h_ms: 2 * 365 * DAY_MS,
            size_max_bytes: None,
            out_of_order_ms: 70 * 60_000,
            head_horizon_ms: 2 * 60_000,
            // An hour of 5,000 series at 1 Hz: what dashboards of a smaller cluster ask for again and again.
            recent_bytes_max: 32 << 20,
            chunk_cache_bytes_max: None,
            series_max: 1_000_000,
            gather_ms: 100,
            // About two minutes of a thousand nodes: what is unlinked late costs only this.
            wal_file_bytes: 64 << 20,
            // A thousand nodes need 100 MB.
            head_bytes_max: 128 << 20,
            vfs: None,
            min_free_bytes: None,
            full_pause_ms: 5_000,
        }
    }
}

/// The store's own name of a series, good until the process ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub u32);

/// Samples to be stored together.
#[derive(Debug, Clone, Default)]
pub struct Append {
    /// The sending session (at most [`SESSION_BYTES_MAX`]) and its number for this append, rising. An append whose number
    /// was seen before is acknowledged and not applied again.
    pub source: Option<(String, u64)>,
    /// The samples.
    pub blocks: Vec<Block>,
}

/// What became of an append's samples. All of it is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// New samples.
    pub accepted: u64,
    /// Samples that were there already, with the same value.
    pub duplicates: u64,
    /// Samples at a time that has another value already; the first value stays.
    pub conflicts: u64,
    /// Samples before the out-of-order window, dropped.
    pub too_old: u64,
    /// Samples more than [`FUTURE_MS_MAX`] ahead, dropped.
    pub too_new: u64,
    /// The whole append was seen before, and nothing was done.
    pub already_seen: bool,
}

/// Why nothing of an append was stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// A frame whose parts do not fit together.
    #[error(transparent)]
    Malformed(#[from] FrameError),
    /// More than [`APPEND_SAMPLES_MAX`].
    #[error("an append of {samples} samples is larger than the {APPEND_SAMPLES_MAX} allowed; split it")]
    TooLarge {
        /// Cells of its frames.
        samples: usize,
    },
    /// A session's name that is empty or longer than [`SESSION_BYTES_MAX`].
    #[error("a session's name has 1 to {SESSION_BYTES_MAX} bytes")]
    Session,
    /// An id that names no series; it may have been forgotten after its retention. Resolve its labels again.
    #[error("series id {} is not known; resolve its labels again", .0.0)]
    UnknownSeries(SeriesId),
    /// The write-ahead could not be written. Nothing is lost while the sender keeps its samples and repeats.
    #[error("samples could not be written; look at the free space and health of the data folder's disk")]
    Write(#[source] Arc<sqlx::Error>),
    /// Too little room is left on the disk. The sender keeps its samples and repeats, as it does after a failed write.
    #[error(
        "the collector's disk is full ({} free, {} needed); send again when there is room",
        DisplayBytes(*free), DisplayBytes(*floor)
    )]
    DiskFull {
        /// Free bytes.
        free: u64,
        /// Bytes that must be free.
        floor: u64,
    },
    /// An earlier append of the same session failed: repeat from that one.
    #[error("an earlier append of this session failed; repeat from that one")]
    OutOfTurn,
    /// The committer or the sealer is behind, and there was no room in time.
    #[error("the store takes no more samples at the moment; send them again in some seconds")]
    Busy,
    /// The store is closing.
    #[error("the store is closed")]
    Closed,
}

/// No more series: usually a label with a value of its own for each request, process or second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {series_max} series already, and no more are allowed; look for a label with too many values"
)]
pub struct SeriesLimit {
    /// The limit.
    pub series_max: usize,
}

/// All series. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SeriesStore {
    shared: Arc<Shared>,
    doors: Arc<Doors>,
}

/// The ways to the background tasks, which end when these are dropped.
#[derive(Debug)]
struct Doors {
    appends: Mutex<Option<mpsc::Sender<committer::Request>>>,
    passes: Mutex<Option<mpsc::Sender<request::Request>>>,
    queue: Arc<Semaphore>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What the background tasks and the readers share.
#[derive(Debug)]
struct Shared {
    config: StoreConfig,
    database: Database,
    index: RwLock<index::Index>,
    /// Held by the committer while it puts a batch into the head, and by whoever freezes a group.
    between_batches: Mutex<()>,
    sessions: Mutex<sessions::Sessions>,
    wal_files: wal::ClosedFiles,
    wal_bytes: AtomicI64,
    /// Says that there are series whose names are not durable yet.
    new_names: Notify,
    /// Asks the committer to begin another write-ahead file: chunks hold all there is in this one.
    wal_unused: mpsc::Sender<wal::Closed>,
    memory: memory::Memory,
    chunk_cache: Mutex<chunk_cache::ChunkCache>,
    next_chunk: AtomicI64,
    metadata: RwLock<std::collections::BTreeMap<String, Metadata>>,
    counters: stats::Counters,
    space: space::Space,
    /// Held while write-ahead files are removed, and by a check while it reads one.
    unlinking: tokio::sync::Mutex<()>,
    /// The time of the latest append.
    now_ms: AtomicI64,
    /// Keeps other processes out as long as any task lives.
    _lock: Arc<std::fs::File>,
}

/// TYPE and HELP of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// `gauge`, `counter`, `histogram`, …
    pub kind: String,
    /// A sentence.
    pub help: String,
}

impl SeriesStore {
    /// The id of a series; new labels get a new one.
    ///
    /// # Errors
    /// When there are as many series as allowed.
    pub fn resolve(&self, labels: &Labels) -> Result<SeriesId, SeriesLimit> {
        let index = &self.shared.index;
        if let Some(id) = read(index).id(labels) {
            return Ok(id);
        }
        let id = write(index).resolve(labels)?;
        self.shared.new_names.notify_one();
        Ok(id)
    }

    /// Stores samples; returns when they are durable. When the store is behind, waits for it: its sender's flow control.
    ///
    /// A session may have several appends on their way, in the order of their numbers; after an error it begins again at
    /// the one that failed.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing of the append is then kept, and the sender may repeat it as it is.
    pub async fn append(&self, append: Append, now_ms: TimestampMs) -> Result<Appended, AppendError> {
        self.append_within(append, now_ms, Duration::MAX).await
    }

    /// The same, but gives up when there is no room for it within `patience`: for senders that have to be told.
    ///
    /// # Errors
    /// As [`SeriesStore::append`], and [`AppendError::Busy`].
    pub async fn append_within(
        &self,
        append: Append,
        now_ms: TimestampMs,
        patience: Duration,
    ) -> Result<Appended, AppendError> {
        let started = std::time::Instant::now();
        let answer = self.commit(append, now_ms, patience).await;
        self.shared.counters.note(&answer, started.elapsed());
        answer
    }

    async fn commit(
        &self,
        append: Append,
        now_ms: TimestampMs,
        patience: Duration,
    ) -> Result<Appended, AppendError> {
        self.check_space(&append)?;
        let samples = self.check(&append)?;
        self.shared.now_ms.store(now_ms, Ordering::Relaxed);
        let room = self.room(samples);
        let room = tokio::time::timeout(patience, room)
            .await
            .map_err(|_| AppendError::Busy)??;
        let mut appended = Appended::default();
        let entry = window::within_window(append, now_ms, self.shared.config.out_of_order_ms, &mut appended);
        let (reply, answer) = oneshot::channel();
        let door = lock(&self.doors.appends).clone().ok_or(AppendError::Closed)?;
        let request = committer::Request {
            entry,
            appended,
            samples,
            now_ms,
            reply,
            _room: room,
        };
        door.send(request).await.map_err(|_| AppendError::Closed)?;
        drop(door);
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Room in the queue and in the head.
    async fn room(&self, samples: usize) -> Result<OwnedSemaphorePermit, AppendError> {
        let permits = u32::try_from(samples.max(1)).expect("an append is smaller than 2^32");
        let room = Arc::clone(&self.doors.queue).acquire_many_owned(permits).await;
        self.shared.memory.has_room().await;
        room.map_err(|_| AppendError::Closed)
    }

    /// Nothing begins that the disk may have no room for.
    fn check_space(&self, append: &Append) -> Result<(), AppendError> {
        self.shared.space.check().inspect_err(|_| {
            if let Some(source) = &append.source {
                lock(&self.shared.sessions).note_refusal(source);
            }
        })
    }

    fn check(&self, append: &Append) -> Result<usize, AppendError> {
        if let Some((session, _)) = &append.source
            && !(1..=SESSION_BYTES_MAX).contains(&session.len())
        {
            return Err(AppendError::Session);
        }
        append.blocks.iter().try_for_each(Block::check)?;
        let samples: usize = append.blocks.iter().map(|block| block.values.len()).sum();
        if samples > APPEND_SAMPLES_MAX {
            return Err(AppendError::TooLarge { samples });
        }
        let index = read(&self.shared.index);
        append
            .blocks
            .iter()
            .try_for_each(|block| block.shape.note_use(&index))?;
        Ok(samples)
    }

    /// Seals everything in memory into chunks now, as happens by itself with time.
    ///
    /// # Errors
    /// When the database cannot be written; the samples then stay in memory and in the write-ahead.
    pub async fn seal_now(&self) -> Result<(), AppendError> {
        self.pass(|reply| request::Request::Seal { reply }).await
    }

    /// Drops what is older than the retention now, as happens by itself every few minutes.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn retain_now(&self, now_ms: TimestampMs) -> Result<(), AppendError> {
        self.pass(|reply| request::Request::Retain { now_ms, reply })
            .await
    }

    async fn pass<T>(
        &self,
        request: impl FnOnce(request::Reply<T>) -> request::Request,
    ) -> Result<T, AppendError> {
        let (reply, answer) = oneshot::channel();
        let door = lock(&self.doors.passes).clone().ok_or(AppendError::Closed)?;
        door.send(request(reply)).await.map_err(|_| AppendError::Closed)?;
        drop(door);
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Takes no more appends and waits for those under way.
    pub async fn close(&self) {
        drop(lock(&self.doors.appends).take());
        drop(lock(&self.doors.passes).take());
        let tasks = std::mem::take(&mut *lock(&self.doors.tasks));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the series store ended badly");
            }
        }
        self.shared.database.close().await;
    }

    pub(crate) async fn open(
        config: StoreConfig,
        folder_lock: Arc<std::fs::File>,
    ) -> Result<Self, OpenError> {
        open::open(config, folder_lock).await
    }
}

/// Locks, also after a panic elsewhere: what the locks of this crate guard is consistent between any two statements.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
