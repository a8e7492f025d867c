//! Chunks as they lie on disk, kept in memory by group for the queries that come again: a dashboard asks for the same hour every
//! half a minute, a rule for the same five minutes. Without it most of a small query is SQLite finding rows.
//!
//! ```text
//! query:   epoch ─▶ memory of the group ─▶ get? no: SELECT ─▶ keep, unless a change came since the epoch
//! change:  COMMIT ─▶ changed(groups): forgotten, epoch + 1 ─▶ what the chunk made superfluous in memory goes
//! ```
//! So whoever finds something gone from memory finds no rows here that are older than that.

use std::sync::Arc;

use domain::time::TimestampMs;
use hashlink::LinkedHashMap;
use sqlx::{Sqlite, Transaction};

use super::{Shared, lock};

/// A share of all the memory that one group may take; a longer history is read from disk each time.
const GROUP_SHARE: usize = 8;
/// What a group and a row take beside the row's data.
const GROUP_BYTES: usize = 96;
const ROW_BYTES: usize = 96;

/// A row of the table of chunks.
#[derive(Debug, Clone)]
pub(crate) struct StoredChunk {
    pub(crate) id: i64,
    pub(crate) merged: bool,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) series: u64,
    pub(crate) samples: u64,
    pub(crate) data: Arc<[u8]>,
}

/// The chunks of some groups, each over a range of its own; the least recently used go first.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    bytes_max: usize,
    bytes: usize,
    epoch: Epoch,
    groups: LinkedHashMap<i64, Kept>,
}

/// Counts changes of chunks on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epoch(u64);

/// All chunks of a group that reach into a range.
#[derive(Debug)]
struct Kept {
    start_ms: TimestampMs,
    end_ms: TimestampMs,
    chunks: Vec<StoredChunk>,
}

impl ChunkCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            bytes: 0,
            epoch: Epoch::default(),
            groups: LinkedHashMap::new(),
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
    pub(crate) fn get(
        &mut self,
        group: i64,
        (start_ms, end_ms): (TimestampMs, TimestampMs),
    ) -> Option<Vec<StoredChunk>> {
        let kept = self.groups.get(&group)?;
        if !kept.covers(start_ms, end_ms) {
            return None;
        }
        let within = |chunk: &&StoredChunk| chunk.max_ms >= start_ms && chunk.min_ms <= end_ms;
        let found = kept.chunks.iter().filter(within).cloned().collect();
        self.groups.to_back(&group);
        Some(found)
    }

    /// Keeps all chunks of a group that reach into a range, as they were read in an epoch.
    pub(crate) fn keep(
        &mut self,
        epoch: Epoch,
        group: i64,
        (start_ms, end_ms): (TimestampMs, TimestampMs),
        chunks: Vec<StoredChunk>,
    ) {
        let kept = Kept {
            start_ms,
            end_ms,
            chunks,
        };
        let known = |before: &Kept| before.covers(start_ms, end_ms);
        if epoch != self.epoch
            || kept.bytes() > self.bytes_max / GROUP_SHARE
            || self.groups.get(&group).is_some_and(known)
        {
            return;
        }
        self.bytes += kept.bytes();
        if let Some(before) = self.groups.insert(group, kept) {
            self.bytes -= before.bytes();
        }
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.groups.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// Chunks of these groups are other ones now. To be said after the commit and before memory lets go of anything that the
    /// new ones hold.
    pub(crate) fn changed(&mut self, groups: impl IntoIterator<Item = i64>) {
        self.epoch.0 += 1;
        for group in groups {
            if let Some(gone) = self.groups.remove(&group) {
                self.bytes -= gone.bytes();
            }
        }
    }

    /// Chunks of any group may be other ones now.
    pub(crate) fn all_changed(&mut self) {
        self.epoch.0 += 1;
        self.groups.clear();
        self.bytes = 0;
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
}

impl Kept {
    fn covers(&self, start_ms: TimestampMs, end_ms: TimestampMs) -> bool {
        self.start_ms <= start_ms && end_ms <= self.end_ms
    }

    fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| chunk.data.len() + ROW_BYTES);
        GROUP_BYTES + chunks.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: i64, min_ms: i64, max_ms: i64, bytes: usize) -> StoredChunk {
        StoredChunk {
            id,
            merged: true,
            min_ms,
            max_ms,
            series: 1,
            samples: 1,
            data: vec![0; bytes].into(),
        }
    }

    fn ids(found: Option<Vec<StoredChunk>>) -> Option<Vec<i64>> {
        found.map(|chunks| chunks.iter().map(|chunk| chunk.id).collect())
    }

    #[test]
    fn what_is_known_of_a_range_answers_for_every_part_of_it() {
        let mut cache = ChunkCache::new(1 << 20);
        let chunks = vec![chunk(1, 0, 99, 10), chunk(2, 100, 199, 10)];
        cache.keep(cache.epoch(), 7, (50, 150), chunks);
        assert_eq!(ids(cache.get(7, (50, 150))), Some(vec![1, 2]));
        assert_eq!(ids(cache.get(7, (100, 120))), Some(vec![2]));
        assert_eq!(ids(cache.get(7, (49, 150))), None);
        assert_eq!(ids(cache.get(7, (50, 151))), None);
        assert_eq!(ids(cache.get(8, (50, 150))), None);
        // A part of what is known does not replace it; more does.
        cache.keep(cache.epoch(), 7, (60, 70), vec![chunk(1, 0, 99, 10)]);
        assert_eq!(ids(cache.get(7, (50, 150))), Some(vec![1, 2]));
        cache.keep(cache.epoch(), 7, (0, 50), vec![chunk(1, 0, 99, 10)]);
        assert_eq!(ids(cache.get(7, (0, 50))), Some(vec![1]));
        assert_eq!(ids(cache.get(7, (50, 150))), None);
        // No chunk at all is knowledge too.
        cache.keep(cache.epoch(), 9, (0, 50), Vec::new());
        assert_eq!(ids(cache.get(9, (0, 50))), Some(vec![]));
    }

    #[test]
    fn what_changed_is_forgotten_and_not_kept_from_before() {
        let mut cache = ChunkCache::new(1 << 20);
        let before = cache.epoch();
        cache.keep(before, 1, (0, 9), vec![chunk(1, 0, 9, 10)]);
        cache.keep(before, 2, (0, 9), vec![chunk(2, 0, 9, 10)]);
        cache.changed([1]);
        assert_eq!(
            (ids(cache.get(1, (0, 9))), ids(cache.get(2, (0, 9)))),
            (None, Some(vec![2]))
        );
        cache.keep(before, 1, (0, 9), vec![chunk(1, 0, 9, 10)]);
        assert_eq!(ids(cache.get(1, (0, 9))), None, "read before the change");
        cache.all_changed();
        assert_eq!((ids(cache.get(2, (0, 9))), cache.bytes()), (None, 0));
    }

    #[test]
    fn the_least_recently_used_go_and_one_group_never_takes_all() {
        let each = GROUP_BYTES + ROW_BYTES + 1_000;
        let mut cache = ChunkCache::new(10 * each as u64);
        for group in 0..10 {
            cache.keep(cache.epoch(), group, (0, 9), vec![chunk(group, 0, 9, 1_000)]);
        }
        assert_eq!(cache.bytes(), 10 * each);
        assert!(cache.get(0, (0, 9)).is_some());
        cache.keep(cache.epoch(), 10, (0, 9), vec![chunk(10, 0, 9, 1_000)]);
        assert!(cache.get(0, (0, 9)).is_some(), "it was used since");
        assert!(cache.get(1, (0, 9)).is_none());
        cache.keep(cache.epoch(), 11, (0, 9), vec![chunk(11, 0, 9, 2 * each)]);
        assert!(cache.get(11, (0, 9)).is_none());
        assert_eq!(cache.bytes(), 10 * each);
        while let Some(group) = (0..12).find(|group| cache.get(*group, (0, 9)).is_some()) {
            cache.changed([group]);
        }
        assert_eq!(cache.bytes(), 0, "all that was counted is given back");
    }
}
