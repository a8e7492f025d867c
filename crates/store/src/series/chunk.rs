//! A sealed chunk: the samples of one group (one node, one metric) over a stretch of time.
//!
//! ```text
//! "LCK1"  crc32c of the rest
//! varint  frames
//! frame   ids      the series
//!         bytes    times, an i64 column by pco
//!         bytes    values, one f64 column by pco, series after series: pooling similar series halves pco's cost
//! ```
//! A group has one frame, unless its series tick at different times or samples came late.

use domain::series::Frame;

use super::SeriesId;
use super::codec::{Corrupt, Reader, column, put_column, put_ids, put_varint, seal, unseal};

const MAGIC: [u8; 4] = *b"LCK1";

pub(crate) fn encode(frames: &[Frame<SeriesId>]) -> Vec<u8> {
    let mut body = Vec::new();
    put_varint(&mut body, frames.len() as u64);
    for frame in frames {
        put_ids(&mut body, &frame.series);
        put_column(&mut body, &frame.times_ms);
        put_column(&mut body, &frame.values);
    }
    seal(MAGIC, &body)
}

/// The frames that hold at least one wanted series; the others are not decompressed.
pub(crate) fn decode(
    bytes: &[u8],
    wanted: impl Fn(SeriesId) -> bool,
) -> Result<Vec<Frame<SeriesId>>, Corrupt> {
    let mut reader = Reader(unseal(MAGIC, bytes)?);
    let mut frames = Vec::new();
    for _ in 0..reader.count(1)? {
        let series = reader.ids()?;
        let (times, values) = (reader.bytes()?, reader.bytes()?);
        if series.iter().any(|id| wanted(*id)) {
            let frame = Frame {
                series,
                times_ms: column(times)?,
                values: column(values)?,
            };
            frame
                .check()
                .map_err(|_| Corrupt("a frame's parts do not fit together"))?;
            frames.push(frame);
        }
    }
    Ok(frames)
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
