//! A cache of chunks from disk, by group, with what queries have decompressed of them. Queries repeat: a dashboard reads the
//! same hour every half a minute, a rule the same five minutes. Without the cache, SQLite lookups dominate a small query and
//! decompressing the same numbers dominates a larger one.
//!
//! ```text
//! query:   epoch ─▶ memory of the group ─▶ get; on a miss: SELECT ─▶ keep, unless the group changed since the epoch
//! sealed:  COMMIT ─▶ added(chunks): appended to the cached chunks of their groups, epoch + 1 ─▶ their samples leave memory
//! change:  COMMIT ─▶ changed(groups): removed from the cache, epoch + 1 ─▶ memory drops what the chunks replace
//! ```
//! So a reader that no longer finds samples in memory never finds cached rows from before these samples were written to disk.

use std::collections::HashMap;
use std::sync::Arc;

use domain::time::{TimeRange, TimestampMs};
use hashlink::LinkedHashMap;
use sqlx::{Sqlite, Transaction};

use super::chunk_data::ChunkData;
use super::group_id::GroupId;
use super::{Shared, lock};

/// One group may take at most one part in this many of the cache. A longer history is read from disk each time.
const GROUP_SHARE: usize = 8;
/// The maximum number of groups whose last change is remembered: more than most clusters have.
const CHANGES_MAX: usize = 1 << 16;
/// The overhead of a group and of a row, without the data of the row.
const GROUP_BYTES: usize = 96;
const ROW_BYTES: usize = 96;

/// Returns a 64th of the machine's memory, or of this process's memory limit if that is lower; at least 64 MiB, at most 512
/// MiB.
pub(crate) fn bytes_max_of_machine() -> u64 {
    (crate::machine::memory_bytes() / 64).clamp(64 << 20, 512 << 20)
}

/// A row of the table `chunks`.
#[derive(Debug, Clone)]
pub(crate) struct StoredChunk {
    pub(crate) id: i64,
    pub(crate) merged: bool,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) series: u64,
    pub(crate) samples: u64,
    pub(crate) data: Arc<ChunkData>,
}

/// The cached chunks of some groups, each group over its own range. The least recently used groups are removed first.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    bytes_max: usize,
    bytes: usize,
    epoch: Epoch,
    groups: LinkedHashMap<i64, Kept>,
    /// The epoch of each group's last change.
    changes: HashMap<i64, Epoch>,
    /// Changes before this epoch are no longer known.
    changes_since: Epoch,
}

/// A counter of the changes of chunks on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Epoch(u64);

/// All chunks of a group that overlap a range.
#[derive(Debug)]
struct Kept {
    /// The size at the last count. Queries that read the chunks increase it.
    bytes: usize,
    range: TimeRange,
    chunks: Vec<StoredChunk>,
}

impl StoredChunk {
    /// Returns true if the chunk overlaps a range of times.
    pub(crate) fn overlaps(&self, range: TimeRange) -> bool {
        TimeRange::new(self.min_ms, self.max_ms).overlaps(range)
    }
}

impl ChunkCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            bytes: 0,
            epoch: Epoch::default(),
            groups: LinkedHashMap::new(),
            changes: HashMap::new(),
            changes_since: Epoch::default(),
        }
    }

    /// Returns the size of the cache in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the current epoch. A query calls this before it reads memory, and passes the result to [`ChunkCache::keep`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns all chunks of a group that overlap a range, or `None` if the cache does not cover the range.
    pub(crate) fn get(&mut self, group: i64, range: TimeRange) -> Option<Vec<StoredChunk>> {
        let kept = self.groups.get(&group)?;
        if !kept.range.covers(range) {
            return None;
        }
        let within = kept.chunks.iter().filter(|chunk| chunk.overlaps(range));
        let found = within.cloned().collect();
        self.groups.to_back(&group);
        Some(found)
    }

    /// Caches all chunks of a group that overlap a range, as they were read in an epoch.
    pub(crate) fn keep(&mut self, epoch: Epoch, group: i64, range: TimeRange, chunks: Vec<StoredChunk>) {
        let mut kept = Kept {
            bytes: 0,
            range,
            chunks,
        };
        kept.bytes = kept.count();
        let known = |before: &Kept| before.range.covers(range);
        if self.has_changed(epoch, group)
            || kept.bytes > self.bytes_max / GROUP_SHARE
            || self.groups.get(&group).is_some_and(known)
        {
            return;
        }
        self.bytes += kept.bytes;
        if let Some(before) = self.groups.insert(group, kept) {
            self.bytes -= before.bytes;
        }
        self.shrink();
    }

    /// Updates the size of these groups after a query has read their chunks.
    pub(crate) fn recount(&mut self, groups: impl IntoIterator<Item = i64>) {
        for group in groups {
            if let Some(kept) = self.groups.get_mut(&group) {
                let bytes = kept.count();
                self.bytes -= std::mem::replace(&mut kept.bytes, bytes);
                self.bytes += bytes;
                if bytes > self.bytes_max / GROUP_SHARE {
                    self.forget(group);
                }
            }
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.groups.pop_front()
        {
            self.bytes -= oldest.bytes;
        }
    }

    fn forget(&mut self, group: i64) {
        if let Some(gone) = self.groups.remove(&group) {
            self.bytes -= gone.bytes;
        }
    }

    /// Adds chunks that were written without replacing others. Call it after the commit and before their samples leave memory.
    pub(crate) fn added(&mut self, chunks: Vec<(GroupId, StoredChunk)>) {
        self.begin_epoch();
        for (GroupId(group), chunk) in chunks {
            self.changes.insert(group, self.epoch);
            let Some(kept) = self.groups.get_mut(&group) else {
                continue;
            };
            let is_known = kept.chunks.iter().any(|known| known.id == chunk.id);
            if chunk.overlaps(kept.range) && !is_known {
                kept.chunks.push(chunk);
                self.recount([group]);
            }
        }
    }

    /// Removes groups whose chunks have changed. Call it after the commit and before memory drops samples that the new chunks
    /// contain.
    pub(crate) fn changed(&mut self, groups: impl IntoIterator<Item = i64>) {
        self.begin_epoch();
        for group in groups {
            self.changes.insert(group, self.epoch);
            self.forget(group);
        }
    }

    /// Clears the cache, because chunks of any group may have changed.
    pub(crate) fn all_changed(&mut self) {
        self.begin_epoch();
        self.changes.clear();
        self.changes_since = self.epoch;
        self.groups.clear();
        self.bytes = 0;
    }

    fn begin_epoch(&mut self) {
        self.epoch.0 += 1;
        if self.changes.len() > CHANGES_MAX {
            self.changes.clear();
            self.changes_since = self.epoch;
        }
    }

    /// Returns true if the chunks of a group may have changed since an epoch.
    fn has_changed(&self, since: Epoch, group: i64) -> bool {
        since < self.changes_since || self.changes.get(&group).is_some_and(|epoch| *epoch > since)
    }
}

impl Shared {
    /// Commits changed chunks of some groups. The cache drops these groups even if the commit fails: it may still have taken
    /// effect.
    pub(crate) async fn commit_chunks(
        &self,
        transaction: Transaction<'_, Sqlite>,
        groups: Vec<i64>,
    ) -> Result<(), sqlx::Error> {
        let committed = transaction.commit().await;
        lock(&self.chunk_cache).changed(groups);
        committed
    }

    /// Commits chunks that were added without replacing others.
    pub(crate) async fn commit_new_chunks(
        &self,
        transaction: Transaction<'_, Sqlite>,
        chunks: Vec<(GroupId, StoredChunk)>,
    ) -> Result<(), sqlx::Error> {
        let committed = transaction.commit().await;
        let mut cache = lock(&self.chunk_cache);
        match &committed {
            Ok(()) => cache.added(chunks),
            Err(_) => cache.changed(chunks.iter().map(|(group, _)| group.0)),
        }
        committed
    }
}

impl Kept {
    fn count(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| chunk.data.memory() + ROW_BYTES);
        GROUP_BYTES + chunks.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Frame;

    use super::super::cut::Cut;
    use super::super::members::Members;
    use super::super::rollup::View;
    use super::super::{SeriesId, chunk};
    use super::*;

    fn stored(id: i64, min_ms: i64, max_ms: i64, bytes: usize) -> StoredChunk {
        StoredChunk {
            id,
            merged: true,
            min_ms,
            max_ms,
            series: 1,
            samples: 1,
            data: Arc::new(ChunkData::new(vec![0; bytes])),
        }
    }

    fn ids(found: Option<Vec<StoredChunk>>) -> Option<Vec<i64>> {
        found.map(|chunks| chunks.iter().map(|chunk| chunk.id).collect())
    }

    #[test]
    fn a_cached_range_answers_for_each_part_of_it() {
        let mut cache = ChunkCache::new(1 << 20);
        let chunks = vec![stored(1, 0, 99, 10), stored(2, 100, 199, 10)];
        cache.keep(cache.epoch(), 7, TimeRange::new(50, 150), chunks);
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 150))), Some(vec![1, 2]));
        assert_eq!(ids(cache.get(7, TimeRange::new(100, 120))), Some(vec![2]));
        assert_eq!(ids(cache.get(7, TimeRange::new(49, 150))), None);
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 151))), None);
        assert_eq!(ids(cache.get(8, TimeRange::new(50, 150))), None);
        // A part of a cached range does not replace it; a larger range does.
        cache.keep(
            cache.epoch(),
            7,
            TimeRange::new(60, 70),
            vec![stored(1, 0, 99, 10)],
        );
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 150))), Some(vec![1, 2]));
        cache.keep(
            cache.epoch(),
            7,
            TimeRange::new(0, 50),
            vec![stored(1, 0, 99, 10)],
        );
        assert_eq!(ids(cache.get(7, TimeRange::new(0, 50))), Some(vec![1]));
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 150))), None);
        // A range without chunks is cached too.
        cache.keep(cache.epoch(), 9, TimeRange::new(0, 50), Vec::new());
        assert_eq!(ids(cache.get(9, TimeRange::new(0, 50))), Some(vec![]));
    }

    #[test]
    fn what_changed_is_forgotten_and_not_kept_from_before() {
        let mut cache = ChunkCache::new(1 << 20);
        let before = cache.epoch();
        cache.keep(before, 1, TimeRange::new(0, 9), vec![stored(1, 0, 9, 10)]);
        cache.keep(before, 2, TimeRange::new(0, 9), vec![stored(2, 0, 9, 10)]);
        cache.changed([1]);
        assert_eq!(
            (
                ids(cache.get(1, TimeRange::new(0, 9))),
                ids(cache.get(2, TimeRange::new(0, 9)))
            ),
            (None, Some(vec![2]))
        );
        cache.keep(before, 1, TimeRange::new(0, 9), vec![stored(1, 0, 9, 10)]);
        assert_eq!(
            ids(cache.get(1, TimeRange::new(0, 9))),
            None,
            "read before the change"
        );
        cache.all_changed();
        assert_eq!(
            (ids(cache.get(2, TimeRange::new(0, 9))), cache.bytes()),
            (None, 0)
        );
    }

    #[test]
    fn an_added_range_is_joined_with_its_neighbours() {
        let mut cache = ChunkCache::new(1 << 20);
        let before = cache.epoch();
        cache.keep(before, 1, TimeRange::new(0, 100), vec![stored(1, 0, 9, 10)]);
        cache.keep(before, 2, TimeRange::new(0, 5), Vec::new());
        let added = |group, id, min_ms, max_ms| (GroupId(group), stored(id, min_ms, max_ms, 10));
        cache.added(vec![
            added(1, 5, 20, 29),
            added(2, 6, 20, 29),
            added(3, 7, 20, 29),
        ]);
        assert_eq!(ids(cache.get(1, TimeRange::new(0, 100))), Some(vec![1, 5]));
        assert_eq!(
            ids(cache.get(2, TimeRange::new(0, 5))),
            Some(vec![]),
            "it lies behind what is known"
        );
        for group in [1, 2, 3] {
            cache.keep(before, group, TimeRange::new(0, 200), Vec::new());
            assert_eq!(
                ids(cache.get(group, TimeRange::new(0, 200))),
                None,
                "read before it was added"
            );
        }
        // A chunk whose commit the reader has already seen is not added twice.
        cache.added(vec![added(1, 5, 20, 29)]);
        assert_eq!(ids(cache.get(1, TimeRange::new(0, 100))), Some(vec![1, 5]));
        cache.keep(before, 4, TimeRange::new(0, 9), Vec::new());
        assert_eq!(
            ids(cache.get(4, TimeRange::new(0, 9))),
            Some(vec![]),
            "others did not change"
        );
        cache.changed([1, 2, 4]);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_queries_read_counts_and_is_read_once() {
        let frame = Frame {
            series: vec![SeriesId(1), SeriesId(2)],
            times_ms: (0..200).collect(),
            values: (0..400).map(|n| f64::from(n * 37 % 101)).collect(),
        };
        let data = Arc::new(ChunkData::new(chunk::encode(std::slice::from_ref(&frame))));
        let stored = StoredChunk {
            data: Arc::clone(&data),
            ..stored(1, 0, 199, 0)
        };
        let mut cache = ChunkCache::new(1 << 20);
        cache.keep(cache.epoch(), 1, TimeRange::new(0, 199), vec![stored]);
        let members = |id| Members::new([(SeriesId(id), 0)].into_iter());
        let read = |id| {
            data.pieces(1, View::default(), &members(id), &Cut::within(0, 199))
                .unwrap()
                .1
        };
        let mut sizes = vec![cache.bytes()];
        for id in [1, 1, 2, 3] {
            let found = read(id);
            assert_eq!(found.len(), usize::from(id < 3));
            assert!(
                found
                    .iter()
                    .all(|found| found.frame().values == frame.row(id as usize - 1))
            );
            cache.recount([1]);
            sizes.push(cache.bytes());
        }
        let row = 200;
        assert!(sizes[1] >= sizes[0] + row, "{sizes:?}");
        assert_eq!(sizes[2], sizes[1]);
        assert_eq!([sizes[3], sizes[4]], [sizes[2] + row; 2]);
        cache.changed([1]);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn the_least_recently_used_are_removed_and_no_group_uses_the_whole_cache() {
        let each = GROUP_BYTES + ROW_BYTES + 1_000;
        let mut cache = ChunkCache::new(10 * each as u64);
        for group in 0..10 {
            cache.keep(
                cache.epoch(),
                group,
                TimeRange::new(0, 9),
                vec![stored(group, 0, 9, 1_000)],
            );
        }
        assert_eq!(cache.bytes(), 10 * each);
        assert!(cache.get(0, TimeRange::new(0, 9)).is_some());
        cache.keep(
            cache.epoch(),
            10,
            TimeRange::new(0, 9),
            vec![stored(10, 0, 9, 1_000)],
        );
        assert!(cache.get(0, TimeRange::new(0, 9)).is_some(), "it was used since");
        assert!(cache.get(1, TimeRange::new(0, 9)).is_none());
        cache.keep(
            cache.epoch(),
            11,
            TimeRange::new(0, 9),
            vec![stored(11, 0, 9, 2 * each)],
        );
        assert!(cache.get(11, TimeRange::new(0, 9)).is_none());
        assert_eq!(cache.bytes(), 10 * each);
        while let Some(group) = (0..12).find(|group| cache.get(*group, TimeRange::new(0, 9)).is_some()) {
            cache.changed([group]);
        }
        assert_eq!(cache.bytes(), 0, "all that was counted is given back");
    }
}
