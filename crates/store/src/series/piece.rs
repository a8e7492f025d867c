//! Pieces: samples of some series of a group, from one chunk or from the head. Pieces of a chunk are converted to values when
//! they are merged, directly at their final position, so nothing is copied twice.

use std::sync::Arc;

use domain::series::Frame;
use domain::time::TimestampMs;

use super::SeriesId;
use super::chunk::OpenFrame;
use super::chunk_data::ChunkData;
use super::ticks::Ticks;

#[derive(Debug)]
pub(crate) struct Piece {
    /// Where two chunks have a sample at the same time, the sample of the older chunk wins.
    pub(crate) chunk: i64,
    pub(crate) series: Vec<SeriesId>,
    samples: Samples,
}

#[derive(Debug)]
enum Samples {
    Made {
        times_ms: Vec<TimestampMs>,
        /// One series after another.
        values: Vec<f64>,
    },
    /// Loaded rows of a frame in a chunk.
    Stored {
        data: Arc<ChunkData>,
        frame: usize,
        rows: Vec<usize>,
        ticks: Ticks,
    },
}

impl Piece {
    pub(crate) fn new(chunk: i64, frame: Frame<SeriesId>) -> Self {
        Self {
            chunk,
            series: frame.series,
            samples: Samples::Made {
                times_ms: frame.times_ms,
                values: frame.values,
            },
        }
    }

    /// Creates a piece of loaded rows at some ticks of a frame; `at` is the index of the frame in the chunk.
    pub(crate) fn stored(
        chunk: i64,
        data: &Arc<ChunkData>,
        (at, frame): (usize, &OpenFrame),
        rows: Vec<usize>,
        ticks: Ticks,
    ) -> Self {
        Self {
            chunk,
            series: rows.iter().map(|row| frame.series[*row]).collect(),
            samples: Samples::Stored {
                data: Arc::clone(data),
                frame: at,
                rows,
                ticks,
            },
        }
    }

    /// Returns the number of ticks.
    pub(crate) fn len(&self) -> usize {
        match &self.samples {
            Samples::Made { times_ms, .. } => times_ms.len(),
            Samples::Stored { ticks, .. } => ticks.len(),
        }
    }

    /// Returns the first and the last time, or `None` if there are no ticks.
    pub(crate) fn range(&self) -> Option<(TimestampMs, TimestampMs)> {
        match &self.samples {
            Samples::Made { times_ms, .. } => Some((*times_ms.first()?, *times_ms.last()?)),
            Samples::Stored {
                data, frame, ticks, ..
            } => {
                let axis = &data.frame(*frame).axis;
                let (first, last) = ticks.range()?;
                Some((axis.time(first), axis.time(last)))
            }
        }
    }

    /// Returns true if its times equal `times_ms`.
    pub(crate) fn has_times(&self, times_ms: &[TimestampMs]) -> bool {
        match &self.samples {
            Samples::Made { times_ms: own, .. } => own == times_ms,
            Samples::Stored {
                data, frame, ticks, ..
            } => data.frame(*frame).axis.is(ticks, times_ms),
        }
    }

    /// Writes its times to `out`, which has the same length.
    pub(crate) fn put_times(&self, out: &mut [TimestampMs]) {
        match &self.samples {
            Samples::Made { times_ms, .. } => out.copy_from_slice(times_ms),
            Samples::Stored {
                data, frame, ticks, ..
            } => data.frame(*frame).axis.put(ticks, out),
        }
    }

    /// Writes the values of one of its series to `out`, which has the same length.
    pub(crate) fn put_values(&self, row: usize, out: &mut [f64]) {
        match &self.samples {
            Samples::Made { values, .. } => out.copy_from_slice(&values[row * out.len()..][..out.len()]),
            Samples::Stored {
                data,
                frame,
                rows,
                ticks,
            } => data.frame(*frame).put(rows[row], ticks, out),
        }
    }
}

#[cfg(test)]
impl Piece {
    /// Returns the piece as a frame of values.
    pub(crate) fn frame(&self) -> Frame<SeriesId> {
        let mut frame = Frame {
            series: self.series.clone(),
            times_ms: vec![0; self.len()],
            values: vec![0.0; self.len() * self.series.len()],
        };
        self.put_times(&mut frame.times_ms);
        for (row, out) in frame.values.chunks_exact_mut(self.len().max(1)).enumerate() {
            self.put_values(row, out);
        }
        frame
    }
}
