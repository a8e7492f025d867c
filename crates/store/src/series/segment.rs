//! A segment: frozen samples of a group. First as they were in the lanes; once their chunk is on disk, only its bytes, which
//! recent queries read without asking the disk.

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
    lanes: Mutex<Arc<[Frozen]>>,
    /// The chunk, once it is on disk.
    data: OnceLock<Arc<ChunkData>>,
}

/// A lane that takes no more samples, and the series of its columns. It stays as it was filled: frames of all that is frozen at
/// once would be a second head.
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
    /// Lanes with ticks, of the first to the last of some batches; none when there are none.
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

    /// The chunk's bytes, when it is on disk.
    pub(crate) fn data(&self) -> Option<&[u8]> {
        self.data.get().map(|data| data.bytes())
    }

    /// Its chunk is on disk: only its bytes are kept, and what queries read of them.
    pub(crate) fn sealed(&self, data: Arc<ChunkData>) {
        if self.data.set(data).is_ok() {
            *self.lock_lanes() = Arc::default();
        }
    }

    /// Its samples, while they are not in a chunk yet.
    pub(crate) fn unsealed_frames(&self) -> Vec<Frame<SeriesId>> {
        let lanes = Arc::clone(&self.lock_lanes());
        let all = |frozen: &Frozen| frozen.frame(0..frozen.lane.times_ms.len(), |_| true);
        lanes.iter().map(all).collect()
    }

    /// The wanted series of each frame that holds any, at the ticks that matter.
    pub(crate) fn pieces(&self, members: &Members, cut: &Cut) -> Result<Vec<Piece>, Corrupt> {
        // Taken first: they are let go of after the bytes are there.
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
