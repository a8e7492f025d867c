//! One selection on its way to an answer: searched, read from memory, fetched, decoded, merged, named.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, SelectError, Selection, Series, SeriesSet};
use tokio::runtime::Handle;

use super::chunk_cache::Epoch;
use super::cores::on_cores;
use super::cut::Cut;
use super::fetch::{Chunk, Members, Piece, Wanted, read_chunks};
use super::merge::{Axes, Found, merge};
use super::rollup::{self, View};
use super::{Shared, lock, read};

/// Groups in memory that are worth a second core; fewer are copied in a tenth of a millisecond.
const GROUPS_A_CORE: usize = 64;
/// Numbers to decompress that are worth a second core: a fifth of a millisecond.
const NUMBERS_A_CORE: usize = 16 << 10;
/// Bytes of pieces that are worth a second core.
const BYTES_A_CORE: usize = 128 << 10;

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
        // Before memory is looked at: what leaves it later is not on disk in this epoch.
        let epoch = lock(&self.shared.chunk_cache).epoch();
        let groups = self.search();
        let (this, cores) = (Arc::clone(&self), groups.len() / GROUPS_A_CORE);
        let groups = on_cores(runtime, groups, cores, move |mut group: Wanted| {
            group.read_memory(&this.cut, &this.budget)?;
            Ok(group)
        })?;
        let (mut groups, in_memory): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.memory.disk);
        if !groups.is_empty() {
            Arc::clone(&self).read_disk(runtime, epoch, &mut groups)?;
        }
        groups.extend(in_memory);
        let cores = groups.iter().map(Wanted::bytes).sum::<usize>() / BYTES_A_CORE;
        let this = Arc::clone(&self);
        let merged = on_cores(runtime, groups, cores, move |wanted| this.merged(wanted))?;
        Ok(self.named(merged.into_iter().flatten().collect()))
    }

    /// The matching series by group.
    fn search(&self) -> Vec<Wanted> {
        let index = read(&self.shared.index);
        let mut found = index.search(&self.matchers);
        found.sort_by_key(|entry| entry.group.id);
        let groups = found.chunk_by(|a, b| a.group.id == b.group.id);
        let wanted = groups.map(|entries| {
            let members = entries.iter().map(|entry| (entry.id, entry.row));
            Wanted::new(Arc::clone(entries[0].group), Members::new(members))
        });
        wanted.collect()
    }

    /// Adds what chunks on disk have.
    fn read_disk(
        self: Arc<Self>,
        runtime: &Handle,
        epoch: Epoch,
        groups: &mut [Wanted],
    ) -> Result<(), SelectError> {
        let chunks = read_chunks(&self.shared, runtime, epoch, groups, &self.cut, &self.budget)?;
        let work = chunks
            .iter()
            .map(|chunk| chunk.data.work(&chunk.members, &self.cut));
        let cores = work.sum::<usize>() / NUMBERS_A_CORE;
        let this = Arc::clone(&self);
        let decoded = on_cores(runtime, chunks, cores, move |chunk| this.decoded(&chunk))?;
        let read = groups.iter().map(|group| group.group.id.0);
        lock(&self.shared.chunk_cache).recount(read);
        for (group, piece) in decoded.into_iter().flatten() {
            groups[group].pieces.push(piece);
        }
        Ok(())
    }

    fn decoded(&self, chunk: &Chunk) -> Result<Vec<(usize, Piece)>, SelectError> {
        self.budget.check_cancelled()?;
        let (resolution_ms, frames) = chunk
            .data
            .frames(self.view, &chunk.members, &self.cut)
            .map_err(|error| SelectError::Store(Box::new(error)))?;
        self.resolution_ms
            .fetch_max(resolution_ms.unwrap_or(0), Ordering::Relaxed);
        let piece = |frame| Piece {
            chunk: chunk.id,
            frame,
        };
        Ok(frames
            .into_iter()
            .map(|frame| (chunk.group, piece(frame)))
            .collect())
    }

    fn merged(&self, mut wanted: Wanted) -> Result<Vec<Found>, SelectError> {
        self.budget.check_cancelled()?;
        wanted.decode_memory(&self.cut)?;
        Ok(merge(wanted, &self.cut, &self.axes))
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
