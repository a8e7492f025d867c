//! Reads what a selection needs of a group: copies from memory, and chunks from disk where memory does not reach.

use std::sync::Arc;

use domain::series::{Budget, SelectError};
use domain::time::{TimeRange, TimestampMs};
use rusqlite::Connection;
use tokio::runtime::Handle;

use super::chunk_cache::{Epoch, StoredChunk};
use super::chunk_data::ChunkData;
use super::codec::Corrupt;
use super::cut::{Cut, trim};
use super::head::{Group, Latest, Snapshot};
use super::members::Members;
use super::piece::Piece;
use super::rollup::View;
use super::work_pool::WorkPool;
use super::{SeriesId, Shared, lock};

/// Selects the chunks of a group within a range, by the index on group and end. One statement covers all resolutions, so that a
/// query sees what ages out meanwhile only once: either as samples or as their roll-up.
const CHUNKS: &str = "SELECT id, level, min_ms, max_ms, series, samples, data FROM chunks
     WHERE group_id = ? AND resolution_ms IN (0, 60000, 3600000) AND max_ms >= ? AND min_ms <= ?";

/// After this many bytes of a group, another core decompresses them while the next ones are read.
const OVERLAPPED_FROM: usize = 32 << 10;

/// What a query reads of one group.
#[derive(Debug)]
pub(crate) struct GroupSelection {
    pub(crate) group: Arc<Group>,
    pub(crate) members: Members,
    pub(crate) memory: Snapshot,
    pub(crate) pieces: Vec<Piece>,
    /// Series of which only the newest sample is needed and memory had it. They are no longer members.
    pub(crate) latest: Vec<(SeriesId, TimestampMs, f64)>,
}

impl GroupSelection {
    pub(crate) fn new(group: Arc<Group>, members: Members) -> Self {
        Self {
            group,
            members,
            memory: Snapshot::default(),
            pieces: Vec::new(),
            latest: Vec::new(),
        }
    }

    /// Copies what memory has of the series that may have samples, and charges it to the budget.
    pub(crate) fn read_memory(&mut self, cut: &Cut, budget: &Budget) -> Result<(), SelectError> {
        let samples = self.group.lock();
        let latest = &mut self.latest;
        let is_read = |(id, row): &(SeriesId, u32)| {
            if cut.latest
                && let Latest::Known(newest) = samples.latest(*row, cut.range.end_ms)
            {
                let newest = newest.filter(|(time_ms, _)| *time_ms >= cut.range.start_ms);
                latest.extend(newest.map(|(time_ms, value)| (*id, time_ms, value)));
                return false;
            }
            samples.overlaps(*row, cut.range)
        };
        let members = Members::new(self.members.iter().filter(is_read));
        let known = self.latest.len() as u64;
        budget.take(known + members.len() as u64, known)?;
        if members.len() > 0 {
            let wanted = |id| members.has(id);
            self.memory = samples.snapshot(cut.range, wanted);
        }
        drop(samples);
        self.members = members;
        budget.take(0, self.memory_cost(cut))?;
        Ok(())
    }

    /// Returns the number of samples in memory that will be read.
    fn memory_cost(&self, cut: &Cut) -> u64 {
        let frozen = self.memory.segments.iter().map(|segment| {
            let part = Part {
                samples: segment.samples,
                series: segment.series as u64,
                min_ms: segment.min_ms,
                max_ms: segment.max_ms,
            };
            part.cost(self.members.len() as u64, cut)
        });
        let live = self.memory.live.iter().map(|frame| frame.values.len() as u64);
        frozen.chain(live).sum()
    }

    /// Converts the copies from memory to pieces.
    pub(crate) fn decode_memory(&mut self, cut: &Cut) -> Result<(), SelectError> {
        let memory = std::mem::take(&mut self.memory);
        for segment in &memory.segments {
            let pieces = segment.pieces(&self.members, cut).map_err(damaged)?;
            self.pieces.extend(pieces);
        }
        let live = memory.live.into_iter();
        let trimmed = live.filter_map(|frame| trim(frame, &self.members, cut));
        self.pieces
            .extend(trimmed.map(|frame| Piece::new(i64::MAX, frame)));
        Ok(())
    }
}

fn damaged(error: Corrupt) -> SelectError {
    SelectError::Store(Box::new(error))
}

fn failed(error: rusqlite::Error) -> SelectError {
    SelectError::Store(Box::new(error))
}

/// Samples of some series over a period, of which only a part is wanted.
struct Part {
    samples: u64,
    series: u64,
    min_ms: TimestampMs,
    max_ms: TimestampMs,
}

impl Part {
    /// Estimates the number of wanted samples: those of `wanted` series within the range of the cut.
    fn cost(&self, wanted: u64, cut: &Cut) -> u64 {
        let span = |from: TimestampMs, to: TimestampMs| i128::from(to) - i128::from(from) + 1;
        let whole = span(self.min_ms, self.max_ms).max(1);
        let within = span(
            self.min_ms.max(cut.range.start_ms),
            self.max_ms.min(cut.range.end_ms),
        )
        .clamp(0, whole);
        let samples = i128::from(self.samples) * within * i128::from(wanted.min(self.series));
        u64::try_from(samples / whole / i128::from(self.series.max(1)) + 1).unwrap_or(u64::MAX)
    }
}

/// The settings with which a query reads the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    pub(crate) shared: &'a Shared,
    /// Taken before memory was read: samples that left memory later are not on disk in this epoch.
    pub(crate) epoch: Epoch,
    /// The range of the cut or a larger one, so that the next query finds what it needs in the cache.
    pub(crate) range: TimeRange,
    pub(crate) view: View,
    pub(crate) cut: &'a Cut,
    pub(crate) budget: &'a Budget,
    /// Set if only one group is read. Its chunks are then distributed over the cores, instead of groups.
    pub(crate) runtime: Option<&'a Handle>,
}

/// Pieces of a chunk, and the bucket length of a roll-up.
type Read = (Option<i64>, Vec<Piece>);

impl GroupSelection {
    /// Returns the chunks of a range if the cache has them.
    pub(crate) fn cached_chunks(&self, shared: &Shared, cut: &Cut) -> Option<Vec<StoredChunk>> {
        lock(&shared.chunk_cache).get(self.group.id.0, cut.range)
    }

    /// Adds the pieces of chunks that memory does not have, from `cached` or from disk. Returns the longest bucket among the
    /// roll-ups.
    pub(crate) fn read_disk(
        &mut self,
        disk: &Disk<'_>,
        cached: Option<Vec<StoredChunk>>,
    ) -> Result<i64, SelectError> {
        let (id, cut) = (self.group.id.0, *disk.cut);
        let (view, members, budget) = (disk.view, self.members.clone(), disk.budget.clone());
        let mut pool = WorkPool::new(
            disk.runtime,
            move |chunk: StoredChunk| -> Result<Read, SelectError> {
                budget.check_cancelled()?;
                chunk.data.pieces(chunk.id, view, &members, &cut).map_err(damaged)
            },
        );
        disk.shared.counters.note_chunk_lookup(cached.is_some());
        if let Some(chunks) = cached {
            for chunk in chunks {
                self.pay(&chunk, disk)?;
                if self.is_read(&chunk, &cut) {
                    pool.push(chunk);
                }
            }
        } else {
            let mut read = 0;
            self.select(disk, |chunk| {
                pool.push(chunk.clone());
                read += chunk.data.bytes().len();
                if read >= OVERLAPPED_FROM {
                    pool.begin();
                }
            })?;
        }
        let read = pool.finish()?;
        lock(&disk.shared.chunk_cache).recount([id]);
        let mut longest_ms = 0;
        for (bucket_ms, pieces) in read {
            longest_ms = longest_ms.max(bucket_ms.unwrap_or(0));
            self.pieces.extend(pieces);
        }
        Ok(longest_ms)
    }

    /// Reads the chunks of a range and caches them for the next query. Calls `each` at once for each chunk that this query
    /// reads.
    fn select(&self, disk: &Disk<'_>, each: impl FnMut(&StoredChunk)) -> Result<(), SelectError> {
        let connection = disk.shared.database.local_readers.take().map_err(failed)?;
        let read = self.select_with(&connection, disk, each);
        if !matches!(read, Err(SelectError::Store(_))) {
            connection.release();
        }
        let chunks = read?;
        let mut range = disk.range;
        // No chunk is added after the last one until the cache is notified of a change.
        if range.end_ms >= self.memory.chunks_end_ms {
            range.end_ms = TimestampMs::MAX;
        }
        let id = self.group.id.0;
        lock(&disk.shared.chunk_cache).keep(disk.epoch, id, range, chunks);
        Ok(())
    }

    /// Charges each row to the budget as it is read, so that a query stays within its limit. Decompresses the wanted part
    /// directly from SQLite's memory, unless other cores help.
    fn select_with(
        &self,
        connection: &Connection,
        disk: &Disk<'_>,
        mut each: impl FnMut(&StoredChunk),
    ) -> Result<Vec<StoredChunk>, SelectError> {
        let mut chunks = Vec::new();
        let mut statement = connection.prepare_cached(CHUNKS).map_err(failed)?;
        let TimeRange { start_ms, end_ms } = disk.range;
        let mut rows = statement
            .query((self.group.id.0, start_ms, end_ms))
            .map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (mut chunk, bytes) = stored(row).map_err(failed)?;
            self.pay(&chunk, disk)?;
            let is_read = self.is_read(&chunk, disk.cut);
            chunk.data = Arc::new(if disk.runtime.is_none() && is_read {
                ChunkData::read(bytes, &self.members, disk.cut).map_err(damaged)?
            } else {
                ChunkData::new(bytes.to_vec())
            });
            if is_read {
                each(&chunk);
            }
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    fn is_read(&self, stored: &StoredChunk, cut: &Cut) -> bool {
        stored.overlaps(cut.range) && !self.has(stored)
    }

    /// Returns true if memory has the samples of a chunk. A merged chunk may have the id of a chunk in memory, but contains
    /// more.
    fn has(&self, stored: &StoredChunk) -> bool {
        let mut segments = self.memory.segments.iter();
        !stored.merged && segments.any(|segment| segment.chunk == stored.id)
    }

    fn pay(&self, stored: &StoredChunk, disk: &Disk<'_>) -> Result<(), SelectError> {
        if self.has(stored) {
            return Ok(());
        }
        let part = Part {
            samples: stored.samples,
            series: stored.series,
            min_ms: stored.min_ms,
            max_ms: stored.max_ms,
        };
        let cost = part.cost(self.members.len() as u64, disk.cut);
        Ok(disk.budget.take(0, cost)?)
    }
}

/// Returns the row of [`CHUNKS`], and its bytes, not copied.
fn stored<'a>(row: &'a rusqlite::Row<'_>) -> Result<(StoredChunk, &'a [u8]), rusqlite::Error> {
    let chunk = StoredChunk {
        id: row.get(0)?,
        merged: row.get::<_, i64>(1)? != 0,
        min_ms: row.get(2)?,
        max_ms: row.get(3)?,
        series: row.get::<_, i64>(4)?.unsigned_abs(),
        samples: row.get::<_, i64>(5)?.unsigned_abs(),
        data: Arc::new(ChunkData::new(Vec::new())),
    };
    Ok((chunk, row.get_ref(6)?.as_blob()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn chunks_are_found_by_group_and_time_in_the_index() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.db");
        let migrations = sqlx::migrate!("../../migrations/sqlite/series");
        let database = crate::sqlite::Database::open(&path, &migrations, None)
            .await
            .expect("a new database");
        let steps: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {CHUNKS}")))
                .fetch_all(&database.readers)
                .await
                .expect("a plan");
        let is_search = |step: &str| {
            step.starts_with("SEARCH chunks USING INDEX chunks_by_group (group_id=?")
                && step.contains("max_ms>?")
        };
        assert!(steps.iter().any(|(_, _, _, step)| is_search(step)), "{steps:?}");
    }

    #[test]
    fn a_part_costs_what_is_wanted_of_it() {
        let part = Part {
            samples: 8_000,
            series: 8,
            min_ms: 1,
            max_ms: 1_000,
        };
        assert_eq!(part.cost(8, &Cut::within(i64::MIN, i64::MAX)), 8_001);
        assert_eq!(part.cost(1, &Cut::within(0, 2_000)), 1_001);
        assert_eq!(part.cost(1, &Cut::within(501, 2_000)), 501);
        assert_eq!(part.cost(8, &Cut::within(500, 500)), 9);
    }
}
