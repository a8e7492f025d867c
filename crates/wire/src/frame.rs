//! Frames in protocol messages, and the checksum of a batch.
//!
//! ```text
//! proto::Frame   series           u32 each, packed
//!                times_delta_ms   the first as is, then differences; zig-zag varints
//!                values           f64 little-endian, series-major
//! checksum       crc32c over, for each frame: number of series, series, number of times, times (absolute), values;
//!                every number little-endian, u32, u64 or i64
//! ```

use domain::series::Frame;
use domain::series::batch::FrameError;

use crate::proto;

/// A batch that was damaged in transit, or that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The contents do not match the checksum.
    #[error("the checksum of batch {seq} does not match its contents")]
    Checksum {
        /// The sequence number of the batch.
        seq: u64,
    },
    /// The values are not a multiple of 8 bytes.
    #[error("a frame's values are not a multiple of 8 bytes")]
    Values,
    /// A time does not fit into 64 bits.
    #[error("a frame's times overflow")]
    Times,
    /// The parts of a frame do not match.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Encodes frames as a batch.
#[must_use]
pub fn encode(segment: &str, seq: u64, frames: &[Frame]) -> proto::Batch {
    let frames: Vec<proto::Frame> = frames.iter().map(encode_frame).collect();
    proto::Batch {
        segment: segment.to_owned(),
        seq,
        checksum: checksum(&frames),
        frames,
    }
}

fn encode_frame(frame: &Frame) -> proto::Frame {
    let mut before = 0_i64;
    let deltas = frame
        .times_ms
        .iter()
        .map(|&time| time.wrapping_sub(std::mem::replace(&mut before, time)));
    let values: Vec<u8> = frame
        .values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    proto::Frame {
        series: frame.series.clone(),
        times_delta_ms: deltas.collect(),
        values: values.into(),
    }
}

/// Decodes the frames of a batch and verifies its checksum.
///
/// # Errors
/// See [`BatchError`].
pub fn decode(batch: &proto::Batch) -> Result<Vec<Frame>, BatchError> {
    let frames: Vec<Frame> = batch.frames.iter().map(decode_frame).collect::<Result<_, _>>()?;
    if checksum(&batch.frames) == batch.checksum {
        Ok(frames)
    } else {
        Err(BatchError::Checksum { seq: batch.seq })
    }
}

fn decode_frame(frame: &proto::Frame) -> Result<Frame, BatchError> {
    let (values, rest) = frame.values.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(BatchError::Values);
    }
    let mut time = 0_i64;
    let mut times_ms = Vec::with_capacity(frame.times_delta_ms.len());
    for delta in &frame.times_delta_ms {
        time = time.checked_add(*delta).ok_or(BatchError::Times)?;
        times_ms.push(time);
    }
    let values = values.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let frame = Frame {
        series: frame.series.clone(),
        times_ms,
        values,
    };
    frame.check()?;
    Ok(frame)
}

/// Computes the checksum over a few large pieces: one call per number would cost more than the rest of the decoding.
fn checksum(frames: &[proto::Frame]) -> u32 {
    let mut sum = 0;
    for frame in frames {
        let mut head = Vec::with_capacity(16 + frame.series.len() * 4 + frame.times_delta_ms.len() * 8);
        head.extend_from_slice(&(frame.series.len() as u64).to_le_bytes());
        head.extend(frame.series.iter().flat_map(|series| series.to_le_bytes()));
        head.extend_from_slice(&(frame.times_delta_ms.len() as u64).to_le_bytes());
        let mut time = 0_i64;
        head.extend(frame.times_delta_ms.iter().flat_map(|delta| {
            time = time.wrapping_add(*delta);
            time.to_le_bytes()
        }));
        sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, &head), &frame.values);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::series::{ABSENT, STALE};
    use proptest::prelude::*;

    #[test]
    fn markers_survive_and_damage_is_seen() {
        let frame = Frame {
            series: vec![3, 9],
            times_ms: vec![1_000, 2_000],
            values: vec![STALE, 1.5, ABSENT, f64::NAN],
        };
        let batch = encode("s", 7, std::slice::from_ref(&frame));
        let bits = |frame: &Frame| {
            frame
                .values
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&decode(&batch).expect("whole")[0]), bits(&frame));
        let mut damaged = batch.clone();
        let mut values = damaged.frames[0].values.to_vec();
        values[9] ^= 1;
        damaged.frames[0].values = values.into();
        assert_eq!(decode(&damaged), Err(BatchError::Checksum { seq: 7 }));
        let mut short = batch;
        short.frames[0].values.truncate(31);
        assert_eq!(decode(&short), Err(BatchError::Values));
    }

    proptest! {
        #[test]
        fn any_frame_survives(series in proptest::collection::vec(any::<u32>(), 0..5),
                              times in proptest::collection::btree_set(any::<i64>(), 0..5)) {
            let times_ms: Vec<i64> = times.into_iter().collect();
            let values = vec![0.25; series.len() * times_ms.len()];
            let frame = Frame { series, times_ms, values };
            // Differences that do not fit into 64 bits are rejected, not wrapped.
            match decode(&encode("s", 1, std::slice::from_ref(&frame))) {
                Ok(decoded) => prop_assert_eq!(decoded, vec![frame]),
                Err(error) => prop_assert_eq!(error, BatchError::Times),
            }
        }
    }
}
