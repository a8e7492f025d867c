//! A cache of what the rows of frames refer to. A connection most likely sends the same rows again, so names and series need not be looked
//! up for each batch.

use std::sync::Arc;

use domain::series::Frame;
use store::series::{Block, Shape};

use super::dictionary::Reason;
use crate::analysis::FedColumn;

/// Bound of the cached row lists of a connection: one for each tier, live and backfill, and some to spare.
const MAPPINGS_MAX: usize = 16;

/// The cached row lists, the most recently used one first.
#[derive(Default)]
pub(super) struct RowMappings(Vec<RowMapping>);

/// What the rows of a frame refer to.
pub(super) struct RowMapping {
    pub(super) segment: String,
    /// The indices of the rows, as the agent numbers them.
    pub(super) indices: Vec<u32>,
    /// The series of the accepted rows; `None` if no row is accepted.
    pub(super) shape: Option<Arc<Shape>>,
    /// The positions of the refused rows, and the reason of the last one.
    pub(super) refused: Option<(Vec<usize>, Reason)>,
    /// The rows of the frame that feed the analysers.
    pub(super) fed: Arc<[FedColumn]>,
}

impl RowMappings {
    /// Returns what these rows refer to. Calls `resolve` if it is not cached.
    ///
    /// # Errors
    /// Returns the error of `resolve`.
    pub(super) fn of<E>(
        &mut self,
        segment: &str,
        indices: &[u32],
        resolve: impl FnOnce() -> Result<RowMapping, E>,
    ) -> Result<&RowMapping, E> {
        let is_it = |known: &RowMapping| known.indices == indices && known.segment == segment;
        match self.0.iter().position(is_it) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let mapping = resolve()?;
                self.0.truncate(MAPPINGS_MAX - 1);
                self.0.insert(0, mapping);
            }
        }
        Ok(&self.0[0])
    }

    /// Removes the entries of a segment whose indices get other names.
    pub(super) fn forget(&mut self, segment: &str) {
        self.0.retain(|known| known.segment != segment);
    }
}

impl RowMapping {
    /// Returns the frame in the form that the store takes, and the number of samples that are left out.
    pub(super) fn block(&self, frame: Frame) -> (Option<Block>, u64) {
        let (values, left_out) = match &self.refused {
            None => (frame.values, 0),
            Some((refused, _)) => {
                let taken = (0..frame.series.len()).filter(|row| refused.binary_search(row).is_err());
                let values = taken.flat_map(|row| frame.row(row)).copied().collect();
                (values, refused.len() * frame.times_ms.len())
            }
        };
        let block = self.shape.as_ref().map(|shape| Block {
            shape: Arc::clone(shape),
            times_ms: frame.times_ms,
            values,
        });
        (block, left_out as u64)
    }
}
