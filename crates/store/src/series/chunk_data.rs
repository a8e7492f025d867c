//! The bytes of a chunk, and what queries have decompressed of it so far. The second query for the same samples finds them
//! decompressed, in their narrowest form. A chunk that was decompressed completely when it was read from disk is kept without
//! its bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::chunk::{self, OpenFrame};
use super::codec::Corrupt;
use super::cut::{self, Cut};
use super::members::Members;
use super::piece::Piece;
use super::rollup::{self, View};

/// A chunk of either kind.
#[derive(Debug)]
pub(crate) struct ChunkData {
    bytes: Vec<u8>,
    frames: OnceLock<Vec<OpenFrame>>,
    /// The memory in bytes of what was decompressed.
    read: AtomicUsize,
}

impl ChunkData {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            frames: OnceLock::new(),
            read: AtomicUsize::new(0),
        }
    }

    /// Decompresses some series right away. The bytes are copied only if they contain more than that.
    pub(crate) fn read(bytes: &[u8], members: &Members, cut: &Cut) -> Result<Self, Corrupt> {
        let mut data = Self::new(Vec::new());
        if !chunk::is_rollup(bytes) {
            let frames = data.open(bytes)?;
            for frame in frames {
                data.load(frame, bytes, &cut::wanted_rows(&frame.series, members), cut)?;
            }
            if frames.iter().all(OpenFrame::is_loaded) {
                return Ok(data);
            }
        }
        data.bytes = bytes.to_vec();
        Ok(data)
    }

    /// Returns the bytes as on disk; empty for a chunk that was decompressed completely when it was read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true for a roll-up. The bytes of a roll-up are always kept.
    pub(crate) fn is_rollup(&self) -> bool {
        chunk::is_rollup(&self.bytes)
    }

    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len() + self.read.load(Ordering::Relaxed)
    }

    /// Returns the frame with this index in a chunk of samples. [`ChunkData::pieces`] must have been called before.
    pub(crate) fn frame(&self, at: usize) -> &OpenFrame {
        &self.frames.get().expect("pieces were taken from it")[at]
    }

    /// Returns the wanted series at the ticks that the cut selects, and the resolution of a roll-up.
    pub(crate) fn pieces(
        self: &Arc<Self>,
        id: i64,
        view: View,
        members: &Members,
        cut: &Cut,
    ) -> Result<(Option<i64>, Vec<Piece>), Corrupt> {
        if self.is_rollup() {
            let (resolution_ms, frames) = rollup::read(&self.bytes, view, |id| members.has(id))?;
            let frames = frames.into_iter();
            let trimmed = frames.filter_map(|frame| cut::trim(frame, members, cut));
            let pieces = trimmed.map(|frame| Piece::new(id, frame));
            return Ok((Some(resolution_ms), pieces.collect()));
        }
        let mut pieces = Vec::new();
        for (at, frame) in self.open(&self.bytes)?.iter().enumerate() {
            let rows = cut::wanted_rows(&frame.series, members);
            if self.load(frame, &self.bytes, &rows, cut)? {
                let ticks = cut::ticks(frame, &rows, cut);
                pieces.push(Piece::stored(id, self, (at, frame), rows, ticks));
            }
        }
        Ok((None, pieces))
    }

    /// Loads rows of a frame, unless none of its ticks is in the range of the cut. Returns true if there is anything to read.
    fn load(&self, frame: &OpenFrame, bytes: &[u8], rows: &[usize], cut: &Cut) -> Result<bool, Corrupt> {
        if rows.is_empty() || frame.axis.range(cut.range).is_empty() {
            return Ok(false);
        }
        let read = frame.load(bytes, rows)?;
        self.read.fetch_add(read, Ordering::Relaxed);
        Ok(true)
    }

    fn open(&self, bytes: &[u8]) -> Result<&[OpenFrame], Corrupt> {
        if let Some(frames) = self.frames.get() {
            return Ok(frames);
        }
        let frames = chunk::open(bytes, |_| true)?;
        let memory = frames.iter().map(OpenFrame::bytes).sum();
        // Another query may have set them first.
        if self.frames.set(frames).is_ok() {
            self.read.fetch_add(memory, Ordering::Relaxed);
        }
        Ok(self.frames.get().expect("they were set"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Frame;

    use super::*;
    use crate::series::SeriesId;

    #[test]
    fn bytes_are_kept_while_there_is_more_in_them() {
        let frame = |ids: [u32; 2], first_ms: i64| Frame {
            series: ids.map(SeriesId).to_vec(),
            times_ms: (first_ms..first_ms + 200).collect(),
            values: (0..400).map(|n| f64::from(n * 37 % 101)).collect(),
        };
        let frames = [frame([1, 2], 0), frame([2, 3], 300)];
        let bytes = chunk::encode(&frames);
        let members = |ids: &[u32]| Members::new(ids.iter().map(|id| (SeriesId(*id), 0)));
        let all = Cut::within(0, 1_000);
        for (ids, cut, kept) in [
            (&[1, 2, 3][..], &all, false),
            (&[1, 2], &all, true),
            (&[], &all, true),
            (&[1, 2, 3], &Cut::within(0, 200), true),
        ] {
            let data = Arc::new(ChunkData::read(&bytes, &members(ids), cut).unwrap());
            assert_eq!(!data.bytes.is_empty(), kept, "{ids:?}");
            // What was not read before is read when it is needed.
            let later = members(if kept { &[2, 3] } else { ids });
            let (_, pieces) = data.pieces(7, View::default(), &later, &all).unwrap();
            for (piece, frame) in pieces.iter().map(Piece::frame).zip(&frames) {
                let rows = |frame: &Frame<SeriesId>, id| {
                    let row = frame.series.iter().position(|series| *series == id);
                    row.map(|row| frame.row(row).to_vec())
                };
                for id in &piece.series {
                    assert_eq!(rows(&piece, *id), rows(frame, *id));
                }
                assert_eq!(piece.times_ms, frame.times_ms);
            }
            assert_eq!(pieces.len(), 2);
        }
        assert!(ChunkData::read(&bytes[..50], &members(&[1]), &all).is_err());
    }
}
