//! One selection on its way to an answer: searched, read from memory, fetched, decoded, merged, named.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, SelectError, Selection, Series, SeriesSet};

use super::cores::{blocking, on_cores};
use super::cut::{Cut, trim};
use super::fetch::{Chunk, Members, Piece, Wanted, read_chunks};
use super::merge::{Axes, Found, merge};
use super::rollup::{self, View};
use super::{Shared, read};

/// Groups in memory that are worth a second core; fewer take a millisecond.
const GROUPS_A_CORE: usize = 64;
/// Bytes of chunks that are worth a second core: a hundred thousand samples.
const CHUNK_BYTES_A_CORE: usize = 128 << 10;

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

/// What became of a group when memory was read.
enum FromMemory {
    Done(Vec<Found>),
    NeedsDisk(Wanted),
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

    pub(crate) async fn run(self: Arc<Self>) -> Result<SeriesSet, SelectError> {
        let this = Arc::clone(&self);
        let groups = blocking(move || this.search()).await?;
        let (this, cores) = (Arc::clone(&self), groups.len() / GROUPS_A_CORE);
        let read = on_cores(groups, cores, move |group| this.read_memory(group)).await?;
        let (mut found, mut on_disk) = (Vec::new(), Vec::new());
        for group in read {
            match group {
                FromMemory::Done(series) => found.extend(series),
                FromMemory::NeedsDisk(wanted) => on_disk.push(wanted),
            }
        }
        if !on_disk.is_empty() {
            found.extend(Arc::clone(&self).read_disk(on_disk).await?);
        }
        blocking(move || Ok(self.named(found))).await
    }

    /// The matching series by group.
    fn search(&self) -> Result<Vec<Wanted>, SelectError> {
        let index = read(&self.shared.index);
        let mut found = index.search(&self.matchers);
        found.sort_by_key(|entry| entry.group.id);
        let groups = found.chunk_by(|a, b| a.group.id == b.group.id);
        let wanted = groups.map(|entries| {
            let members = entries.iter().map(|entry| (entry.id, entry.row));
            Wanted::new(Arc::clone(entries[0].group), Members::new(members))
        });
        Ok(wanted.collect())
    }

    fn read_memory(&self, mut wanted: Wanted) -> Result<FromMemory, SelectError> {
        wanted.read_memory(&self.cut, &self.budget)?;
        if wanted.memory.disk {
            Ok(FromMemory::NeedsDisk(wanted))
        } else {
            self.merged(wanted).map(FromMemory::Done)
        }
    }

    async fn read_disk(self: Arc<Self>, mut groups: Vec<Wanted>) -> Result<Vec<Found>, SelectError> {
        let chunks = read_chunks(&self.shared, &groups, &self.cut, &self.budget).await?;
        let cores = chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>() / CHUNK_BYTES_A_CORE;
        let this = Arc::clone(&self);
        let decoded = on_cores(chunks, cores, move |chunk| this.decoded(&chunk)).await?;
        for (group, piece) in decoded.into_iter().flatten() {
            groups[group].pieces.push(piece);
        }
        let merged = on_cores(groups, cores, move |wanted| self.merged(wanted)).await?;
        Ok(merged.into_iter().flatten().collect())
    }

    fn decoded(&self, chunk: &Chunk) -> Result<Vec<(usize, Piece)>, SelectError> {
        self.budget.check_cancelled()?;
        let wanted = |id| chunk.members.place(id).is_some();
        let (resolution_ms, frames) = rollup::read_any(&chunk.data, self.view, wanted)
            .map_err(|error| SelectError::Store(Box::new(error)))?;
        self.resolution_ms
            .fetch_max(resolution_ms.unwrap_or(0), Ordering::Relaxed);
        let trimmed = frames
            .into_iter()
            .filter_map(|frame| trim(frame, &chunk.members, &self.cut));
        Ok(trimmed
            .map(|frame| {
                (
                    chunk.group,
                    Piece {
                        chunk: chunk.id,
                        frame,
                    },
                )
            })
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
