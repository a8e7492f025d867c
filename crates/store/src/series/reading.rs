//! One selection on its way to an answer: searched, then group by group read from memory and disk and merged, and named.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, SelectError, Selection, Series, SeriesSet};
use domain::time::TimeRange;
use tokio::runtime::Handle;

use super::chunk_cache::{Epoch, StoredChunk};
use super::cores::on_cores;
use super::cut::Cut;
use super::fetch::{Disk, Wanted};
use super::index::{Entry, Index};
use super::members::Members;
use super::merge::{Axes, Found, merge};
use super::rollup::{self, HOUR_MS, View};
use super::{Shared, lock, read};

/// Of so many groups, whole hours are read: some ten kilobytes an hour each. Of more only what the query needs.
const WIDENED_GROUPS_MAX: usize = 512;
/// From more chunks nothing is read on a thread that must not block. Roll-ups are made anew each time.
const KNOWN_CHUNKS_MAX: usize = 64;

/// What all steps of reading one selection share.
pub(crate) struct Reading {
    shared: Arc<Shared>,
    matchers: Vec<CompiledMatcher>,
    cut: Cut,
    /// What roll-ups are read as.
    view: View,
    /// The longest bucket of a roll-up that was read; 0 for none.
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

    /// Reads on this thread, which may block, and on others where that is worth it.
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
        let found = on_cores(runtime, groups, move |group| this.read(group, epoch, range, None))?;
        let found = found.into_iter().flatten().collect();
        let series = Self::named(&read(&self.shared.index), found);
        Ok(self.sorted(series))
    }

    /// Reads few series, where memory has all that is wanted of them and nobody writes names; `None` where that is not so, or they
    /// are more than the budget is for.
    pub(crate) fn known(&self) -> Option<SeriesSet> {
        let epoch = lock(&self.shared.chunk_cache).epoch();
        let groups = {
            let index = self.shared.index.try_read().ok()?;
            let found = index.find(&self.matchers);
            (found.len() <= self.budget.series_left()).then(|| by_group(index.entries_of(&found)))?
        };
        let (mut all, mut chunks) = (Vec::new(), 0);
        for mut group in groups {
            group.read_memory(&self.cut, &self.budget).ok()?;
            let mut known = None;
            if group.memory.disk {
                let of_group = group.known(&self.shared, &self.cut)?;
                chunks += of_group.len();
                if chunks > KNOWN_CHUNKS_MAX || of_group.iter().any(|chunk| chunk.data.is_rollup()) {
                    return None;
                }
                known = Some(of_group);
            }
            let range = self.cut.range;
            all.extend(self.merged(group, known, epoch, range, None).ok()?);
        }
        let series = Self::named(&*self.shared.index.try_read().ok()?, all);
        Some(self.sorted(series))
    }

    /// The matching series by group.
    fn search(&self) -> Vec<Wanted> {
        by_group(read(&self.shared.index).search(&self.matchers))
    }

    /// One group, from memory and then from disk: what leaves memory meanwhile is there before.
    fn read(
        &self,
        mut group: Wanted,
        epoch: Epoch,
        range: TimeRange,
        cores: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        self.budget.check_cancelled()?;
        group.read_memory(&self.cut, &self.budget)?;
        let known = match group.memory.disk {
            true => group.known(&self.shared, &self.cut),
            false => None,
        };
        self.merged(group, known, epoch, range, cores)
    }

    /// A group whose memory was read, with its chunks where they are known.
    fn merged(
        &self,
        mut group: Wanted,
        known: Option<Vec<StoredChunk>>,
        epoch: Epoch,
        range: TimeRange,
        cores: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        if group.memory.disk {
            let disk = Disk {
                shared: &self.shared,
                epoch,
                range,
                view: self.view,
                cut: &self.cut,
                budget: &self.budget,
                cores,
            };
            let bucket_ms = group.read_disk(&disk, known)?;
            self.resolution_ms.fetch_max(bucket_ms, Ordering::Relaxed);
        }
        group.decode_memory(&self.cut)?;
        Ok(merge(group, &self.cut, &self.axes))
    }

    /// With their labels. A series that was deleted meanwhile is left out.
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

    /// In the order of their labels.
    fn sorted(&self, mut series: Vec<Series>) -> SeriesSet {
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        let resolution_ms = self.resolution_ms.load(Ordering::Relaxed);
        SeriesSet {
            series,
            resolution_ms: (resolution_ms > 0).then_some(resolution_ms),
        }
    }
}

/// Series by the group that they are in.
fn by_group(mut found: Vec<Entry<'_>>) -> Vec<Wanted> {
    found.sort_by_key(|entry| entry.group.id);
    let groups = found.chunk_by(|a, b| a.group.id == b.group.id);
    let wanted = groups.map(|entries| {
        let members = entries.iter().map(|entry| (entry.id, entry.row));
        Wanted::new(Arc::clone(entries[0].group), Members::new(members))
    });
    wanted.collect()
}

/// The whole hours around a range: what is asked a little earlier or later the next time is known then.
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
