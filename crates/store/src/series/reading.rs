//! One selection on its way to an answer: searched, then group by group read from memory and disk and merged, and named.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, SelectError, Selection, Series, SeriesSet};
use domain::time::TimestampMs;
use tokio::runtime::Handle;

use super::chunk_cache::Epoch;
use super::cores::on_cores;
use super::cut::Cut;
use super::fetch::{Disk, Members, Wanted};
use super::index::Entry;
use super::merge::{Axes, Found, merge};
use super::rollup::{self, HOUR_MS, View};
use super::{Shared, lock, read};

/// Of so many groups, whole hours are read: some ten kilobytes an hour each. Of more only what the query needs.
const WIDENED_GROUPS_MAX: usize = 512;
/// Of more series nothing is read on a thread that must not block.
const KNOWN_SERIES_MAX: u64 = 16;

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
            true => widened(self.cut.start_ms, self.cut.end_ms),
            false => (self.cut.start_ms, self.cut.end_ms),
        };
        if groups.len() == 1 {
            let only = groups.remove(0);
            return Ok(self.named(self.read(only, epoch, range, Some(runtime))?));
        }
        let this = Arc::clone(&self);
        let found = on_cores(runtime, groups, move |group| this.read(group, epoch, range, None))?;
        Ok(self.named(found.into_iter().flatten().collect()))
    }

    /// Reads few series, where memory has all that is wanted of them and nobody has to be waited for; `None` where that is not so.
    pub(crate) fn known(&self) -> Option<SeriesSet> {
        let epoch = lock(&self.shared.chunk_cache).epoch();
        let groups = {
            let index = self.shared.index.try_read().ok()?;
            let found = index.find(&self.matchers);
            (found.len() <= KNOWN_SERIES_MAX).then(|| by_group(index.entries_of(&found)))?
        };
        let mut all = Vec::new();
        for mut group in groups {
            group.read_memory(&self.cut, &self.budget).ok()?;
            let range = (self.cut.start_ms, self.cut.end_ms);
            if group.memory.disk && !lock(&self.shared.chunk_cache).knows(group.group.id.0, range) {
                return None;
            }
            // Should the chunks be forgotten this very moment, they are read from disk after all.
            all.extend(self.merged(group, epoch, range, None).ok()?);
        }
        Some(self.named(all))
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
        range: (TimestampMs, TimestampMs),
        cores: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        self.budget.check_cancelled()?;
        group.read_memory(&self.cut, &self.budget)?;
        self.merged(group, epoch, range, cores)
    }

    /// A group whose memory was read.
    fn merged(
        &self,
        mut group: Wanted,
        epoch: Epoch,
        range: (TimestampMs, TimestampMs),
        cores: Option<&Handle>,
    ) -> Result<Vec<Found>, SelectError> {
        if group.memory.disk {
            let bucket_ms = group.read_disk(&Disk {
                shared: &self.shared,
                epoch,
                range,
                view: self.view,
                cut: &self.cut,
                budget: &self.budget,
                cores,
            })?;
            self.resolution_ms.fetch_max(bucket_ms, Ordering::Relaxed);
        }
        group.decode_memory(&self.cut)?;
        Ok(merge(group, &self.cut, &self.axes))
    }

    /// With their labels, in the order of these. A series that was deleted meanwhile is left out.
    fn named(&self, found: Vec<Found>) -> SeriesSet {
        let index = read(&self.shared.index);
        let named = found.into_iter().filter_map(|found| {
            Some(Series {
                labels: index.entry(found.id)?.labels(),
                times_ms: found.times_ms,
                values: found.values,
            })
        });
        let mut series: Vec<Series> = named.collect();
        drop(index);
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
fn widened(start_ms: TimestampMs, end_ms: TimestampMs) -> (TimestampMs, TimestampMs) {
    let before = start_ms.saturating_sub(start_ms.rem_euclid(HOUR_MS));
    let behind = end_ms.saturating_add(HOUR_MS - 1 - end_ms.rem_euclid(HOUR_MS));
    (before, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_hours_are_read() {
        assert_eq!(widened(HOUR_MS, HOUR_MS), (HOUR_MS, 2 * HOUR_MS - 1));
        assert_eq!(widened(-1, HOUR_MS - 1), (-HOUR_MS, HOUR_MS - 1));
        assert_eq!(widened(i64::MIN, i64::MAX), (i64::MIN, i64::MAX));
    }
}
