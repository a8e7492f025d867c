//! Frames on the wire, and the checksum of a batch.
//!
//! ```text
//! proto::Frame   series           u32 each, packed
//!                times_delta_ms   first as is, then distances; zig-zag varints
//!                values           f64 little-endian, series-major
//! checksum       crc32c over, for each frame: count of series, series, count of times, times (absolute), values;
//!                every number little-endian, u32, u64 or i64
//! ```

use domain::series::Frame;
use domain::series::batch::FrameError;

use crate::proto;

/// A batch that did not arrive as it was sent, or never made sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Bytes changed on the way.
    #[error("the checksum of batch {seq} does not match its contents")]
    Checksum {
        /// The batch.
        seq: u64,
    },
    /// Not a whole number of values.
    #[error("a frame's values are not a multiple of 8 bytes")]
    Values,
    /// Times beyond 64 bits.
    #[error("a frame's times overflow")]
    Times,
    /// Parts that do not fit together.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Puts frames on the wire as a batch.
#[must_use]
pub fn encode(segment: &str, seq: u64, frames: &[Frame]) -> proto::Batch {
    proto::Batch {
        segment: segment.to_owned(),
        seq,
        frames: frames.iter().map(encode_frame).collect(),
        checksum: checksum(frames),
    }
}

fn encode_frame(frame: &Frame) -> proto::Frame {
    let mut before = 0_i64;
    let deltas = frame
        .times_ms
        .iter()
        .map(|&time| time.wrapping_sub(std::mem::replace(&mut before, time)));
    proto::Frame {
        series: frame.series.clone(),
        times_delta_ms: deltas.collect(),
        values: frame
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
    }
}

/// Reads a batch's frames and checks that they are whole.
///
/// # Errors
/// See [`BatchError`].
pub fn decode(batch: &proto::Batch) -> Result<Vec<Frame>, BatchError> {
    let frames: Vec<Frame> = batch.frames.iter().map(decode_frame).collect::<Result<_, _>>()?;
    if checksum(&frames) == batch.checksum {
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

fn checksum(frames: &[Frame]) -> u32 {
    let mut sum = 0;
    let mut add = |bytes: &[u8]| sum = crc32c::crc32c_append(sum, bytes);
    for frame in frames {
        add(&(frame.series.len() as u64).to_le_bytes());
        frame.series.iter().for_each(|series| add(&series.to_le_bytes()));
        add(&(frame.times_ms.len() as u64).to_le_bytes());
        frame.times_ms.iter().for_each(|time| add(&time.to_le_bytes()));
        frame.values.iter().for_each(|value| add(&value.to_le_bytes()));
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
        damaged.frames[0].values[9] ^= 1;
        assert_eq!(decode(&damaged), Err(BatchError::Checksum { seq: 7 }));
        let mut short = batch;
        short.frames[0].values.pop();
        assert_eq!(decode(&short), Err(BatchError::Values));
    }

    proptest! {
        #[test]
        fn any_frame_survives(series in proptest::collection::vec(any::<u32>(), 0..5),
                              times in proptest::collection::btree_set(any::<i64>(), 0..5)) {
            let times_ms: Vec<i64> = times.into_iter().collect();
            let values = vec![0.25; series.len() * times_ms.len()];
            let frame = Frame { series, times_ms, values };
            // Distances beyond 64 bits are refused, not wrapped.
            match decode(&encode("s", 1, std::slice::from_ref(&frame))) {
                Ok(decoded) => prop_assert_eq!(decoded, vec![frame]),
                Err(error) => prop_assert_eq!(error, BatchError::Times),
            }
        }
    }
}
