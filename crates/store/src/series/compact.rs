//! Compaction: merges small chunks into rows of about 40 kB, so that pages are full and reading one hour reads one row.
//!
//! ```text
//! groups with enough unmerged chunks → their rows in the index → plan.rs: one set each → blobs → union, on all cores
//!                                    → one transaction: delete the set's chunks, insert one row under their lowest id
//! ```
//! A step merges about one megabyte, then sealing gets its turn. A sample is rewritten about once in its life, so the cost of a
//! merge adds to the cost of every sample. The merged row holds exactly what its chunks held, so a concurrent query sees one or
//! the other; a query that also has a chunk in memory ignores duplicates.

use std::sync::Arc;

use domain::series::Frame;
use domain::time::TimestampMs;

use super::chunk::Stored;
use super::chunk_rows::{NewRow, Target, delete, read_blobs};
use super::codec::Corrupt;
use super::group_id::GroupId;
use super::plan::{self, ROW_BUCKETS, ROW_SAMPLES, Row, SPAN_MS_MAX, Set, Terms};
use super::request::Request;
use super::union::{cut, union};
use super::work_pool::run_on_all_cores;
use super::{AppendError, SeriesId, SeriesStore, Shared, read, retention};

/// The number of groups merged in one step: about one megabyte, and 60 ms of one core.
const GROUPS_PER_STEP: i64 = 24;
/// The maximum number of samples in the sets of one step: again about one megabyte, if sets are large.
const STEP_SAMPLES_MAX: u64 = 24 * ROW_SAMPLES;
/// The level of a row that cannot be decoded. It is not merged again.
const DAMAGED: i64 = -1;

impl SeriesStore {
    /// Merges all chunks that can be merged, including incomplete hours; the regular compaction merges only complete ones. Call
    /// [`SeriesStore::seal_now`] first to include samples in memory.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn compact_now(&self, now_ms: TimestampMs) -> Result<(), AppendError> {
        while self.pass(|reply| Request::Compact { now_ms, reply }).await? {}
        Ok(())
    }
}

/// Merges some of the chunks that can be merged. Returns true if there may be more.
pub(crate) async fn everything_step(shared: &Arc<Shared>, now_ms: TimestampMs) -> Result<bool, sqlx::Error> {
    let targets: Vec<Target> = sqlx::query_as(
        "SELECT group_id, resolution_ms FROM chunks WHERE level = 0 GROUP BY resolution_ms, group_id LIMIT ?",
    )
    .bind(GROUPS_PER_STEP)
    .fetch_all(&shared.database.readers)
    .await?;
    let merged = step(shared, &targets, now_ms, true).await?;
    Ok(!merged.is_empty() || retention::release_free_pages(shared).await?)
}

/// Returns the groups in which a merge may be worthwhile.
pub(crate) async fn candidates(shared: &Shared, now_ms: TimestampMs) -> Result<Vec<Target>, sqlx::Error> {
    sqlx::query_as(
        "SELECT group_id, resolution_ms FROM chunks WHERE level = 0 GROUP BY resolution_ms, group_id
         HAVING sum(samples) >= iif(resolution_ms = 0, ?, ?) OR (resolution_ms = 0 AND min(max_ms) < ?)",
    )
    .bind(ROW_SAMPLES as i64)
    .bind(ROW_BUCKETS as i64)
    .bind(now_ms.saturating_sub(SPAN_MS_MAX))
    .fetch_all(&shared.database.readers)
    .await
}

/// Merges one set of each target. Returns the targets in which something was merged, because more may be left.
pub(crate) async fn step(
    shared: &Arc<Shared>,
    targets: &[Target],
    now_ms: TimestampMs,
    everything: bool,
) -> Result<Vec<Target>, sqlx::Error> {
    let mut merged = Vec::new();
    let mut work = Vec::new();
    let mut samples = 0;
    for &(group, resolution_ms) in targets {
        let rows = rows(shared, group, resolution_ms).await?;
        if let Some(set) = plan::next(&rows, &Terms::of(resolution_ms, now_ms, everything)) {
            merged.push((group, resolution_ms));
            samples += set.rows.iter().map(|row| row.samples).sum::<u64>();
            work.push(Merge::read(shared, group, resolution_ms, set).await?);
        }
        if samples >= STEP_SAMPLES_MAX {
            write(shared, std::mem::take(&mut work)).await?;
            samples = 0;
        }
    }
    write(shared, work).await?;
    Ok(merged)
}

/// Returns the unmerged chunks of a group, and the merged ones that overlap them.
async fn rows(shared: &Shared, group: i64, resolution_ms: i64) -> Result<Vec<Row>, sqlx::Error> {
    let unmerged: Vec<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT id, min_ms, max_ms, samples FROM chunks WHERE level = 0 AND resolution_ms = ? AND group_id = ? ORDER BY id",
    )
    .bind(resolution_ms)
    .bind(group)
    .fetch_all(&shared.database.readers)
    .await?;
    let (min_ms, max_ms) = unmerged.iter().fold((i64::MAX, i64::MIN), |(min, max), row| {
        (min.min(row.1), max.max(row.2))
    });
    let merged: Vec<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT id, min_ms, max_ms, samples FROM chunks
         WHERE group_id = ? AND resolution_ms = ? AND max_ms >= ? AND min_ms <= ? AND level = 1",
    )
    .bind(group)
    .bind(resolution_ms)
    .bind(min_ms)
    .bind(max_ms)
    .fetch_all(&shared.database.readers)
    .await?;
    let row = |merged: bool| {
        move |(id, min_ms, max_ms, samples): (i64, i64, i64, i64)| Row {
            id,
            min_ms,
            max_ms,
            samples: samples.unsigned_abs(),
            merged,
        }
    };
    let mut rows: Vec<Row> = unmerged
        .into_iter()
        .map(row(false))
        .chain(merged.into_iter().map(row(true)))
        .collect();
    rows.sort_unstable_by_key(|row| row.id);
    Ok(rows)
}

/// A set that is being merged.
struct Merge {
    group: i64,
    resolution_ms: i64,
    set: Set,
    blobs: Vec<Vec<u8>>,
}

/// The result for one set.
enum Outcome {
    /// The row is already as it should be.
    Kept(i64),
    /// The row cannot be decoded.
    Damaged(i64, Corrupt),
    Merged(Merged),
}

struct Merged {
    group: i64,
    resolution_ms: i64,
    /// All rows of the set, to be deleted.
    gone: Vec<i64>,
    new: Vec<NewRow>,
}

impl Merge {
    async fn read(shared: &Shared, group: i64, resolution_ms: i64, set: Set) -> Result<Self, sqlx::Error> {
        let ids: Vec<i64> = set.rows.iter().map(|row| row.id).collect();
        let blobs = if ids.len() == 1 {
            Vec::new()
        } else {
            read_blobs(shared, &ids).await?
        };
        Ok(Self {
            group,
            resolution_ms,
            set,
            blobs,
        })
    }

    fn run(&self) -> Outcome {
        let ids: Vec<i64> = self.set.rows.iter().map(|row| row.id).collect();
        if let [id] = ids[..] {
            return Outcome::Kept(id);
        }
        let mut sets: Vec<Vec<Frame<SeriesId>>> = Vec::new();
        for (id, blob) in ids.iter().zip(&self.blobs) {
            let stored = match Stored::decode(blob) {
                Ok(stored) => stored,
                Err(error) => return Outcome::Damaged(*id, error),
            };
            sets.resize_with(sets.len().max(stored.sets.len()), Vec::new);
            sets.iter_mut()
                .zip(stored.sets)
                .for_each(|(set, frames)| set.extend(frames));
        }
        let stored = Stored {
            resolution_ms: self.resolution_ms,
            sets: sets.iter().map(|frames| union(frames)).collect(),
        };
        let row = if self.resolution_ms == 0 {
            ROW_SAMPLES
        } else {
            ROW_BUCKETS
        };
        let parts = (stored.len() as u64 + row / 2) / row;
        let parts = split(stored, parts.clamp(1, self.set.ids_max as u64) as usize);
        Outcome::Merged(Merged {
            group: self.group,
            resolution_ms: self.resolution_ms,
            new: parts
                .iter()
                .zip(&ids)
                .filter_map(|(part, id)| NewRow::of(*id, part))
                .collect(),
            gone: ids,
        })
    }
}

/// Splits a chunk by time into parts of about the same size.
fn split(stored: Stored, parts: usize) -> Vec<Stored> {
    let cells = |frame: &&Frame<SeriesId>| frame.values.len();
    let Some(largest) = stored.sets[0].iter().max_by_key(cells).filter(|_| parts > 1) else {
        return vec![stored];
    };
    let ticks = largest.times_ms.len();
    let mut at_ms: Vec<TimestampMs> = (1..parts)
        .map(|part| largest.times_ms[part * ticks / parts])
        .collect();
    at_ms.dedup();
    let sets: Vec<_> = stored.sets.iter().map(|frames| cut(frames, &at_ms)).collect();
    let part = |n: usize| Stored {
        resolution_ms: stored.resolution_ms,
        sets: sets.iter().map(|parts| parts[n].clone()).collect(),
    };
    (0..=at_ms.len()).map(part).collect()
}

async fn write(shared: &Shared, work: Vec<Merge>) -> Result<(), sqlx::Error> {
    let outcomes = run_on_all_cores(work, Merge::run).await?;
    if outcomes.is_empty() {
        return Ok(());
    }
    let mut transaction = shared.database.begin().await?;
    for outcome in &outcomes {
        match outcome {
            Outcome::Kept(id) => set_level(&mut transaction, *id, 1).await?,
            Outcome::Damaged(id, error) => {
                tracing::error!(chunk = id, %error, "a chunk cannot be decoded and is not merged; check the disk, and restore a backup");
                set_level(&mut transaction, *id, DAMAGED).await?;
            }
            Outcome::Merged(merged) => {
                delete(&mut transaction, &merged.gone).await?;
                for row in &merged.new {
                    row.insert(&mut transaction, (merged.group, merged.resolution_ms), 1)
                        .await?;
                }
            }
        }
    }
    let merged = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Merged(merged) => Some(merged.group),
        Outcome::Kept(_) | Outcome::Damaged(..) => None,
    });
    shared.commit_chunks(transaction, merged.collect()).await?;
    outcomes.iter().for_each(|outcome| remove_merged(shared, outcome));
    Ok(())
}

/// Removes all parts of the merged chunks from memory.
fn remove_merged(shared: &Shared, outcome: &Outcome) {
    let Outcome::Merged(merged) = outcome else { return };
    if let Some(group) = read(&shared.index).group(GroupId(merged.group)) {
        shared
            .memory
            .remove_recent(group.lock().remove_merged(&merged.gone));
    }
}

async fn set_level(transaction: &mut sqlx::SqliteConnection, id: i64, level: i64) -> Result<(), sqlx::Error> {
    let update = sqlx::query("UPDATE chunks SET level = ? WHERE id = ?")
        .bind(level)
        .bind(id);
    update.execute(transaction).await.map(drop)
}
