//! Deletion by matcher: removes matching samples from memory, chunks and roll-ups for good.
//!
//! ```text
//! matchers → series by group → seal, so that a replay of the write-ahead log skips them → memory drops what is sealed
//!          → each chunk is rewritten without those cells, under the same id
//! ```
//! Samples that arrive during the deletion may stay. A roll-up bucket is deleted if the range covers any part of it, because a
//! bucket does not show when its samples were taken. A series without samples is no longer listed; retention removes its name
//! when no client sends it any more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use domain::series::matcher::CompiledMatcher;
use domain::series::{ABSENT, Matcher, is_absent};
use domain::time::{TimeRange, TimestampMs};
use tokio::sync::oneshot;

use super::chunk::Stored;
use super::chunk_rows::{NewRow, delete, read_blobs};
use super::codec::Corrupt;
use super::head::Group;
use super::plan::ROW_SAMPLES;
use super::request::{DeleteError, Deleted, Deletion, Request};
use super::seal;
use super::union::union;
use super::work_pool::run_on_all_cores;
use super::{SeriesId, SeriesStore, Shared, lock, read};

/// The maximum number of samples that are read and rewritten in one transaction.
const STEP_SAMPLES_MAX: u64 = 16 * ROW_SAMPLES;

impl SeriesStore {
    /// Deletes, for good, the samples within a range of all series that match any of the sets.
    ///
    /// # Errors
    /// See [`DeleteError`].
    pub async fn delete(&self, sets: &[Vec<Matcher>], range: TimeRange) -> Result<Deleted, DeleteError> {
        let sets = sets
            .iter()
            .map(|set| compile(set))
            .collect::<Result<Vec<_>, _>>()?;
        if sets.is_empty() {
            return Err(DeleteError::Everything);
        }
        let (reply, answer) = oneshot::channel();
        let sender = lock(&self.channels.passes).clone().ok_or(DeleteError::Closed)?;
        let deletion = Deletion { sets, range, reply };
        sender
            .send(Request::Delete(deletion))
            .await
            .map_err(|_| DeleteError::Closed)?;
        drop(sender);
        answer.await.unwrap_or(Err(DeleteError::Closed))
    }
}

fn compile(set: &[Matcher]) -> Result<Vec<CompiledMatcher>, DeleteError> {
    let compiled = set
        .iter()
        .map(|matcher| CompiledMatcher::new(matcher).map_err(|error| DeleteError::Matcher(error.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    if compiled.iter().all(|matcher| matcher.matches("")) {
        return Err(DeleteError::Everything);
    }
    Ok(compiled)
}

/// Series of a group, and their rows in the head.
type SeriesRows = HashMap<SeriesId, u32>;

impl Deletion {
    /// Runs in the sealer's task, so that no chunk is written or merged at the same time.
    pub(crate) async fn run(&self, shared: &Arc<Shared>) -> Result<Deleted, DeleteError> {
        seal::seal_all(shared).await?;
        let mut sealed = Instant::now();
        let mut deleted = Deleted::default();
        for (group, series) in self.series_by_group(shared) {
            shared.memory.remove_recent(group.lock().evict(TimestampMs::MAX));
            let (lost, samples) = self.delete_from(shared, &group, &series).await?;
            deleted.series += lost.len() as u64;
            deleted.samples += samples;
            seal::seal_if_due(shared, &mut sealed).await?;
        }
        Ok(deleted)
    }

    fn series_by_group(&self, shared: &Shared) -> Vec<(Arc<Group>, SeriesRows)> {
        let mut groups: BTreeMap<_, (Arc<Group>, SeriesRows)> = BTreeMap::new();
        let index = read(&shared.index);
        for entry in self.sets.iter().flat_map(|set| index.search(set)) {
            let (_, series) = groups
                .entry(entry.group.id)
                .or_insert_with(|| (Arc::clone(entry.group), SeriesRows::new()));
            series.insert(entry.id, entry.row);
        }
        groups.into_values().collect()
    }

    /// Returns the series that lost samples, and the number of lost samples.
    async fn delete_from(
        &self,
        shared: &Arc<Shared>,
        group: &Group,
        series: &SeriesRows,
    ) -> Result<(HashSet<SeriesId>, u64), DeleteError> {
        let rows = Row::all(shared, group.id.0).await?;
        let (touched, others): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| row.touches(self.range));
        let ids: Arc<HashSet<SeriesId>> = Arc::new(series.keys().copied().collect());
        let (mut lost, mut left, mut samples) = (HashSet::new(), HashSet::new(), 0);
        for some in batches(touched) {
            let outcomes = self.erase(shared, &some, &ids).await?;
            let mut transaction = shared.database.begin().await?;
            for (row, outcome) in some.iter().zip(outcomes) {
                let erased = outcome.map_err(|_| DeleteError::Damaged { chunk: row.id })?;
                left.extend(erased.left);
                if erased.samples == 0 {
                    continue;
                }
                samples += erased.samples;
                lost.extend(erased.lost);
                delete(&mut transaction, &[row.id]).await?;
                if let Some(new) = erased.rest {
                    new.insert(&mut transaction, (group.id.0, row.resolution_ms), row.level)
                        .await?;
                }
            }
            shared.commit_chunks(transaction, vec![group.id.0]).await?;
        }
        if !lost.is_empty() {
            forget_range(shared, group).await?;
        }
        let gone = ids.difference(&left).copied().collect();
        let gone = without_those_in(shared, gone, others).await?;
        let mut head = group.lock();
        for id in gone.union(&lost) {
            head.forget(series[id], gone.contains(id));
        }
        drop(head);
        Ok((lost, samples))
    }

    async fn erase(
        &self,
        shared: &Shared,
        rows: &[Row],
        ids: &Arc<HashSet<SeriesId>>,
    ) -> Result<Vec<Result<Erased, Corrupt>>, sqlx::Error> {
        let blobs = read_blobs(shared, &rows.iter().map(|row| row.id).collect::<Vec<_>>()).await?;
        let work = rows.iter().zip(blobs).map(|(row, blob)| Erasure {
            id: row.id,
            blob,
            ids: Arc::clone(ids),
            range: self.range,
        });
        run_on_all_cores(work.collect(), Erasure::run).await
    }
}

/// Stores up to when a group has chunks, so that deleted series are not listed after a restart.
async fn forget_range(shared: &Shared, group: &Group) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE groups SET sealed_max_ms = (SELECT max(max_ms) FROM chunks WHERE group_id = groups.id) WHERE id = ?")
        .bind(group.id.0)
        .execute(shared.database.writer())
        .await
        .map(drop)
}

/// Returns the series that are in none of the chunks. Reads the newest chunks first, because they most likely contain them.
async fn without_those_in(
    shared: &Shared,
    mut gone: HashSet<SeriesId>,
    mut rows: Vec<Row>,
) -> Result<HashSet<SeriesId>, DeleteError> {
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.max_ms));
    for row in rows {
        if gone.is_empty() {
            break;
        }
        let blobs = read_blobs(shared, &[row.id]).await?;
        let frames = blobs
            .first()
            .map(|blob| Stored::decode_wanted(blob, |id| gone.contains(&id)));
        // A chunk that cannot be decoded may contain any of them.
        let Some(Ok(stored)) = frames else {
            return Ok(HashSet::new());
        };
        stored.ids().iter().for_each(|id| {
            gone.remove(id);
        });
    }
    Ok(gone)
}

/// The index columns of a chunk row.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: i64,
    min_ms: TimestampMs,
    max_ms: TimestampMs,
    samples: u64,
    level: i64,
    resolution_ms: i64,
}

impl Row {
    async fn all(shared: &Shared, group: i64) -> Result<Vec<Self>, sqlx::Error> {
        let rows: Vec<(i64, i64, i64, i64, i64, i64)> = sqlx::query_as(
            "SELECT id, min_ms, max_ms, samples, level, resolution_ms FROM chunks WHERE group_id = ? ORDER BY id",
        )
        .bind(group)
        .fetch_all(&shared.database.readers)
        .await?;
        let row =
            |(id, min_ms, max_ms, samples, level, resolution_ms): (i64, i64, i64, i64, i64, i64)| Self {
                id,
                min_ms,
                max_ms,
                samples: samples.unsigned_abs(),
                level,
                resolution_ms,
            };
        Ok(rows.into_iter().map(row).collect())
    }

    fn touches(&self, range: TimeRange) -> bool {
        TimeRange::new(self.min_ms, self.max_ms).overlaps(range)
    }
}

fn batches(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut batches: Vec<Vec<Row>> = Vec::new();
    let mut samples = STEP_SAMPLES_MAX;
    for row in rows {
        if samples >= STEP_SAMPLES_MAX {
            batches.push(Vec::new());
            samples = 0;
        }
        samples += row.samples;
        if let Some(batch) = batches.last_mut() {
            batch.push(row);
        }
    }
    batches
}

/// A chunk to rewrite.
struct Erasure {
    id: i64,
    blob: Vec<u8>,
    ids: Arc<HashSet<SeriesId>>,
    range: TimeRange,
}

/// The result for one chunk.
#[derive(Default)]
struct Erased {
    samples: u64,
    lost: HashSet<SeriesId>,
    /// The series that still have samples in it.
    left: HashSet<SeriesId>,
    rest: Option<NewRow>,
}

impl Erasure {
    fn run(&self) -> Result<Erased, Corrupt> {
        let mut erased = Erased::default();
        if Stored::decode_wanted(&self.blob, |id| self.ids.contains(&id))?.sets[0].is_empty() {
            return Ok(erased);
        }
        let mut stored = Stored::decode(&self.blob)?;
        let bucket_ms = (stored.resolution_ms - 1).max(0);
        for (n, set) in stored.sets.iter_mut().enumerate() {
            for frame in set {
                let ticks = frame.times_ms.len();
                let within: Vec<usize> = (0..ticks)
                    .filter(|tick| {
                        let first = frame.times_ms[*tick];
                        TimeRange::new(first, first.saturating_add(bucket_ms)).overlaps(self.range)
                    })
                    .collect();
                for (row, id) in frame
                    .series
                    .iter()
                    .enumerate()
                    .filter(|(_, id)| self.ids.contains(id))
                {
                    for cell in within.iter().map(|tick| row * ticks + tick) {
                        if !is_absent(frame.values[cell]) && n == 0 {
                            erased.samples += 1;
                            erased.lost.insert(*id);
                        }
                        frame.values[cell] = ABSENT;
                    }
                }
            }
        }
        if erased.samples > 0 {
            stored.sets.iter_mut().for_each(|set| *set = union(set));
            erased.rest = NewRow::of(self.id, &stored);
        }
        erased.left = stored.ids();
        Ok(erased)
    }
}
