//! Reads one selection: searches the series, reads each group from memory and disk, merges, and adds labels.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, SelectError, Selection, Series, SeriesSet};
use domain::time::TimeRange;
use tokio::runtime::Handle;

use super::chunk_cache::{Epoch, StoredChunk};
use super::cut::Cut;
use super::fetch::{Disk, GroupSelection};
use super::index::{Entry, Index};
use super::members::Members;
use super::merge::{Axes, Found, merge};
use super::rollup::{self, HOUR_MS, View};
use super::work_pool::run_on_cores;
use super::{Shared, lock, read};

/// Up to this many groups, whole hours are read: about ten kilobytes per hour and group. With more groups, only what the query
/// needs.
const WIDENED_GROUPS_MAX: usize = 512;
/// The maximum number of chunks that are read on a thread that must not block. Roll-ups are decoded again each time.
const CACHED_CHUNKS_MAX: usize = 64;

/// The state that all steps of reading one selection share.
pub(crate) struct Reading {
    shared: Arc<Shared>,
    matchers: Vec<CompiledMatcher>,
    cut: Cut,
    /// The aggregate that is read from roll-ups.
    view: View,
    /// The longest bucket of a roll-up that was read; 0 if there was none.
    resolution_ms: AtomicI64,
    budget: Budget,
    axes: Mutex<Axes>,
}

impl Reading {
    pub(crate) fn new(
        shared: Arc<Shared>,
        matchers: Vec<CompiledMatcher>,
        selection: &Selection,
        budget: &Budget,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            matchers,
            cut: Cut::of(selection),
            view: rollup::view(selection.function.as_deref()),
            resolution_ms: AtomicI64::default(),
            budget: budget.clone(),
            axes: Mutex::default(),
        })
    }

    /// Reads on this thread, which may block, and on other threads where that is worthwhile.
    pub(crate) fn run(self: Arc<Self>, runtime: &Handle) -> Result<SeriesSet, SelectError> {
        let epoch = lock(&self.shared.chunk_cache).epoch();
        let mut groups = self.search();
        let range = match groups.len() <= WIDENED_GROUPS_MAX {
            true => widened(self.cut.range),
            false => self.cut.range,
        };
        if groups.len() == 1 {
            let only = groups.remove(0);
            let found = self.read(only, epoch, range, Some(runtime))?;
            let series = Self::named(&read(&self.shared.index), found);
            return Ok(self.sorted(series));
        }
        let this = Arc::clone(&self);
        let found = run_on_cores(runtime, groups, move |group| this.read(group, epoch, range, None))?;
        let found = found.into_iter().flatten().collect();
        let series = Self::named(&read(&self.shared.index), found);
        Ok(self.sorted(series))
    }

    /// Reads a selection of few series if memory or the cache has all of their wanted samples and no task is changing names.
    /// Returns `None` otherwise, or if the budget does not cover it.
    pub(crate) fn cached(&self) -> Option<SeriesSet> {
        let epoch = lock(&self.shared.chunk_cache).epoch();
        let groups = {
            let index = self.shared.index.try_read().ok()?;
            let found = index.find(&self.matchers);
            (found.len() <= self.budget.series_left()).then(|| by_group(index.entries_of(&found)))?
        };
        let (mut all, mut chunks) = (Vec::new(), 0);
        for mut group in groups {
            group.read_memory(&self.cut, &self.budget).ok()?;
            let mut cached = None;
            if group.memory.disk {
                let of_group = group.cached_chunks(&self.shared, &self.cut)?;
                chunks += of_group.len();
                if chunks > CACHED_CHUNKS_MAX || of_group.iter().any(|chunk| chunk.data.is_rollup()) {
                    return None;
                }
                cached = Some(of_group);
            }
            let range = self.cut.range;
            all.extend(self.merged(group, cached, epoch, range, None).ok()?);
        }
        let series = Self::named(&*self.shared.index.try_read().ok()?, all);
        Some(self.sorted(series))
    }

    /// Returns the matching series by group.
    fn search(&self) -> Vec<GroupSelection> {
        by_group(read(&self.shared.index).search(&self.matchers))
    }

    /// Reads one group, first from memory and then from disk: what leaves memory in between was on disk before.
    fn read(
        &self,
        mut group: GroupSelection,
        epoch: Epoch,
        range: TimeRange,
        runtime: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        self.budget.check_cancelled()?;
        group.read_memory(&self.cut, &self.budget)?;
        let cached = match group.memory.disk {
            true => group.cached_chunks(&self.shared, &self.cut),
            false => None,
        };
        self.merged(group, cached, epoch, range, runtime)
    }

    /// Reads a group whose memory was already read; `cached` are its chunks if the cache has them.
    fn merged(
        &self,
        mut group: GroupSelection,
        cached: Option<Vec<StoredChunk>>,
        epoch: Epoch,
        range: TimeRange,
        runtime: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        if group.memory.disk {
            let disk = Disk {
                shared: &self.shared,
                epoch,
                range,
                view: self.view,
                cut: &self.cut,
                budget: &self.budget,
                runtime,
            };
            let bucket_ms = group.read_disk(&disk, cached)?;
            self.resolution_ms.fetch_max(bucket_ms, Ordering::Relaxed);
        }
        group.decode_memory(&self.cut)?;
        Ok(merge(group, &self.cut, &self.axes))
    }

    /// Adds the labels. A series that was deleted in the meantime is left out.
    fn named(index: &Index, found: Vec<Found>) -> Vec<Series> {
        let named = found.into_iter().filter_map(|found| {
            Some(Series {
                labels: index.entry(found.id)?.labels(),
                times_ms: found.times_ms,
                values: found.values,
            })
        });
        named.collect()
    }

    /// Sorts the series by labels.
    fn sorted(&self, mut series: Vec<Series>) -> SeriesSet {
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        let resolution_ms = self.resolution_ms.load(Ordering::Relaxed);
        SeriesSet {
            series,
            resolution_ms: (resolution_ms > 0).then_some(resolution_ms),
        }
    }
}

/// Groups the series by their group.
fn by_group(mut found: Vec<Entry<'_>>) -> Vec<GroupSelection> {
    found.sort_by_key(|entry| entry.group.id);
    let groups = found.chunk_by(|a, b| a.group.id == b.group.id);
    let wanted = groups.map(|entries| {
        let members = entries.iter().map(|entry| (entry.id, entry.row));
        GroupSelection::new(Arc::clone(entries[0].group), Members::new(members))
    });
    wanted.collect()
}

/// Returns the whole hours around a range, so that the next query, with a slightly different range, finds them in the cache.
fn widened(TimeRange { start_ms, end_ms }: TimeRange) -> TimeRange {
    let before = start_ms.saturating_sub(start_ms.rem_euclid(HOUR_MS));
    let behind = end_ms.saturating_add(HOUR_MS - 1 - end_ms.rem_euclid(HOUR_MS));
    TimeRange::new(before, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_hours_are_read() {
        let check = |start_ms, end_ms, from_ms, to_ms| {
            let wide = widened(TimeRange::new(start_ms, end_ms));
            assert_eq!(wide, TimeRange::new(from_ms, to_ms));
        };
        check(HOUR_MS, HOUR_MS, HOUR_MS, 2 * HOUR_MS - 1);
        check(-1, HOUR_MS - 1, -HOUR_MS, HOUR_MS - 1);
        check(i64::MIN, i64::MAX, i64::MIN, i64::MAX);
    }
}
