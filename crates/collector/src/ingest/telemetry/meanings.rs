//! What the rows of frames mean, kept: what a connection said last it most likely says again, so that neither its names nor the
//! store's series are looked up for each batch.

use std::sync::Arc;

use domain::series::Frame;
use store::series::{Block, Shape};

use super::dictionary::Reason;
use crate::analysis::FedColumn;

/// Lists of rows a connection keeps the meaning of: one for each tier of readings, live and backfill, and some to spare.
const MEANINGS_MAX: usize = 16;

/// The meanings used lately, the latest first.
#[derive(Default)]
pub(super) struct Meanings(Vec<Meaning>);

/// What a frame's rows mean.
pub(super) struct Meaning {
    pub(super) segment: String,
    /// The rows as the agent numbers them.
    pub(super) indices: Vec<u32>,
    /// The series of those that are taken; none when none is.
    pub(super) shape: Option<Arc<Shape>>,
    /// Where the others are, and why the last of them is not taken.
    pub(super) refused: Option<(Vec<usize>, Reason)>,
    /// The rows of the frame that feed the analysers.
    pub(super) fed: Arc<[FedColumn]>,
}

impl Meanings {
    /// What these rows mean; asked for when it is not known.
    ///
    /// # Errors
    /// The asking's.
    pub(super) fn of<E>(
        &mut self,
        segment: &str,
        indices: &[u32],
        ask: impl FnOnce() -> Result<Meaning, E>,
    ) -> Result<&Meaning, E> {
        let is_it = |known: &Meaning| known.indices == indices && known.segment == segment;
        match self.0.iter().position(is_it) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let meaning = ask()?;
                self.0.truncate(MEANINGS_MAX - 1);
                self.0.insert(0, meaning);
            }
        }
        Ok(&self.0[0])
    }

    /// The segment's indices get other names.
    pub(super) fn forget(&mut self, segment: &str) {
        self.0.retain(|known| known.segment != segment);
    }
}

impl Meaning {
    /// The frame as the store takes it, and how many of its samples are left out.
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
