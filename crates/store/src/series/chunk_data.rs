//! A chunk's bytes, and what queries have read of them so far. The second query for the same samples finds them decompressed,
//! as narrow as pages leave them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::series::Frame;

use super::SeriesId;
use super::chunk::{self, OpenFrame};
use super::codec::Corrupt;
use super::cut::{self, Cut};
use super::fetch::Members;
use super::rollup::{self, View};

/// Numbers that become values in the time that one takes to be decompressed.
const COPIED_A_NUMBER: usize = 4;

/// A chunk of either kind.
#[derive(Debug)]
pub(crate) struct ChunkData {
    bytes: Vec<u8>,
    frames: OnceLock<Vec<OpenFrame>>,
    /// Bytes of memory that what was read takes.
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

    /// As on disk.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much work it is to read some series, about, in numbers to decompress. Where nobody looked yet it takes each byte for
    /// one, for all of them are looked at then.
    pub(crate) fn work(&self, members: &Members, cut: &Cut) -> usize {
        let Some(frames) = self.frames.get() else {
            return self.bytes.len();
        };
        let work = |frame: &OpenFrame| {
            let rows = cut::wanted_rows(&frame.series, members);
            let copied = if cut.is_thin() {
                0
            } else {
                rows.len() * frame.axis.len()
            };
            frame.unread(&rows) + copied / COPIED_A_NUMBER
        };
        frames.iter().map(work).sum()
    }

    /// Bytes in memory.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len() + self.read.load(Ordering::Relaxed)
    }

    /// The wanted series at the ticks that matter, and the resolution of a roll-up.
    pub(crate) fn frames(
        &self,
        view: View,
        members: &Members,
        cut: &Cut,
    ) -> Result<(Option<i64>, Vec<Frame<SeriesId>>), Corrupt> {
        if chunk::is_rollup(&self.bytes) {
            let (resolution_ms, frames) = rollup::read(&self.bytes, view, |id| members.has(id))?;
            let trimmed = |frame| cut::trim(frame, members, cut);
            return Ok((
                Some(resolution_ms),
                frames.into_iter().filter_map(trimmed).collect(),
            ));
        }
        let mut frames = Vec::new();
        for frame in self.open()? {
            let load = |rows: &[usize]| {
                let bytes = frame.load(&self.bytes, rows)?;
                self.read.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            };
            frames.extend(cut::read(frame, members, cut, load)?);
        }
        Ok((None, frames))
    }

    fn open(&self) -> Result<&[OpenFrame], Corrupt> {
        if let Some(frames) = self.frames.get() {
            return Ok(frames);
        }
        let frames = chunk::open(&self.bytes, |_| true)?;
        let bytes = frames.iter().map(OpenFrame::bytes).sum();
        // Another query may have been quicker.
        if self.frames.set(frames).is_ok() {
            self.read.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(self.frames.get().expect("they were set"))
    }
}
