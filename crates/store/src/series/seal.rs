//! Sealing: full or old groups of the head become chunks. The head then drops what the chunks contain.
//!
//! ```text
//! due groups → freeze → encode → one transaction: chunk rows, and each group's last batch → sealed
//!            → write-ahead files whose batches are all sealed: save session numbers, remove the file
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use domain::time::TimestampMs;
use serde_json::{Value, json};
use sqlx::{QueryBuilder, SqliteConnection};
use tokio::sync::oneshot;

use super::chunk_cache::StoredChunk;
use super::chunk_data::ChunkData;
use super::group_id::GroupId;
use super::head::{Group, GroupSamples};
use super::segment::Segment;
use super::wal::{self, ClosedFile};
use super::{Shared, chunk, lock, read};

/// The number of samples per series at which a group is sealed. Fewer compress worse, more take more memory.
const SEAL_TICKS: u64 = 96;
/// Groups that begin together, for example after a start, are first sealed after different numbers of ticks, so that afterwards
/// neither work nor memory comes in waves.
const FIRST_SEAL_TICKS: std::ops::Range<u64> = 24..24 + SEAL_TICKS;
/// The longest time that a sample waits for its chunk. It bounds what a replay reads, at the price of small chunks of slow
/// series.
const SEAL_AGE: Duration = Duration::from_secs(20 * 60);
/// How often the sealer searches groups that are due. A search over the 30,000 groups of 1,000 nodes takes a twentieth of the
/// work of storing one second of their samples.
pub(crate) const SEAL_INTERVAL: Duration = Duration::from_secs(5);
/// The number of chunks written in one transaction: about one megabyte. The committer may wait for it when there are new
/// series.
const CHUNKS_PER_COMMIT: usize = 256;
/// The number of chunks written in one statement. Each statement switches to SQLite's thread and back, which costs as much as
/// encoding a chunk.
const CHUNKS_PER_STATEMENT: usize = 32;

/// Seals everything in memory.
pub(crate) async fn seal_all(shared: &Arc<Shared>) -> Result<(), sqlx::Error> {
    seal(shared, |_, _| true).await
}

/// Seals what is due, if it is time. Long operations call this between their steps.
pub(crate) async fn seal_if_due(shared: &Arc<Shared>, sealed: &mut Instant) -> Result<(), sqlx::Error> {
    if sealed.elapsed() >= SEAL_INTERVAL || shared.memory.is_full() {
        *sealed = Instant::now();
        seal(shared, due(shared)).await?;
    }
    Ok(())
}

/// Returns true if a group must be sealed.
pub(crate) type Due = fn(&Group, &GroupSamples) -> bool;

pub(crate) fn due(shared: &Shared) -> Due {
    if shared.memory.is_full() {
        |_, _| true
    } else {
        is_due
    }
}

fn is_due(group: &Group, samples: &GroupSamples) -> bool {
    let spread = FIRST_SEAL_TICKS.end - FIRST_SEAL_TICKS.start;
    let ticks = match samples.freezes() {
        0 => FIRST_SEAL_TICKS.start + group.id.0.unsigned_abs() % spread,
        _ => SEAL_TICKS,
    };
    samples.ticks_max() as u64 >= ticks
        || samples
            .unsealed_since()
            .is_some_and(|since| since.elapsed() >= SEAL_AGE)
}

type Pending = (Arc<Group>, Arc<Segment>);
type Encoded = (GroupId, Arc<Segment>, Arc<ChunkData>);

pub(crate) async fn seal(shared: &Arc<Shared>, due: Due) -> Result<(), sqlx::Error> {
    let freezing = Arc::clone(shared);
    let freeze = move || freeze_due(&freezing, due);
    let (groups, pending) = tokio::task::spawn_blocking(freeze)
        .await
        .map_err(std::io::Error::other)?;
    let (now_ms, least_ms) = (
        shared.now_ms.load(Ordering::Relaxed),
        shared.config.head_horizon_ms,
    );
    let mut pending = pending.into_iter();
    loop {
        let some: Vec<Pending> = pending.by_ref().take(CHUNKS_PER_COMMIT).collect();
        if some.is_empty() {
            break;
        }
        let written: Vec<Arc<Group>> = some.iter().map(|(group, _)| Arc::clone(group)).collect();
        write_chunks(shared, some).await?;
        // One round may write many times the limit, so older chunks of each group are removed as its new one is written.
        if shared.memory.exceeds_recent_limit() {
            evict(shared, &written, now_ms - shared.memory.kept_ms(least_ms, now_ms));
        }
    }
    let before_ms = now_ms - shared.memory.keep_ms(least_ms, now_ms);
    let oldest_ms = evict(shared, &groups, before_ms);
    shared.memory.set_oldest(oldest_ms);
    unlink_files(shared, &groups).await
}

/// Removes chunks that end before a time from memory. Returns the end of the oldest remaining one.
fn evict(shared: &Shared, groups: &[Arc<Group>], before_ms: TimestampMs) -> Option<TimestampMs> {
    let (mut evicted, mut oldest_ms) = (0, None);
    for group in groups {
        let mut samples = group.lock();
        evicted += samples.evict(before_ms);
        oldest_ms = oldest_ms.into_iter().chain(samples.oldest_chunk_ms()).min();
    }
    shared.memory.remove_recent(evicted);
    oldest_ms
}

/// Freezes groups that are due. Also returns earlier segments that could not be written.
fn freeze_due(shared: &Shared, due: Due) -> (Vec<Arc<Group>>, Vec<Pending>) {
    let (groups, series) = {
        let index = read(&shared.index);
        (index.groups(), index.len())
    };
    shared.memory.fit(series);
    let mut pending = Vec::new();
    for group in &groups {
        let _gate = lock(&shared.between_batches);
        let mut samples = group.lock();
        if due(group, &samples) {
            samples.freeze(shared.next_chunk.fetch_add(1, Ordering::Relaxed));
        }
        pending.extend(
            samples
                .unsealed_segments()
                .map(|segment| (Arc::clone(group), Arc::clone(segment))),
        );
    }
    (groups, pending)
}

async fn write_chunks(shared: &Shared, pending: Vec<Pending>) -> Result<(), sqlx::Error> {
    let encode = move || {
        let encoded = |(group, segment): Pending| -> Encoded {
            let data = ChunkData::new(chunk::encode(&segment.unsealed_frames()));
            (group.id, segment, Arc::new(data))
        };
        pending.into_iter().map(encoded).collect::<Vec<_>>()
    };
    let encoded = tokio::task::spawn_blocking(encode)
        .await
        .map_err(std::io::Error::other)?;
    let mut transaction = shared.database.begin().await?;
    for some in encoded.chunks(CHUNKS_PER_STATEMENT) {
        insert(&mut transaction, some).await?;
    }
    note_sealed(&mut transaction, &encoded).await?;
    shared
        .commit_new_chunks(transaction, encoded.iter().map(stored).collect())
        .await?;
    for (_, segment, data) in encoded {
        let bytes = data.bytes().len();
        shared.counters.note_chunk(segment.samples, bytes as u64);
        shared.memory.sealed_segment(segment.cells, bytes);
        segment.sealed(data);
    }
    Ok(())
}

fn stored((group, segment, data): &Encoded) -> (GroupId, StoredChunk) {
    let stored = StoredChunk {
        id: segment.chunk,
        merged: false,
        min_ms: segment.min_ms,
        max_ms: segment.max_ms,
        series: segment.series as u64,
        samples: segment.samples,
        data: Arc::clone(data),
    };
    (*group, stored)
}

/// Removes the current write-ahead file if chunks contain all of its samples, even if it is not full.
pub(crate) async fn empty_write_ahead(shared: &Shared) -> Result<(), sqlx::Error> {
    let (said, closed) = oneshot::channel();
    // If the committer is gone, the store is closing and the file is closed anyway.
    if shared.wal_unused.send(said).await.is_ok() {
        let _ = closed.await;
    }
    unlink_files(shared, &[]).await
}

async fn insert(transaction: &mut SqliteConnection, encoded: &[Encoded]) -> Result<(), sqlx::Error> {
    let mut insert =
        QueryBuilder::new("INSERT INTO chunks (id, group_id, min_ms, max_ms, series, samples, data) ");
    insert.push_values(encoded, |mut row, (group, segment, data)| {
        row.push_bind(segment.chunk)
            .push_bind(group.0)
            .push_bind(segment.min_ms)
            .push_bind(segment.max_ms)
            .push_bind(segment.series as i64)
            .push_bind(segment.samples as i64)
            .push_bind(data.bytes());
    });
    insert.build().execute(transaction).await.map(drop)
}

/// Stores, for each group, the last batch and the latest time that are in chunks.
async fn note_sealed(transaction: &mut SqliteConnection, encoded: &[Encoded]) -> Result<(), sqlx::Error> {
    let sealed = encoded
        .iter()
        .map(|(group, segment, _)| json!([group.0, segment.last_batch, segment.max_ms]));
    sqlx::query(
        "UPDATE groups SET sealed_batch = max(sealed_batch, batch), sealed_max_ms = max(ifnull(sealed_max_ms, max_ms), max_ms)
         FROM (SELECT value ->> 0 AS group_id, max(value ->> 1) AS batch, max(value ->> 2) AS max_ms
               FROM json_each(?) GROUP BY 1)
         WHERE id = group_id",
    )
    .bind(sealed.collect::<Value>().to_string())
    .execute(transaction)
    .await
    .map(drop)
}

/// Removes write-ahead files whose samples are all in chunks. One that cannot be removed yet is tried again by the next call.
async fn unlink_files(shared: &Shared, groups: &[Arc<Group>]) -> Result<(), sqlx::Error> {
    // Reads the list of files first: a batch that arrives later has a higher number than all of theirs.
    let closed: Vec<ClosedFile> = lock(&shared.wal_files).clone();
    if closed.is_empty() {
        return Ok(());
    }
    let known = read(&shared.index).groups();
    let unsealed = known
        .iter()
        .chain(groups)
        .filter_map(|group| group.lock().first_unsealed_batch())
        .min();
    let done: Vec<_> = closed
        .into_iter()
        .filter(|file| unsealed.is_none_or(|batch| file.last_batch < batch))
        .collect();
    if done.is_empty() {
        return Ok(());
    }
    save_sessions(shared).await?;
    let _no_readers = shared.unlinking.lock().await;
    let mut removed = Vec::new();
    for file in done {
        if wal::discard(&file.path, shared.config.vfs).await {
            removed.push(file);
        }
    }
    lock(&shared.wal_files).retain(|file| !removed.contains(file));
    Ok(())
}

/// Copies the sessions' numbers from the write-ahead log to the database, before the log is removed.
async fn save_sessions(shared: &Shared) -> Result<(), sqlx::Error> {
    let unsaved = lock(&shared.sessions).unsaved();
    // `WHERE true` keeps SQLite from reading ON as part of a join.
    sqlx::query(
        "INSERT INTO sessions (session, seq, seen_ms)
         SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
         ON CONFLICT (session) DO UPDATE SET seq = max(seq, excluded.seq), seen_ms = max(seen_ms, excluded.seen_ms)",
    )
    .bind(json!(unsaved).to_string())
    .execute(shared.database.writer())
    .await?;
    lock(&shared.sessions).saved(&unsaved);
    Ok(())
}
