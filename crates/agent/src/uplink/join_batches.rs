//! Joins the batches of a backfill: one minute of one-second batches becomes one matrix, which costs the collector a fraction of 60
//! batches. The joined batch has the number of its last batch.

use std::collections::HashMap;

use domain::series::Frame;
use domain::time::TimestampMs;
use wire::frame::BatchError;
use wire::proto::Batch;

/// The maximum number of batches in a joined batch: one minute of the fastest tier.
pub(crate) const BATCHES_MAX: usize = 60;
/// The maximum number of values in a joined batch. This is 1 MB, far below the limit of a message.
pub(crate) const VALUES_MAX: usize = 128 << 10;

/// The samples of one list of series, from consecutive batches.
#[derive(Default)]
struct Joined {
    times_ms: Vec<TimestampMs>,
    /// One row of values per series.
    rows: Vec<Vec<f64>>,
}

/// Joins consecutive batches into one.
///
/// # Errors
/// Returns an error if one of the batches cannot be decoded.
pub(crate) fn join(batches: &[Batch]) -> Result<Batch, BatchError> {
    let mut joined: Vec<(Vec<u32>, Joined)> = Vec::new();
    let mut open: HashMap<Vec<u32>, usize> = HashMap::new();
    for batch in batches {
        for frame in wire::frame::decode(batch)? {
            let known = open.get(&frame.series).copied();
            let at = known
                .filter(|at| joined[*at].1.times_ms.last() < frame.times_ms.first())
                .unwrap_or_else(|| {
                    joined.push((frame.series.clone(), Joined::default()));
                    joined.len() - 1
                });
            open.insert(frame.series.clone(), at);
            joined[at].1.push(&frame);
        }
    }
    let frames: Vec<Frame> = joined
        .into_iter()
        .map(|(series, joined)| Frame {
            series,
            times_ms: joined.times_ms,
            values: joined.rows.concat(),
        })
        .collect();
    let last = batches
        .last()
        .map_or(("", 0), |batch| (batch.segment.as_str(), batch.seq));
    Ok(wire::frame::encode(last.0, last.1, &frames))
}

impl Joined {
    fn push(&mut self, frame: &Frame) {
        self.times_ms.extend(&frame.times_ms);
        self.rows.resize_with(frame.series.len(), Vec::new);
        for (row, values) in self.rows.iter_mut().enumerate() {
            values.extend(frame.row(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(series: &[u32], times_ms: &[i64], values: &[f64]) -> Frame {
        Frame {
            series: series.to_vec(),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        }
    }

    #[test]
    fn seconds_of_the_same_series_become_one_matrix() {
        let batches: Vec<Batch> = [
            (
                7,
                vec![frame(&[1, 2], &[10], &[1.0, 2.0]), frame(&[3], &[11], &[3.0])],
            ),
            (8, vec![frame(&[1, 2], &[20], &[4.0, 5.0])]),
            (
                9,
                vec![frame(&[1, 2], &[15], &[6.0, 7.0]), frame(&[3], &[21], &[8.0])],
            ),
        ]
        .map(|(seq, frames)| wire::frame::encode("s", seq, &frames))
        .to_vec();
        let batch = join(&batches).expect("they are whole");
        assert_eq!((batch.segment.as_str(), batch.seq), ("s", 9));
        let expected = [
            frame(&[1, 2], &[10, 20], &[1.0, 4.0, 2.0, 5.0]),
            frame(&[3], &[11, 21], &[3.0, 8.0]),
            // A time that goes back starts a new matrix.
            frame(&[1, 2], &[15], &[6.0, 7.0]),
        ];
        assert_eq!(wire::frame::decode(&batch).expect("it is whole"), expected);
    }
}
