//! The shapes a connection sends: what it said last it most likely says again, so that the store looks its series up once.

use std::sync::Arc;

use domain::series::Frame;
use store::SeriesStore;
use store::series::{AppendError, Block, SeriesId, Shape};

/// Shapes a connection keeps: one for each tier of readings, live and backfill, and some to spare.
const SHAPES_MAX: usize = 16;

/// Recent shapes, the most recently used first.
#[derive(Default)]
pub(super) struct Shapes(Vec<Arc<Shape>>);

impl Shapes {
    /// A frame as the store takes it.
    ///
    /// # Errors
    /// When the store has forgotten one of the series.
    pub(super) fn block(
        &mut self,
        store: &SeriesStore,
        frame: Frame<SeriesId>,
    ) -> Result<Block, AppendError> {
        match self.0.iter().position(|shape| shape.series() == frame.series) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                self.0.truncate(SHAPES_MAX - 1);
                self.0.insert(0, store.shape(frame.series)?);
            }
        }
        Ok(Block {
            shape: Arc::clone(&self.0[0]),
            times_ms: frame.times_ms,
            values: frame.values,
        })
    }
}
