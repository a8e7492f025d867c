//! A segment: frozen samples of a group. First as they were in the lanes; once their chunk is on disk, only its bytes, which
//! recent queries read without asking the disk.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use domain::series::Frame;
use domain::time::TimestampMs;

use super::SeriesId;
use super::chunk_data::ChunkData;
use super::codec::Corrupt;
use super::cut::{self, Cut};
use super::fetch::Members;
use super::lane::Lane;
use super::rollup::View;

/// What becomes a chunk.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The chunk's id, given when frozen: older ones win over younger ones.
    pub(crate) chunk: i64,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) samples: u64,
    /// How many series have a place in it.
    pub(crate) series: usize,
    /// Cells in memory until it is sealed.
    pub(crate) cells: i64,
    pub(crate) first_batch: u64,
    pub(crate) last_batch: u64,
    /// The samples, until the chunk is on disk.
    frames: Mutex<Arc<[Frame<SeriesId>]>>,
    /// The chunk, once it is on disk.
    data: OnceLock<Arc<ChunkData>>,
}

impl Segment {
    /// Lanes with ticks, of the first to the last of some batches; none when there are none.
    pub(crate) fn of_lanes(
        chunk: i64,
        (first_batch, last_batch): (u64, u64),
        lanes: &[Lane],
        series: impl Fn(u32) -> SeriesId,
    ) -> Option<Self> {
        let frames: Arc<[_]> = lanes
            .iter()
            .map(|lane| lane.frame(0..lane.times_ms.len(), &series, |_| true))
            .collect();
        let rows: HashSet<&u32> = lanes.iter().flat_map(|lane| &lane.rows).collect();
        Some(Self {
            chunk,
            min_ms: *lanes.iter().filter_map(|lane| lane.times_ms.first()).min()?,
            max_ms: lanes.iter().filter_map(Lane::last_ms).max()?,
            samples: frames.iter().map(|frame| frame.samples() as u64).sum(),
            series: rows.len(),
            cells: lanes.iter().map(|lane| lane.cells() as i64).sum(),
            first_batch,
            last_batch,
            frames: Mutex::new(frames),
            data: OnceLock::new(),
        })
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.data.get().is_some()
    }

    /// The chunk's bytes, when it is on disk.
    pub(crate) fn data(&self) -> Option<&[u8]> {
        self.data.get().map(|data| data.bytes())
    }

    /// Its chunk is on disk: only its bytes are kept, and what queries read of them.
    pub(crate) fn sealed(&self, data: Arc<ChunkData>) {
        if self.data.set(data).is_ok() {
            *self.lock_frames() = Arc::default();
        }
    }

    /// Its samples, while they are not in a chunk yet.
    pub(crate) fn unsealed_frames(&self) -> Arc<[Frame<SeriesId>]> {
        Arc::clone(&self.lock_frames())
    }

    /// The wanted series of each frame that holds any, at the ticks that matter.
    pub(crate) fn frames(&self, members: &Members, cut: &Cut) -> Result<Vec<Frame<SeriesId>>, Corrupt> {
        // Taken first: they are let go of after the bytes are there.
        let frames = self.unsealed_frames();
        let Some(data) = self.data.get() else {
            let trimmed = frames
                .iter()
                .filter_map(|frame| cut::trim(Cow::Borrowed(frame), members, cut));
            return Ok(trimmed.collect());
        };
        data.frames(View::default(), members, cut)
            .map(|(_, frames)| frames)
    }

    fn lock_frames(&self) -> MutexGuard<'_, Arc<[Frame<SeriesId>]>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
