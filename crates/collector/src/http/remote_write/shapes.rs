//! Caches the shapes of a sender's recent requests: the store saves a tick of a known shape in one copy per group.
//!
//! A sender that cuts its requests at the same places uses the same shapes again; these are cached as a whole. A sender that cuts at other
//! places each time never repeats one. So an unknown list of series is first cut by the series' ids, at the same places in every request,
//! and cached as a whole only when it occurs a second time.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use store::SeriesStore;
use store::series::{AppendError, Block, SeriesId, Shape};

use super::rows::{Repeats, Row};

/// Bound of the series in all shapes of a generation, about 10 MB: a sender of a quarter of a million series that cuts its requests at the
/// same places.
const GENERATION_SERIES_MAX: usize = 1 << 18;
/// Bound of the hashes of recent requests, which show whether a request is repeated.
const SEEN_ONCE_MAX: usize = 4_096;
/// A part ends before an id that is a multiple of this number, the maximum size of a group in the store.
const PIECE: u32 = 64;

/// The shapes, in two generations: shapes that are not used while one generation is filled are dropped with the next.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    young: Generation,
    old: Generation,
    seen_once: HashSet<u64>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Generation {
    shapes: HashMap<u64, Arc<Shape>>,
    series: usize,
}

impl Shapes {
    /// Converts a row to blocks.
    ///
    /// # Errors
    /// Returns an error if the store has removed one of the series.
    pub(super) fn blocks(
        &mut self,
        row: Row,
        store: &SeriesStore,
        blocks: &mut Vec<Block>,
    ) -> Result<Repeats, AppendError> {
        let key = self.hasher.hash_one(&row.series);
        if let Some(shape) = self.known(key, &row.series) {
            blocks.push(block(shape, row));
            return Ok(Repeats::default());
        }
        if row.has_repeats() {
            let (row, repeats) = row.without_repeats();
            self.blocks(row, store, blocks)?;
            return Ok(repeats);
        }
        if row.series.len() <= PIECE as usize || !self.is_new(key) {
            let shape = self.make(key, &row.series, store)?;
            blocks.push(block(shape, row));
        } else {
            self.pieces(&row, store, blocks)?;
        }
        Ok(Repeats::default())
    }

    fn pieces(&mut self, row: &Row, store: &SeriesStore, blocks: &mut Vec<Block>) -> Result<(), AppendError> {
        let times = row.times_ms.len();
        let mut values = row.values.as_slice();
        for series in row.series.chunk_by(|_, next| next.0 % PIECE != 0) {
            let key = self.hasher.hash_one(series);
            let shape = match self.known(key, series) {
                Some(shape) => shape,
                None => self.make(key, series, store)?,
            };
            let (own, rest) = values.split_at(series.len() * times);
            values = rest;
            blocks.push(Block {
                shape,
                times_ms: row.times_ms.clone(),
                values: own.to_vec(),
            });
        }
        Ok(())
    }

    fn known(&mut self, key: u64, series: &[SeriesId]) -> Option<Arc<Shape>> {
        let same = |shape: &&Arc<Shape>| shape.series() == series;
        if let Some(shape) = self.young.shapes.get(&key).filter(same) {
            return Some(Arc::clone(shape));
        }
        let shape = Arc::clone(self.old.shapes.get(&key).filter(same)?);
        self.keep(key, &shape);
        Some(shape)
    }

    fn make(
        &mut self,
        key: u64,
        series: &[SeriesId],
        store: &SeriesStore,
    ) -> Result<Arc<Shape>, AppendError> {
        let shape = store.shape(series.to_vec())?;
        self.keep(key, &shape);
        Ok(shape)
    }

    fn keep(&mut self, key: u64, shape: &Arc<Shape>) {
        let series = shape.series().len();
        if self.young.series + series > GENERATION_SERIES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        if series <= GENERATION_SERIES_MAX {
            let replaced = self.young.shapes.insert(key, Arc::clone(shape));
            self.young.series += series;
            self.young.series -= replaced.map_or(0, |shape| shape.series().len());
        }
    }

    /// Returns true if a request is seen for the first time.
    fn is_new(&mut self, key: u64) -> bool {
        if self.seen_once.len() >= SEEN_ONCE_MAX {
            self.seen_once.clear();
        }
        self.seen_once.insert(key)
    }
}

fn block(shape: Arc<Shape>, row: Row) -> Block {
    Block {
        shape,
        times_ms: row.times_ms,
        values: row.values,
    }
}
