//! Opens the series store: reads names from the tables, replays unsealed samples from the write-ahead log, starts the two
//! tasks.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use domain::series::Frame;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::chunk_cache::{self, ChunkCache};
use super::disk_guard::DiskGuard;
use super::index::Index;
use super::memory::Memory;
use super::wal::{self, ClosedFile, ClosedFiles, Wal};
use super::{
    Block, Metadata, QUEUE_APPENDS_MAX, QUEUE_SAMPLES_MAX, SeriesId, SeriesStore, Shape, Shared, StoreConfig,
    TaskChannels,
};
use super::{committer, load, lock, read, sealer, sessions, stats};
use crate::OpenError;
use crate::sqlite::Database;

/// The maximum number of requests that wait for the sealer. Callers are people and tests.
const PASSES_MAX: usize = 4;
/// The maximum number of shapes remembered in a replay: a few per sender.
const SHAPES_MAX: usize = 10_000;

pub(crate) async fn open(config: StoreConfig, folder_lock: Arc<File>) -> Result<SeriesStore, OpenError> {
    let path = config.data_dir.join("lockstep.db");
    let database = Database::open(
        &path,
        &sqlx::migrate!("../../migrations/sqlite/series"),
        config.vfs,
    )
    .await?;
    let names = load::index(&database, config.series_max).await;
    let (index, sealed_batch) = names.map_err(|source| OpenError::Database {
        path: path.clone(),
        source,
    })?;
    let rest = async {
        Ok((
            read_sessions(&database).await?,
            read_metadata(&database).await?,
            next_chunk(&database).await?,
        ))
    };
    let (sessions, metadata, next_chunk) = rest
        .await
        .map_err(|source| OpenError::Database { path, source })?;
    let (wal_unused, closings) = mpsc::channel(1);
    let shared = Arc::new(Shared {
        memory: Memory::new(config.head_bytes_max, config.recent_bytes_max),
        chunk_cache: Mutex::new(ChunkCache::new(
            config
                .chunk_cache_bytes_max
                .unwrap_or_else(chunk_cache::bytes_max_of_machine),
        )),
        disk_guard: DiskGuard::new(
            &config.data_dir,
            config.min_free_bytes,
            Duration::from_millis(config.full_pause_ms),
        ),
        config,
        database,
        index: RwLock::new(index),
        between_batches: Mutex::default(),
        sessions: Mutex::new(sessions),
        wal_files: ClosedFiles::default(),
        wal_bytes: AtomicI64::default(),
        new_names: Notify::new(),
        wal_unused,
        next_chunk: AtomicI64::new(next_chunk),
        metadata: RwLock::new(metadata),
        counters: stats::Counters::default(),
        now_ms: AtomicI64::default(),
        unlinking: tokio::sync::Mutex::default(),
        _lock: folder_lock,
    });
    let wal = replay(&shared, sealed_batch).await?;
    Ok(start(shared, wal, closings))
}

fn start(shared: Arc<Shared>, wal: Wal, closings: mpsc::Receiver<wal::Closed>) -> SeriesStore {
    let (appends, append_requests) = mpsc::channel(QUEUE_APPENDS_MAX);
    let (passes, pass_requests) = mpsc::channel(PASSES_MAX);
    let tasks = vec![
        tokio::spawn(committer::run(
            Arc::clone(&shared),
            wal,
            append_requests,
            closings,
        )),
        tokio::spawn(sealer::run(Arc::clone(&shared), pass_requests)),
    ];
    let channels = TaskChannels {
        appends: Mutex::new(Some(appends)),
        passes: Mutex::new(Some(passes)),
        queue: Arc::new(Semaphore::new(QUEUE_SAMPLES_MAX)),
        tasks: Mutex::new(tasks),
    };
    SeriesStore {
        shared,
        channels: Arc::new(channels),
    }
}

async fn read_sessions(database: &Database) -> Result<sessions::Sessions, sqlx::Error> {
    let mut sessions = sessions::Sessions::default();
    let rows: Vec<(String, i64, i64)> = sqlx::query_as("SELECT session, seq, seen_ms FROM sessions")
        .fetch_all(&database.readers)
        .await?;
    for (session, seq, seen_ms) in rows {
        sessions.restore(session, seq as u64, seen_ms);
    }
    Ok(sessions)
}

async fn read_metadata(database: &Database) -> Result<BTreeMap<String, Metadata>, sqlx::Error> {
    let rows: Vec<(String, String, String)> = sqlx::query_as("SELECT name, type, help FROM metadata")
        .fetch_all(&database.readers)
        .await?;
    Ok(rows
        .into_iter()
        .map(|(name, kind, help)| (name, Metadata { kind, help }))
        .collect())
}

async fn next_chunk(database: &Database) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT ifnull(max(id), 0) + 1 FROM chunks")
        .fetch_one(&database.readers)
        .await
}

/// Adds unsealed samples back to the head. The files stay until chunks contain the samples.
async fn replay(shared: &Arc<Shared>, sealed_batch: u64) -> Result<Wal, OpenError> {
    let folder = &shared.config.data_dir;
    let files = wal::list(folder).map_err(|source| OpenError::Folder {
        path: folder.clone(),
        source,
    })?;
    let (mut last_file, mut last_batch) = (0, sealed_batch);
    let mut shapes = Shapes::default();
    for (number, path) in files {
        let apply = |batch, stored| put_back(shared, batch, stored, &mut shapes);
        let last = wal::replay(&path, shared.config.vfs, apply)
            .await
            .map_err(|source| OpenError::Database {
                path: path.clone(),
                source,
            })?;
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        lock(&shared.wal_files).push(ClosedFile {
            path,
            last_batch: last,
            bytes,
        });
        (last_file, last_batch) = (number, last_batch.max(last));
    }
    Ok(Wal::new(
        &shared.config,
        last_file + 1,
        last_batch + 1,
        Arc::clone(&shared.wal_files),
    ))
}

/// Shapes by their series. All batches of one sender have the same few shapes.
type Shapes = HashMap<Vec<SeriesId>, Arc<Shape>>;

fn put_back(shared: &Shared, batch: u64, stored: Vec<wal::Stored>, shapes: &mut Shapes) {
    // The time of sending is not stored. The latest sample is close enough to tell when the session was last seen.
    let times = stored
        .iter()
        .flat_map(|entry| &entry.frames)
        .filter_map(|frame| frame.times_ms.last());
    let latest = times.max().copied().unwrap_or_default();
    lock(&shared.sessions).note(stored.iter().map(|entry| &entry.source), latest);
    if shapes.len() > SHAPES_MAX {
        shapes.clear();
    }
    let index = read(&shared.index);
    let frames = stored.into_iter().flat_map(|entry| entry.frames);
    let blocks: Vec<Block> = frames.map(|frame| block(&index, frame, shapes)).collect();
    shared.memory.add_cells(committer::put(batch, &blocks).cells);
}

/// Drops the rows of series that were removed in the meantime, because they have no group. The other rows of the frame stay.
fn block(index: &Index, frame: Frame<SeriesId>, shapes: &mut Shapes) -> Block {
    let is_known = |id: &SeriesId| index.entry(*id).is_some();
    let frame = if shapes.contains_key(&frame.series) || frame.series.iter().all(is_known) {
        frame
    } else {
        known_rows(index, &frame)
    };
    let new = |ids: &Vec<SeriesId>| {
        let shape = Shape::new(index, ids.as_slice().into());
        Arc::new(shape.expect("all of its series are known"))
    };
    Block {
        shape: Arc::clone(shapes.entry(frame.series).or_insert_with_key(new)),
        times_ms: frame.times_ms,
        values: frame.values,
    }
}

fn known_rows(index: &Index, frame: &Frame<SeriesId>) -> Frame<SeriesId> {
    let known = |row: &usize| index.entry(frame.series[*row]).is_some();
    let rows: Vec<usize> = (0..frame.series.len()).filter(known).collect();
    Frame {
        series: rows.iter().map(|row| frame.series[*row]).collect(),
        times_ms: frame.times_ms.clone(),
        values: rows.iter().flat_map(|row| frame.row(*row)).copied().collect(),
    }
}
