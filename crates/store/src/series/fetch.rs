//! What a selection needs of a group: copies from memory, and chunks from disk where memory does not reach.

use std::collections::HashMap;
use std::sync::Arc;

use domain::series::{Budget, Frame, SelectError};
use domain::time::TimestampMs;
use futures::TryStreamExt;
use tokio::runtime::Handle;

use super::chunk_cache::{Epoch, StoredChunk};
use super::chunk_data::ChunkData;
use super::cut::{Cut, trim};
use super::head::{Group, Latest, Snapshot};
use super::rollup::HOUR_MS;
use super::{SeriesId, Shared, lock};

/// Groups whose chunks are read in one statement.
const GROUPS_A_QUERY: usize = 64;
/// Of so many groups, whole hours are read: some ten kilobytes an hour each. Of more only what the query needs.
const WIDENED_GROUPS_MAX: usize = 512;

/// Chunks of some groups within a range, found in the index by group and end.
/// Of all resolutions in one statement: what ages out meanwhile is seen once, as it was or as its roll-up.
const CHUNKS: &str =
    "SELECT chunks.group_id, chunks.id, chunks.level, chunks.min_ms, chunks.max_ms, chunks.series, chunks.samples, chunks.data
     FROM json_each(?) AS wanted
     JOIN chunks ON chunks.group_id = wanted.value AND chunks.resolution_ms IN (0, 60000, 3600000)
     AND chunks.max_ms >= ? AND chunks.min_ms <= ?";

/// The wanted series of a group and their rows there, ascending by id.
#[derive(Debug, Clone)]
pub(crate) struct Members(Arc<[(SeriesId, u32)]>);

impl Members {
    /// From series in the order of their ids.
    pub(crate) fn new(members: impl Iterator<Item = (SeriesId, u32)>) -> Self {
        Self(members.collect())
    }

    /// The place of a series among the wanted ones.
    pub(crate) fn place(&self, id: SeriesId) -> Option<usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    pub(crate) fn has(&self, id: SeriesId) -> bool {
        self.place(id).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeriesId, u32)> {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Samples of some series of a group, out of a chunk or out of what will be the next one.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The older chunk's sample wins where two have the same time.
    pub(crate) chunk: i64,
    pub(crate) frame: Frame<SeriesId>,
}

/// What is read of one group.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) group: Arc<Group>,
    pub(crate) members: Members,
    pub(crate) memory: Snapshot,
    pub(crate) pieces: Vec<Piece>,
    /// Series of which only the newest sample matters, and memory knew it; they are members no more.
    pub(crate) latest: Vec<(SeriesId, TimestampMs, f64)>,
}

/// A chunk as it lies on disk.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which of the groups that were asked for.
    pub(crate) group: usize,
    pub(crate) id: i64,
    pub(crate) members: Members,
    pub(crate) data: Arc<ChunkData>,
}

impl Wanted {
    pub(crate) fn new(group: Arc<Group>, members: Members) -> Self {
        Self {
            group,
            members,
            memory: Snapshot::default(),
            pieces: Vec::new(),
            latest: Vec::new(),
        }
    }

    /// Copies what memory has of the series that may have samples, and pays for it.
    pub(crate) fn read_memory(&mut self, cut: &Cut, budget: &Budget) -> Result<(), SelectError> {
        let samples = self.group.lock();
        let latest = &mut self.latest;
        let is_read = |(id, row): &(SeriesId, u32)| {
            if cut.latest
                && let Latest::Known(newest) = samples.latest(*row, cut.end_ms)
            {
                let newest = newest.filter(|(time_ms, _)| *time_ms >= cut.start_ms);
                latest.extend(newest.map(|(time_ms, value)| (*id, time_ms, value)));
                return false;
            }
            samples.overlaps(*row, cut.start_ms, cut.end_ms)
        };
        let members = Members::new(self.members.iter().filter(is_read));
        let known = self.latest.len() as u64;
        budget.take(known + members.len() as u64, known)?;
        if members.len() > 0 {
            let wanted = |id| members.has(id);
            self.memory = samples.snapshot(cut.start_ms, cut.end_ms, wanted);
        }
        drop(samples);
        self.members = members;
        budget.take(0, self.memory_cost(cut))?;
        Ok(())
    }

    /// Samples in memory that will be read.
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

    /// How much there is to decode and to merge, about: compressed bytes, and a byte for each sample that is not.
    pub(crate) fn bytes(&self) -> usize {
        let segments = self.memory.segments.iter().map(|segment| match segment.data() {
            Some(data) => data.len(),
            None => segment.samples as usize,
        });
        let live = self.memory.live.iter().map(|frame| frame.values.len());
        let pieces = self.pieces.iter().map(|piece| piece.frame.values.len());
        segments.chain(live).chain(pieces).sum()
    }

    /// Turns what memory has into pieces.
    pub(crate) fn decode_memory(&mut self, cut: &Cut) -> Result<(), SelectError> {
        let memory = std::mem::take(&mut self.memory);
        for segment in &memory.segments {
            let frames = segment.frames(&self.members, cut);
            let frames = frames.map_err(|error| SelectError::Store(Box::new(error)))?;
            self.add(segment.chunk, frames);
        }
        let live = memory.live.into_iter();
        let trimmed = live.filter_map(|frame| trim(frame, &self.members, cut));
        let trimmed: Vec<_> = trimmed.collect();
        self.add(i64::MAX, trimmed);
        Ok(())
    }

    fn add(&mut self, chunk: i64, frames: Vec<Frame<SeriesId>>) {
        let pieces = frames.into_iter().map(|frame| Piece { chunk, frame });
        self.pieces.extend(pieces);
    }
}

/// Samples of some series over some time, not all of which are wanted.
struct Part {
    samples: u64,
    series: u64,
    min_ms: TimestampMs,
    max_ms: TimestampMs,
}

impl Part {
    /// The wanted samples, about: those of so many series within the cut's range.
    fn cost(&self, wanted: u64, cut: &Cut) -> u64 {
        let span = |from: TimestampMs, to: TimestampMs| i128::from(to) - i128::from(from) + 1;
        let whole = span(self.min_ms, self.max_ms).max(1);
        let within = span(self.min_ms.max(cut.start_ms), self.max_ms.min(cut.end_ms)).clamp(0, whole);
        let samples = i128::from(self.samples) * within * i128::from(wanted.min(self.series));
        u64::try_from(samples / whole / i128::from(self.series.max(1)) + 1).unwrap_or(u64::MAX)
    }
}

/// Gets the chunks that memory does not have, from those kept since an earlier query or from disk.
pub(crate) fn read_chunks(
    shared: &Shared,
    runtime: &Handle,
    epoch: Epoch,
    wanted: &[Wanted],
    cut: &Cut,
    budget: &Budget,
) -> Result<Vec<Chunk>, SelectError> {
    let (mut chunks, mut unknown) = (Vec::new(), Vec::new());
    for (at, group) in wanted.iter().enumerate() {
        let known = lock(&shared.chunk_cache).get(group.group.id.0, (cut.start_ms, cut.end_ms));
        shared.counters.note_chunk_lookup(known.is_some());
        match known {
            Some(known) => {
                for stored in &known {
                    group.pay(stored, cut, budget)?;
                }
                chunks.extend(known.into_iter().filter_map(|stored| group.chunk(at, stored)));
            }
            None => unknown.push(at),
        }
    }
    let (start_ms, end_ms) = match unknown.len() <= WIDENED_GROUPS_MAX {
        true => widened(cut.start_ms, cut.end_ms),
        false => (cut.start_ms, cut.end_ms),
    };
    for some in unknown.chunks(GROUPS_A_QUERY) {
        let rows = runtime.block_on(select(shared, wanted, some, (start_ms, end_ms), cut, budget))?;
        for (at, stored) in some.iter().zip(rows) {
            let group = &wanted[*at];
            // Nothing comes behind the last one until a change says so.
            let end_ms = match end_ms >= group.memory.chunks_end_ms {
                true => TimestampMs::MAX,
                false => end_ms,
            };
            let within = stored
                .iter()
                .filter(|chunk| chunk.overlaps(cut.start_ms, cut.end_ms));
            chunks.extend(within.cloned().filter_map(|stored| group.chunk(*at, stored)));
            let id = group.group.id.0;
            lock(&shared.chunk_cache).keep(epoch, id, (start_ms, end_ms), stored);
        }
    }
    Ok(chunks)
}

/// The whole hours around a range: what is asked a little earlier or later the next time is known then.
fn widened(start_ms: TimestampMs, end_ms: TimestampMs) -> (TimestampMs, TimestampMs) {
    let before = start_ms.saturating_sub(start_ms.rem_euclid(HOUR_MS));
    let behind = end_ms.saturating_add(HOUR_MS - 1 - end_ms.rem_euclid(HOUR_MS));
    (before, behind)
}

/// The chunks of some of the groups, in the order of these. Rows come one by one and are paid for as they come, so that no
/// query gathers more than it may.
async fn select(
    shared: &Shared,
    wanted: &[Wanted],
    some: &[usize],
    (start_ms, end_ms): (TimestampMs, TimestampMs),
    cut: &Cut,
    budget: &Budget,
) -> Result<Vec<Vec<StoredChunk>>, SelectError> {
    let ids: Vec<i64> = some.iter().map(|at| wanted[*at].group.id.0).collect();
    let places: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
    let mut found = vec![Vec::new(); some.len()];
    let mut rows = sqlx::query_as::<_, Row>(CHUNKS)
        .bind(serde_json::Value::from(ids).to_string())
        .bind(start_ms)
        .bind(end_ms)
        .fetch(&shared.database.readers);
    while let Some((group, id, level, min_ms, max_ms, series, samples, data)) = rows
        .try_next()
        .await
        .map_err(|error| SelectError::Store(Box::new(error)))?
    {
        let Some(place) = places.get(&group).copied() else {
            continue;
        };
        let stored = StoredChunk {
            id,
            merged: level != 0,
            min_ms,
            max_ms,
            series: series.unsigned_abs(),
            samples: samples.unsigned_abs(),
            data: Arc::new(ChunkData::new(data)),
        };
        wanted[some[place]].pay(&stored, cut, budget)?;
        found[place].push(stored);
    }
    Ok(found)
}

/// A row of [`CHUNKS`].
type Row = (i64, i64, i64, TimestampMs, TimestampMs, i64, i64, Vec<u8>);

impl Wanted {
    /// Whether memory has the samples of a chunk. A merged one has the id of one that memory may have too, and holds more.
    fn has(&self, stored: &StoredChunk) -> bool {
        let mut segments = self.memory.segments.iter();
        !stored.merged && segments.any(|segment| segment.chunk == stored.id)
    }

    fn pay(&self, stored: &StoredChunk, cut: &Cut, budget: &Budget) -> Result<(), SelectError> {
        if self.has(stored) {
            return Ok(());
        }
        let part = Part {
            samples: stored.samples,
            series: stored.series,
            min_ms: stored.min_ms,
            max_ms: stored.max_ms,
        };
        Ok(budget.take(0, part.cost(self.members.len() as u64, cut))?)
    }

    fn chunk(&self, group: usize, stored: StoredChunk) -> Option<Chunk> {
        (!self.has(&stored)).then(|| Chunk {
            group,
            id: stored.id,
            members: self.members.clone(),
            data: stored.data,
        })
    }
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
    fn whole_hours_are_read() {
        assert_eq!(widened(HOUR_MS, HOUR_MS), (HOUR_MS, 2 * HOUR_MS - 1));
        assert_eq!(widened(-1, HOUR_MS - 1), (-HOUR_MS, HOUR_MS - 1));
        assert_eq!(widened(i64::MIN, i64::MAX), (i64::MIN, i64::MAX));
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
