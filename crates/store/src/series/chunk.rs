//! A sealed chunk: the samples of one group (one node, one metric) over a period of time, or their roll-up.
//!
//! ```text
//! "LCK1"  crc32c of the rest
//! varint  frames
//! frame   ids      the series
//!         bytes    times      see column.rs
//!         bytes    values, one series after another: compressing similar series together halves the size of a column
//!
//! "LRU1"  crc32c of the rest
//! varint  resolution in milliseconds
//! varint  frames
//! frame   ids      the series
//!         bytes    the first millisecond of each bucket
//!         6 bytes  counts, sums, minima, maxima, last values, resets; see rollup.rs
//! ```
//! A group has one frame, or more if its series have samples at different times or samples arrived late.

use std::collections::HashSet;
use std::ops::Range;

use domain::series::{Frame, is_absent};

use super::SeriesId;
use super::codec::{Corrupt, Reader, put_ids, put_varint, seal, unseal};
use super::column::{self, Axis, Column, Effort, put_times, put_values};
use super::ticks::Ticks;

pub(crate) const MAGIC: [u8; 4] = *b"LCK1";
pub(crate) const ROLLUP_MAGIC: [u8; 4] = *b"LRU1";
/// The number of aggregates of a roll-up.
pub(crate) const AGGREGATES: usize = 6;

/// The frames of a chunk, decompressed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    /// 0 for samples, otherwise the length of a roll-up's buckets.
    pub(crate) resolution_ms: i64,
    /// One set of frames for samples; [`AGGREGATES`] sets with the same series and times for a roll-up.
    pub(crate) sets: Vec<Vec<Frame<SeriesId>>>,
}

/// An opened frame of a chunk of samples. Its rows are decompressed when they are first needed.
#[derive(Debug)]
pub(crate) struct OpenFrame {
    pub(crate) series: Vec<SeriesId>,
    pub(crate) axis: Axis,
    column: Column,
    /// The position of the column in the chunk.
    values: Range<usize>,
}

/// Encodes the samples of a chunk that is sealed for the first time.
pub(crate) fn encode(frames: &[Frame<SeriesId>]) -> Vec<u8> {
    encode_samples(frames, Effort::Seal)
}

fn encode_samples(frames: &[Frame<SeriesId>], effort: Effort) -> Vec<u8> {
    let mut body = Vec::new();
    put_varint(&mut body, frames.len() as u64);
    for frame in frames {
        put_ids(&mut body, &frame.series);
        put_times(&mut body, &frame.times_ms);
        put_values(&mut body, &frame.values, frame.series.len(), effort);
    }
    seal(MAGIC, &body)
}

/// Decodes the wanted series of each frame that contains any. Other frames are not decompressed.
pub(crate) fn decode(
    bytes: &[u8],
    wanted: impl Fn(SeriesId) -> bool,
) -> Result<Vec<Frame<SeriesId>>, Corrupt> {
    let frames = open(bytes, |series| series.iter().any(|id| wanted(*id)))?;
    let read = |frame: &OpenFrame| {
        let rows = rows_of(&frame.series, &wanted);
        frame.load(bytes, &rows)?;
        Ok(frame.samples(&rows))
    };
    frames.iter().map(read).collect()
}

/// Opens the frames of a chunk of samples that contain a wanted series. No samples are decompressed yet.
pub(crate) fn open(bytes: &[u8], wanted: impl Fn(&[SeriesId]) -> bool) -> Result<Vec<OpenFrame>, Corrupt> {
    let mut reader = Reader(unseal(MAGIC, bytes)?);
    let mut frames = Vec::new();
    for _ in 0..reader.count(1)? {
        let series = reader.ids()?;
        let (times, values) = (reader.bytes()?, reader.bytes()?);
        if !wanted(&series) {
            continue;
        }
        let axis = Axis::open(times)?;
        if !axis.is_ascending() {
            return Err(NO_FRAME);
        }
        let end = bytes.len() - reader.0.len();
        frames.push(OpenFrame {
            column: Column::open(values, series.len(), axis.len())?,
            values: end - values.len()..end,
            series,
            axis,
        });
    }
    Ok(frames)
}

impl OpenFrame {
    /// Decompresses rows of this frame from the bytes of its chunk. `rows` is ascending and contains only rows that are not
    /// loaded. Returns the bytes of memory that they take.
    pub(crate) fn load(&self, chunk: &[u8], rows: &[usize]) -> Result<usize, Corrupt> {
        // The bytes are empty if everything was loaded before.
        let column = chunk.get(self.values.clone()).unwrap_or_default();
        self.column.load(column, rows)
    }

    /// Returns true if all rows are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.column.is_loaded()
    }

    /// Returns true if some cell may be a hole.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.column.may_have_holes()
    }

    /// Returns true if a loaded row has a hole at a tick.
    pub(crate) fn is_absent(&self, row: usize, tick: usize) -> bool {
        self.column.is_absent(row, tick)
    }

    /// Writes the values of a loaded row at some ticks to `out`, which has one place per tick.
    pub(crate) fn put(&self, row: usize, ticks: &Ticks, out: &mut [f64]) {
        self.column.put(row, ticks, out);
    }

    /// Returns loaded rows at all ticks.
    fn samples(&self, rows: &[usize]) -> Frame<SeriesId> {
        Frame {
            series: rows.iter().map(|row| self.series[*row]).collect(),
            times_ms: self.axis.times(&Ticks::All(0..self.axis.len())),
            values: self.column.rows(rows),
        }
    }

    /// Returns the memory in bytes, without loaded rows.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(self.series.as_slice()) + self.axis.bytes() + self.column.bytes()
    }
}

const NO_FRAME: Corrupt = Corrupt("a frame's parts do not fit together");

/// Returns true if the chunk is a roll-up.
pub(crate) fn is_rollup(bytes: &[u8]) -> bool {
    bytes.starts_with(&ROLLUP_MAGIC)
}

/// Decodes some aggregates of a roll-up: the resolution, and one set of frames for each index in `aggregates`.
pub(crate) fn decode_rollup(
    bytes: &[u8],
    aggregates: &[usize],
    wanted: impl Fn(SeriesId) -> bool,
) -> Result<Stored, Corrupt> {
    let mut reader = Reader(unseal(ROLLUP_MAGIC, bytes)?);
    let resolution = i64::try_from(reader.varint()?).ok().filter(|ms| *ms > 0);
    let resolution_ms = resolution.ok_or(Corrupt("a roll-up has no resolution"))?;
    let mut sets = vec![Vec::new(); aggregates.len()];
    for _ in 0..reader.count(1)? {
        let (series, times) = (reader.ids()?, reader.bytes()?);
        let mut columns = [&[][..]; AGGREGATES];
        for column in &mut columns {
            *column = reader.bytes()?;
        }
        let rows = rows_of(&series, &wanted);
        if !rows.is_empty() {
            let axis = Axis::open(times)?;
            let times_ms = axis.times(&Ticks::All(0..axis.len()));
            for (set, aggregate) in sets.iter_mut().zip(aggregates) {
                set.push(frame(&series, &rows, times_ms.clone(), columns[*aggregate])?);
            }
        }
    }
    Ok(Stored { resolution_ms, sets })
}

/// Returns the indices of the wanted series.
fn rows_of(series: &[SeriesId], wanted: impl Fn(SeriesId) -> bool) -> Vec<usize> {
    (0..series.len()).filter(|row| wanted(series[*row])).collect()
}

/// Decodes some rows of a frame.
fn frame(
    series: &[SeriesId],
    rows: &[usize],
    times_ms: Vec<i64>,
    values: &[u8],
) -> Result<Frame<SeriesId>, Corrupt> {
    let frame = Frame {
        series: rows.iter().map(|row| series[*row]).collect(),
        values: column::values(values, (series.len(), times_ms.len()), rows)?,
        times_ms,
    };
    frame.check().map_err(|_| NO_FRAME)?;
    Ok(frame)
}

impl Stored {
    pub(crate) fn samples(frames: Vec<Frame<SeriesId>>) -> Self {
        Self {
            resolution_ms: 0,
            sets: vec![frames],
        }
    }

    /// Decodes a whole chunk of either kind.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        Self::decode_wanted(bytes, |_| true)
    }

    /// Decodes the wanted series of each frame that contains any.
    pub(crate) fn decode_wanted(bytes: &[u8], wanted: impl Fn(SeriesId) -> bool) -> Result<Self, Corrupt> {
        if is_rollup(bytes) {
            decode_rollup(bytes, &[0, 1, 2, 3, 4, 5], wanted)
        } else {
            decode(bytes, wanted).map(Self::samples)
        }
    }

    /// Encodes a merged chunk or a roll-up. It is compressed harder because it is rarely written again.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let frames = &self.sets[0];
        if self.resolution_ms == 0 {
            return encode_samples(frames, Effort::Merge);
        }
        let mut body = Vec::new();
        put_varint(&mut body, self.resolution_ms.unsigned_abs());
        put_varint(&mut body, frames.len() as u64);
        for (at, frame) in frames.iter().enumerate() {
            put_ids(&mut body, &frame.series);
            put_times(&mut body, &frame.times_ms);
            self.sets
                .iter()
                .for_each(|set| put_values(&mut body, &set[at].values, frame.series.len(), Effort::Merge));
        }
        seal(ROLLUP_MAGIC, &body)
    }

    /// Returns the number of samples, or of non-empty buckets.
    pub(crate) fn len(&self) -> usize {
        self.sets[0].iter().map(Frame::samples).sum()
    }

    /// Returns the series that have at least one sample.
    pub(crate) fn ids(&self) -> HashSet<SeriesId> {
        let rows = |frame: &Frame<SeriesId>| {
            let filled = |row: &usize| frame.row(*row).iter().any(|value| !is_absent(*value));
            (0..frame.series.len())
                .filter(filled)
                .map(|row| frame.series[row])
                .collect::<Vec<_>>()
        };
        self.sets[0].iter().flat_map(rows).collect()
    }

    /// Returns the first and the last millisecond; for a roll-up, those of its outer buckets. `None` if there is no frame.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        let first = self.sets[0]
            .iter()
            .filter_map(|frame| frame.times_ms.first())
            .min();
        let last = self.sets[0]
            .iter()
            .filter_map(|frame| frame.times_ms.last())
            .max();
        let bucket_ms = (self.resolution_ms - 1).max(0);
        Some((*first?, last?.saturating_add(bucket_ms)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{ABSENT, STALE};

    use super::*;

    #[test]
    fn a_chunk_reads_back_bit_by_bit() {
        let frames = [
            Frame {
                series: vec![SeriesId(7), SeriesId(3)],
                times_ms: vec![1_000, 2_000, 3_001],
                values: vec![1.0, ABSENT, STALE, f64::NAN, -0.0, 2.5],
            },
            Frame {
                series: vec![SeriesId(9)],
                times_ms: vec![-5],
                values: vec![1e300],
            },
        ];
        let back = decode(&encode(&frames), |_| true).unwrap();
        for (frame, back) in frames.iter().zip(&back) {
            assert_eq!((&frame.series, &frame.times_ms), (&back.series, &back.times_ms));
            let bits = |frame: &Frame<SeriesId>| frame.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(frame), bits(back));
        }
    }

    #[test]
    fn a_rollup_reads_back_whole_or_in_part() {
        let frame = |value: f64| Frame {
            series: vec![SeriesId(7), SeriesId(3)],
            times_ms: vec![60_000, 120_000],
            values: vec![value, ABSENT, value + 1.0, STALE],
        };
        let stored = Stored {
            resolution_ms: 60_000,
            sets: (0..AGGREGATES).map(|n| vec![frame(n as f64)]).collect(),
        };
        let bytes = stored.encode();
        assert!(is_rollup(&bytes) && decode(&bytes, |_| true).is_err());
        let bits = |stored: &Stored| {
            let frames = stored.sets.iter().flatten().flat_map(|frame| &frame.values);
            frames.map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&Stored::decode(&bytes).unwrap()), bits(&stored));
        let maxima = decode_rollup(&bytes, &[3], |id| id == SeriesId(3)).unwrap();
        let maximum = &maxima.sets[0][0];
        assert_eq!(
            (&*maximum.series, maximum.values[0].to_bits()),
            (&[SeriesId(3)][..], 4.0_f64.to_bits())
        );
        assert!(decode_rollup(&bytes, &[3], |id| id == SeriesId(4)).unwrap().sets[0].is_empty());
        assert_eq!(
            (stored.len(), stored.ids().len(), stored.range()),
            (3, 2, Some((60_000, 179_999)))
        );
        for at in 0..bytes.len() {
            assert!(Stored::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn frames_without_a_wanted_series_are_left_out() {
        let frame = |id| Frame {
            series: vec![SeriesId(id)],
            times_ms: vec![1],
            values: vec![1.0],
        };
        let frames = decode(&encode(&[frame(1), frame(2)]), |id| id == SeriesId(2)).unwrap();
        assert_eq!(frames, [frame(2)]);
    }

    #[test]
    fn no_cut_or_flipped_byte_panics() {
        let frame = Frame {
            series: vec![SeriesId(1)],
            times_ms: vec![1, 2],
            values: vec![1.0, 2.0],
        };
        let good = encode(&[frame]);
        for at in 0..good.len() {
            assert!(decode(&good[..at], |_| true).is_err());
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad, |_| true).is_err());
        }
    }
}
