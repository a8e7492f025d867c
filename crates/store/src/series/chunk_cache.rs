//! Chunks from disk, with what queries have read of them, kept in memory by group for the queries that come again: a dashboard
//! asks for the same hour every half a minute, a rule for the same five minutes. Without it most of a small query is SQLite
//! finding rows, and most of a larger one decompressing the same numbers.
//!
//! ```text
//! query:   epoch ─▶ memory of the group ─▶ get? no: SELECT ─▶ keep, unless the group changed since the epoch
//! sealed:  COMMIT ─▶ added(chunks): joined to what is kept of their groups, epoch + 1 ─▶ their samples leave memory
//! change:  COMMIT ─▶ changed(groups): forgotten, epoch + 1 ─▶ what the chunks made superfluous in memory goes
//! ```
//! So whoever finds something gone from memory finds no rows here that are older than that.

use std::collections::HashMap;
use std::sync::Arc;

use domain::time::{TimeRange, TimestampMs};
use hashlink::LinkedHashMap;
use sqlx::{Sqlite, Transaction};

use super::chunk_data::ChunkData;
use super::group_id::GroupId;
use super::{Shared, lock};

/// A share of all the memory that one group may take; a longer history is read from disk each time.
const GROUP_SHARE: usize = 8;
/// Changes remembered by group; more than there are groups in most clusters.
const CHANGES_MAX: usize = 1 << 16;
/// What a group and a row take beside the row's data.
const GROUP_BYTES: usize = 96;
const ROW_BYTES: usize = 96;

/// A 64th of the machine's memory, or of what this process may have of it; 64 MiB at least, 512 MiB at most.
pub(crate) fn bytes_max_of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    // What a container may have, where there is a limit.
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok());
    (memory.min(limit.unwrap_or(u64::MAX)) / 64).clamp(64 << 20, 512 << 20)
}

/// A row of the table of chunks.
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

/// The chunks of some groups, each over a range of its own; the least recently used go first.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    bytes_max: usize,
    bytes: usize,
    epoch: Epoch,
    groups: LinkedHashMap<i64, Kept>,
    /// The epoch that a group's last change began.
    changes: HashMap<i64, Epoch>,
    /// Of earlier epochs it is not known any more what changed.
    changes_since: Epoch,
}

/// Counts changes of chunks on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Epoch(u64);

/// All chunks of a group that reach into a range.
#[derive(Debug)]
struct Kept {
    /// As it was counted last; queries that read the chunks add to them.
    bytes: usize,
    range: TimeRange,
    chunks: Vec<StoredChunk>,
}

impl StoredChunk {
    /// Whether it reaches into a range of times.
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

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// To be asked before memory is looked at, and shown with what is read then.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A group's chunks that reach into a range, when it is known which those are.
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

    /// Keeps all chunks of a group that reach into a range, as they were read in an epoch.
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

    /// Chunks of these groups were read by a query, and may take more memory than before.
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

    /// Chunks were written beside those that there were. To be said after the commit and before their samples leave memory.
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

    /// Chunks of these groups are other ones now. To be said after the commit and before memory lets go of anything that the
    /// new ones hold.
    pub(crate) fn changed(&mut self, groups: impl IntoIterator<Item = i64>) {
        self.begin_epoch();
        for group in groups {
            self.changes.insert(group, self.epoch);
            self.forget(group);
        }
    }

    /// Chunks of any group may be other ones now.
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

    /// Whether a group's chunks may be other ones than in an epoch.
    fn has_changed(&self, since: Epoch, group: i64) -> bool {
        since < self.changes_since || self.changes.get(&group).is_some_and(|epoch| *epoch > since)
    }
}

impl Shared {
    /// Commits other chunks for some groups, and says so whether it failed or not: a failed commit may have been one.
    pub(crate) async fn commit_chunks(
        &self,
        transaction: Transaction<'_, Sqlite>,
        groups: Vec<i64>,
    ) -> Result<(), sqlx::Error> {
        let committed = transaction.commit().await;
        lock(&self.chunk_cache).changed(groups);
        committed
    }

    /// The same for chunks that are beside all others.
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
    fn what_is_known_of_a_range_answers_for_every_part_of_it() {
        let mut cache = ChunkCache::new(1 << 20);
        let chunks = vec![stored(1, 0, 99, 10), stored(2, 100, 199, 10)];
        cache.keep(cache.epoch(), 7, TimeRange::new(50, 150), chunks);
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 150))), Some(vec![1, 2]));
        assert_eq!(ids(cache.get(7, TimeRange::new(100, 120))), Some(vec![2]));
        assert_eq!(ids(cache.get(7, TimeRange::new(49, 150))), None);
        assert_eq!(ids(cache.get(7, TimeRange::new(50, 151))), None);
        assert_eq!(ids(cache.get(8, TimeRange::new(50, 150))), None);
        // A part of what is known does not replace it; more does.
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
        // No chunk at all is knowledge too.
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
    fn what_is_added_joins_what_it_lies_beside() {
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
        // One whose commit the reader saw already is not there twice.
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
    fn the_least_recently_used_go_and_one_group_never_takes_all() {
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
