//! The series store: appends samples in batches and reads them by selection. A series is named by its labels.
//!
//! ```text
//! append → queue → committer: writes a write-ahead row, adds to the head, acknowledges
//!                             head  → sealer: writes a chunk row, then removes the write-ahead file
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
mod compact;
mod delete;
mod maintenance;
mod plan;
mod rollup;
mod row;
mod union;

mod blob_content;
pub(crate) mod disk_guard;
mod retention;
mod select;
mod shared_samples;
mod stats;

mod reading;

mod cut;
mod fetch;
mod members;
mod merge;
mod piece;
mod work_pool;

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

pub(crate) use blob_content::{ChunkContent, batch_samples, chunk_content, wal_files};
pub use join::joined;
pub use request::{DeleteError, Deleted};
pub use select::Prefetched;
pub use shape::{Block, Shape};
pub use stats::{Latency, Stats};

/// Samples further ahead of the clock than this are dropped: they come from a wrong clock and would hide all later samples.
pub const FUTURE_MS_MAX: i64 = 10 * 60_000;
/// The maximum length of a session name, in bytes.
pub const SESSION_BYTES_MAX: usize = 64;
/// The maximum number of samples in one append. A sender with more samples splits them.
pub const APPEND_SAMPLES_MAX: usize = 1 << 20;
/// The maximum number of samples that wait for the committer: 16 MB of values, several seconds of 1,000 nodes. When the queue
/// is full, callers wait.
const QUEUE_SAMPLES_MAX: usize = 2 << 20;
/// The maximum number of appends that wait for the committer. This bounds queues of many small appends.
const QUEUE_APPENDS_MAX: usize = 16_384;

const DAY_MS: i64 = 24 * 3_600_000;

/// The settings of the store: location, retention and limits.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The folder of all files. It is created if it is missing.
    pub data_dir: PathBuf,
    /// How long samples are kept. If there are roll-ups, at least [`StoreConfig::out_of_order_ms`] plus one hour.
    pub retention_ms: i64,
    /// How long one-minute roll-ups are kept, counted from the time of the samples. 0 disables them.
    pub rollup_1m_ms: i64,
    /// How long one-hour roll-ups are kept, counted from the time of the samples. 0 disables them.
    pub rollup_1h_ms: i64,
    /// The maximum size of chunks and roll-ups on disk. Beyond it, the oldest are deleted regardless of their age.
    pub size_max_bytes: Option<u64>,
    /// How late a sample may arrive. At least as long as agents keep samples in their spool.
    pub out_of_order_ms: i64,
    /// Samples younger than this are always read from memory.
    pub head_horizon_ms: i64,
    /// Older samples, up to one hour, are also read from memory while their chunks take at most this much memory.
    pub recent_bytes_max: u64,
    /// The maximum memory for chunks that were read from disk and may be read again. 0 disables the cache; `None` derives the
    /// limit from the machine's memory.
    pub chunk_cache_bytes_max: Option<u64>,
    /// The maximum number of series.
    pub series_max: usize,
    /// How long the committer waits for more appends before it commits them together.
    pub gather_ms: u64,
    /// The size at which the next write-ahead file is started.
    pub wal_file_bytes: u64,
    /// The maximum memory for samples that are not in chunks yet, or half a kilobyte per series if that is more. Appends wait
    /// when it is full.
    pub head_bytes_max: u64,
    /// The SQLite VFS of all files; `None` for the system's. Tests use it to simulate disk faults.
    pub vfs: Option<&'static str>,
    /// The store accepts no samples while the disk has fewer free bytes than this. `None` derives the limit from the size of
    /// the disk.
    pub min_free_bytes: Option<u64>,
    /// How long the store writes nothing after a write failed for lack of space, even if the disk reports free space.
    pub full_pause_ms: u64,
}

impl StoreConfig {
    /// Returns the defaults: 15 days of samples, 90 days of one-minute and 2 years of one-hour roll-ups, samples up to 70
    /// minutes late, 2 minutes in memory, one million series, a commit every 100 ms.
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
            // One hour of 5,000 series at 1 Hz: what dashboards of a smaller cluster query repeatedly.
            recent_bytes_max: 32 << 20,
            chunk_cache_bytes_max: None,
            series_max: 1_000_000,
            gather_ms: 100,
            // About two minutes of 1,000 nodes. This also bounds what a file that is removed late costs.
            wal_file_bytes: 64 << 20,
            // 1,000 nodes need 100 MB.
            head_bytes_max: 128 << 20,
            vfs: None,
            min_free_bytes: None,
            full_pause_ms: 5_000,
        }
    }
}

/// The store's number for a series. It is valid until the process ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub u32);

/// Samples that are stored together.
#[derive(Debug, Clone, Default)]
pub struct Append {
    /// The sending session (a name of at most [`SESSION_BYTES_MAX`] bytes) and the ascending number of this append within it.
    /// An append whose number was already seen is acknowledged but not applied again.
    pub source: Option<(String, u64)>,
    /// The samples.
    pub blocks: Vec<Block>,
}

/// The result of an append: how many samples were stored or dropped. What was stored is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// New samples.
    pub accepted: u64,
    /// Samples that were already stored with the same value.
    pub duplicates: u64,
    /// Samples for which another value is stored at the same time. The first value stays.
    pub conflicts: u64,
    /// Samples older than the out-of-order window. They are dropped.
    pub too_old: u64,
    /// Samples more than [`FUTURE_MS_MAX`] ahead of the clock. They are dropped.
    pub too_new: u64,
    /// The whole append was seen before, so nothing was done.
    pub already_seen: bool,
}

/// The reason why nothing of an append was stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The parts of a frame do not fit together.
    #[error(transparent)]
    Malformed(#[from] FrameError),
    /// The append has more than [`APPEND_SAMPLES_MAX`] samples.
    #[error("an append of {samples} samples exceeds the limit of {APPEND_SAMPLES_MAX}; split it")]
    TooLarge {
        /// The number of cells of its frames.
        samples: usize,
    },
    /// The name of the session is empty or longer than [`SESSION_BYTES_MAX`].
    #[error("the name of a session must have 1 to {SESSION_BYTES_MAX} bytes")]
    Session,
    /// No series has this id. It may have been removed after its retention: resolve its labels again.
    #[error("series id {} does not exist; resolve its labels again", .0.0)]
    UnknownSeries(SeriesId),
    /// The write-ahead log could not be written. Nothing is lost if the sender keeps its samples and sends them again.
    #[error("samples could not be written; check the free space and health of the data folder's disk")]
    Write(#[source] Arc<sqlx::Error>),
    /// The disk has too little free space. The sender keeps its samples and sends them again, as after a failed write.
    #[error(
        "the collector's disk is full ({} free, {} needed); send again when there is free space",
        DisplayBytes(*free), DisplayBytes(*floor)
    )]
    DiskFull {
        /// Free bytes.
        free: u64,
        /// The number of bytes that must be free.
        floor: u64,
    },
    /// An earlier append of the same session failed. The sender repeats from that one.
    #[error("an earlier append of this session failed; repeat from that one")]
    OutOfTurn,
    /// The committer or the sealer is behind, and the queue had no room in time.
    #[error("the store accepts no more samples at the moment; send them again in a few seconds")]
    Busy,
    /// The store is closing.
    #[error("the store is closed")]
    Closed,
}

/// The limit of series is reached. The usual cause is a label with a different value for each request, process or second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limit of {series_max} series is reached; look for a label with too many values")]
pub struct SeriesLimit {
    /// The limit.
    pub series_max: usize,
}

/// The store of all series. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SeriesStore {
    shared: Arc<Shared>,
    channels: Arc<TaskChannels>,
}

/// The channels to the background tasks. The tasks end when these are dropped.
#[derive(Debug)]
struct TaskChannels {
    appends: Mutex<Option<mpsc::Sender<committer::Request>>>,
    passes: Mutex<Option<mpsc::Sender<request::Request>>>,
    queue: Arc<Semaphore>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The state that background tasks and readers share.
#[derive(Debug)]
struct Shared {
    config: StoreConfig,
    database: Database,
    index: RwLock<index::Index>,
    /// Held by the committer while it adds a batch to the head, and by any task that freezes a group.
    between_batches: Mutex<()>,
    sessions: Mutex<sessions::Sessions>,
    wal_files: wal::ClosedFiles,
    wal_bytes: AtomicI64,
    /// Signals that the names of some series are not durable yet.
    new_names: Notify,
    /// Requests that the committer starts another write-ahead file, because all samples of the current one are in chunks.
    wal_unused: mpsc::Sender<wal::Closed>,
    memory: memory::Memory,
    chunk_cache: Mutex<chunk_cache::ChunkCache>,
    next_chunk: AtomicI64,
    metadata: RwLock<std::collections::BTreeMap<String, Metadata>>,
    counters: stats::Counters,
    disk_guard: disk_guard::DiskGuard,
    /// Held while write-ahead files are removed, and by a check while it reads one.
    unlinking: tokio::sync::Mutex<()>,
    /// The time of the latest append.
    now_ms: AtomicI64,
    /// Keeps other processes out while any task of the store runs.
    _lock: Arc<std::fs::File>,
}

/// The type and the help text of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// `gauge`, `counter`, `histogram`, …
    pub kind: String,
    /// One sentence.
    pub help: String,
}

impl SeriesStore {
    /// Returns the id of the series with these labels. A new series gets a new id.
    ///
    /// # Errors
    /// Fails if the limit of series is reached.
    pub fn resolve(&self, labels: &Labels) -> Result<SeriesId, SeriesLimit> {
        let index = &self.shared.index;
        if let Some(id) = read(index).id(labels) {
            return Ok(id);
        }
        let id = write(index).resolve(labels)?;
        self.shared.new_names.notify_one();
        Ok(id)
    }

    /// Stores samples and returns when they are durable. If the store is behind, the call waits, which slows down the sender.
    ///
    /// A session may have several appends in flight, in the order of their numbers. After an error it repeats from the append
    /// that failed.
    ///
    /// # Errors
    /// See [`AppendError`]. After an error nothing of the append is stored, and the sender may repeat it unchanged.
    pub async fn append(&self, append: Append, now_ms: TimestampMs) -> Result<Appended, AppendError> {
        self.append_within(append, now_ms, Duration::MAX).await
    }

    /// Like [`SeriesStore::append`], but fails if the store has no room for the append within `timeout`. For senders that must
    /// report this.
    ///
    /// # Errors
    /// The errors of [`SeriesStore::append`], and [`AppendError::Busy`].
    pub async fn append_within(
        &self,
        append: Append,
        now_ms: TimestampMs,
        timeout: Duration,
    ) -> Result<Appended, AppendError> {
        let started = std::time::Instant::now();
        let answer = self.commit(append, now_ms, timeout).await;
        self.shared.counters.note(&answer, started.elapsed());
        answer
    }

    async fn commit(
        &self,
        append: Append,
        now_ms: TimestampMs,
        timeout: Duration,
    ) -> Result<Appended, AppendError> {
        self.check_space(&append)?;
        let samples = self.check(&append)?;
        self.shared.now_ms.store(now_ms, Ordering::Relaxed);
        let room = self.room(samples);
        let room = tokio::time::timeout(timeout, room)
            .await
            .map_err(|_| AppendError::Busy)??;
        let mut appended = Appended::default();
        let entry = window::within_window(append, now_ms, self.shared.config.out_of_order_ms, &mut appended);
        let (reply, answer) = oneshot::channel();
        let sender = lock(&self.channels.appends).clone().ok_or(AppendError::Closed)?;
        let request = committer::Request {
            entry,
            appended,
            samples,
            now_ms,
            reply,
            _room: room,
        };
        sender.send(request).await.map_err(|_| AppendError::Closed)?;
        drop(sender);
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Waits for room in the queue and in the head.
    async fn room(&self, samples: usize) -> Result<OwnedSemaphorePermit, AppendError> {
        let permits = u32::try_from(samples.max(1)).expect("an append is smaller than 2^32");
        let room = Arc::clone(&self.channels.queue).acquire_many_owned(permits).await;
        self.shared.memory.has_room().await;
        room.map_err(|_| AppendError::Closed)
    }

    /// Refuses an append if the disk may have no room for it.
    fn check_space(&self, append: &Append) -> Result<(), AppendError> {
        self.shared.disk_guard.check().inspect_err(|_| {
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

    /// Seals all samples in memory into chunks now. Otherwise this happens over time.
    ///
    /// # Errors
    /// Fails if the database cannot be written. The samples then stay in memory and in the write-ahead log.
    pub async fn seal_now(&self) -> Result<(), AppendError> {
        self.pass(|reply| request::Request::Seal { reply }).await
    }

    /// Drops samples older than the retention now. Otherwise this happens every few minutes.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub async fn retain_now(&self, now_ms: TimestampMs) -> Result<(), AppendError> {
        self.pass(|reply| request::Request::Retain { now_ms, reply })
            .await
    }

    async fn pass<T>(
        &self,
        request: impl FnOnce(request::Reply<T>) -> request::Request,
    ) -> Result<T, AppendError> {
        let (reply, answer) = oneshot::channel();
        let sender = lock(&self.channels.passes).clone().ok_or(AppendError::Closed)?;
        sender
            .send(request(reply))
            .await
            .map_err(|_| AppendError::Closed)?;
        drop(sender);
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Accepts no more appends and waits for those in flight.
    pub async fn close(&self) {
        drop(lock(&self.channels.appends).take());
        drop(lock(&self.channels.passes).take());
        let tasks = std::mem::take(&mut *lock(&self.channels.tasks));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the series store failed");
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

/// Locks the mutex, even after a panic elsewhere: what the locks of this crate guard is consistent between any two statements.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
