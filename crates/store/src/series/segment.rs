//! A segment: frozen samples of a group. It holds the lanes until their chunk is on disk, then only the bytes of the chunk,
//! which recent queries read without accessing the disk.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use domain::series::Frame;
use domain::time::TimestampMs;

use super::SeriesId;
use super::chunk_data::ChunkData;
use super::codec::Corrupt;
use super::cut::{self, Cut};
use super::lane::{Lane, range_of};
use super::members::Members;
use super::piece::Piece;
use super::rollup::View;

/// Samples that become a chunk.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The id of the chunk, assigned at the freeze. Older chunks win over newer ones.
    pub(crate) chunk: i64,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) samples: u64,
    /// The number of series that have a place in it.
    pub(crate) series: usize,
    /// The number of cells in memory until it is sealed.
    pub(crate) cells: i64,
    pub(crate) first_batch: u64,
    pub(crate) last_batch: u64,
    /// The samples, until the chunk is on disk.
    lanes: Mutex<Arc<[Frozen]>>,
    /// The chunk, when it is on disk.
    data: OnceLock<Arc<ChunkData>>,
}

/// A lane that gets no more samples, and the series of its columns. It is not converted to frames, because the frames of
/// everything that is frozen at once would take as much memory as the head.
#[derive(Debug)]
struct Frozen {
    lane: Lane,
    series: Vec<SeriesId>,
}

impl Frozen {
    fn frame(&self, range: Range<usize>, wanted: impl Fn(SeriesId) -> bool) -> Frame<SeriesId> {
        self.lane.frame(range, self.series.iter().copied(), wanted)
    }
}

impl Segment {
    /// Creates a segment of lanes with ticks and the first and last of their batches. Returns `None` if there are no lanes.
    pub(crate) fn of_lanes(
        chunk: i64,
        (first_batch, last_batch): (u64, u64),
        lanes: Vec<Lane>,
        series: impl Fn(u32) -> SeriesId,
    ) -> Option<Self> {
        let rows: HashSet<&u32> = lanes.iter().flat_map(|lane| &lane.rows).collect();
        let frozen = |lane: Lane| Frozen {
            series: lane.rows.iter().map(|row| series(*row)).collect(),
            lane,
        };
        Some(Self {
            chunk,
            min_ms: *lanes.iter().filter_map(|lane| lane.times_ms.first()).min()?,
            max_ms: lanes.iter().filter_map(Lane::last_ms).max()?,
            samples: lanes.iter().map(|lane| lane.samples() as u64).sum(),
            series: rows.len(),
            cells: lanes.iter().map(|lane| lane.cells() as i64).sum(),
            first_batch,
            last_batch,
            lanes: Mutex::new(lanes.into_iter().map(frozen).collect()),
            data: OnceLock::new(),
        })
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.data.get().is_some()
    }

    /// Returns the bytes of the chunk if it is on disk.
    pub(crate) fn data(&self) -> Option<&[u8]> {
        self.data.get().map(|data| data.bytes())
    }

    /// Marks the segment as sealed: only the bytes of the chunk are kept, and what queries decompress of them.
    pub(crate) fn sealed(&self, data: Arc<ChunkData>) {
        if self.data.set(data).is_ok() {
            *self.lock_lanes() = Arc::default();
        }
    }

    /// Returns the samples while they are not in a chunk.
    pub(crate) fn unsealed_frames(&self) -> Vec<Frame<SeriesId>> {
        let lanes = Arc::clone(&self.lock_lanes());
        let all = |frozen: &Frozen| frozen.frame(0..frozen.lane.times_ms.len(), |_| true);
        lanes.iter().map(all).collect()
    }

    /// Returns the wanted series of each frame that contains any, at the needed ticks.
    pub(crate) fn pieces(&self, members: &Members, cut: &Cut) -> Result<Vec<Piece>, Corrupt> {
        // Taken before the check: the lanes are dropped after the bytes are set.
        let lanes = Arc::clone(&self.lock_lanes());
        let Some(data) = self.data.get() else {
            let has_wanted = |frozen: &&Frozen| frozen.series.iter().any(|id| members.has(*id));
            let trimmed = lanes.iter().filter(has_wanted).filter_map(|frozen| {
                let range = range_of(&frozen.lane.times_ms, cut.range);
                cut::trim(frozen.frame(range, |id| members.has(id)), members, cut)
            });
            return Ok(trimmed.map(|frame| Piece::new(self.chunk, frame)).collect());
        };
        data.pieces(self.chunk, View::default(), members, cut)
            .map(|(_, pieces)| pieces)
    }

    fn lock_lanes(&self) -> MutexGuard<'_, Arc<[Frozen]>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
