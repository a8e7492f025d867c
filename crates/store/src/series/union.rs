//! The union of frames: joins the frames of several chunks into as few as possible, with each sample once.
//!
//! ```text
//! older  t1 t2 t3       a  a  a          t1 t2 t3 t4 t5
//! newer        t3 t4 t5 b  b  b    →     a  a  a  b  b       the value of the older one stays
//! ```
//! Series that are in the same frames get one frame. Frames with nearly the same axis are joined, with holes, because one long
//! column is smaller than two short ones.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::series::{ABSENT, Frame, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;

/// The rows of one series: frame and row. The values of earlier frames win.
type Rows = Vec<(usize, usize)>;

/// Series that share one frame.
struct Block {
    times_ms: Vec<TimestampMs>,
    series: Vec<(SeriesId, Rows)>,
}

/// Returns frames in which each series is in one frame and each time occurs once. Of two values at one time, the one from the
/// earlier frame is kept.
pub(crate) fn union(frames: &[Frame<SeriesId>]) -> Vec<Frame<SeriesId>> {
    let mut blocks: Vec<Block> = Vec::new();
    for block in blocks_of(frames) {
        match blocks.iter_mut().find(|other| other.is_near(&block)) {
            Some(other) => other.join(block),
            None => blocks.push(block),
        }
    }
    blocks.iter().filter_map(|block| block.frame(frames)).collect()
}

/// Cuts frames at times: part `n` has the samples before the `n`-th time, the last part the rest.
pub(crate) fn cut(frames: &[Frame<SeriesId>], at_ms: &[TimestampMs]) -> Vec<Vec<Frame<SeriesId>>> {
    let bounds = std::iter::once(TimestampMs::MIN).chain(at_ms.iter().copied());
    let ends = at_ms.iter().copied().map(Some).chain([None]);
    let part = |(from_ms, to_ms): (TimestampMs, Option<TimestampMs>)| {
        let within = |frame: &Frame<SeriesId>| {
            let from = frame.times_ms.partition_point(|time| *time < from_ms);
            let to = to_ms.map_or(frame.times_ms.len(), |to| {
                frame.times_ms.partition_point(|time| *time < to)
            });
            slice(frame, from..to.max(from))
        };
        frames
            .iter()
            .map(within)
            .filter(|frame| !frame.values.is_empty())
            .collect()
    };
    bounds.zip(ends).map(part).collect()
}

fn slice(frame: &Frame<SeriesId>, range: Range<usize>) -> Frame<SeriesId> {
    let rows = (0..frame.series.len()).flat_map(|row| &frame.row(row)[range.clone()]);
    Frame {
        series: frame.series.clone(),
        values: rows.copied().collect(),
        times_ms: frame.times_ms[range].to_vec(),
    }
}

/// Creates one block for each set of frames that some series share.
fn blocks_of(frames: &[Frame<SeriesId>]) -> Vec<Block> {
    let mut rows: BTreeMap<SeriesId, Rows> = BTreeMap::new();
    for (at, frame) in frames.iter().enumerate() {
        for (row, id) in frame.series.iter().enumerate() {
            if frame.row(row).iter().any(|value| !is_absent(*value)) {
                rows.entry(*id).or_default().push((at, row));
            }
        }
    }
    let mut by_frames: BTreeMap<Vec<usize>, Vec<(SeriesId, Rows)>> = BTreeMap::new();
    for (id, rows) in rows {
        let key = rows.iter().map(|(at, _)| *at).collect();
        by_frames.entry(key).or_default().push((id, rows));
    }
    let block = |(key, series): (Vec<usize>, _)| Block {
        times_ms: axis(key.iter().map(|at| frames[*at].times_ms.as_slice())),
        series,
    };
    by_frames.into_iter().map(block).collect()
}

/// Returns all times, sorted and without duplicates.
fn axis<'a>(axes: impl Iterator<Item = &'a [TimestampMs]>) -> Vec<TimestampMs> {
    let mut axes: Vec<&[TimestampMs]> = axes.filter(|axis| !axis.is_empty()).collect();
    axes.sort_unstable_by_key(|axis| axis[0]);
    let apart = axes.windows(2).all(|pair| pair[0].last() < pair[1].first());
    let mut times_ms = axes.concat();
    if !apart {
        times_ms.sort_unstable();
        times_ms.dedup();
    }
    times_ms
}

impl Block {
    /// Returns true if a common axis would have few holes: at most a sixteenth of the cells.
    fn is_near(&self, other: &Self) -> bool {
        let own = self.times_ms.len() * self.series.len() + other.times_ms.len() * other.series.len();
        let cells = |times: usize| times * (self.series.len() + other.series.len());
        if cells(self.times_ms.len().max(other.times_ms.len())) > own + own / 16 {
            return false;
        }
        let joined = axis([self.times_ms.as_slice(), &other.times_ms].into_iter());
        cells(joined.len()) <= own + own / 16
    }

    fn join(&mut self, other: Self) {
        self.times_ms = axis([self.times_ms.as_slice(), &other.times_ms].into_iter());
        self.series.extend(other.series);
    }

    /// Returns the cells of the block. Times at which no series has a sample are left out.
    fn frame(&self, frames: &[Frame<SeriesId>]) -> Option<Frame<SeriesId>> {
        let ticks = self.times_ms.len();
        let mut frame = Frame {
            series: self.series.iter().map(|(id, _)| *id).collect(),
            times_ms: self.times_ms.clone(),
            values: vec![ABSENT; ticks * self.series.len()],
        };
        for ((_, rows), out) in self.series.iter().zip(frame.values.chunks_exact_mut(ticks)) {
            for (at, row) in rows {
                fill(out, &self.times_ms, &frames[*at].times_ms, frames[*at].row(*row));
            }
        }
        let filled: Vec<bool> = (0..ticks)
            .map(|tick| (0..self.series.len()).any(|row| !is_absent(frame.values[row * ticks + tick])))
            .collect();
        if filled.contains(&false) {
            let keep = |at: usize| filled[at % ticks];
            frame.values = kept(&frame.values, keep);
            frame.times_ms = kept(&frame.times_ms, keep);
        }
        (!frame.times_ms.is_empty()).then_some(frame)
    }
}

fn kept<T: Copy>(cells: &[T], keep: impl Fn(usize) -> bool) -> Vec<T> {
    let kept = cells.iter().enumerate().filter(|(at, _)| keep(*at));
    kept.map(|(_, cell)| *cell).collect()
}

/// Copies a row to its times on a longer axis, into cells that are still absent.
fn fill(out: &mut [f64], axis: &[TimestampMs], times_ms: &[TimestampMs], values: &[f64]) {
    let Some(first) = times_ms.first() else { return };
    let mut at = axis.partition_point(|time| time < first);
    for (time_ms, value) in times_ms.iter().zip(values) {
        while axis[at] < *time_ms {
            at += 1;
        }
        if is_absent(out[at]) {
            out[at] = *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(series: &[u32], times_ms: &[i64], values: &[f64]) -> Frame<SeriesId> {
        Frame {
            series: series.iter().map(|id| SeriesId(*id)).collect(),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        }
    }

    fn check(frames: &[Frame<SeriesId>], expected: &[Frame<SeriesId>]) {
        let bits = |frames: &[Frame<SeriesId>]| {
            let bits = |frame: &Frame<SeriesId>| frame.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            frames
                .iter()
                .map(|frame| (frame.series.clone(), frame.times_ms.clone(), bits(frame)))
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&union(frames)), bits(expected));
    }

    #[test]
    fn frames_one_after_the_other_become_one() {
        check(
            &[
                frame(&[1, 2], &[30], &[3.0, 6.0]),
                frame(&[2, 1], &[10, 20], &[4.0, 5.0, 1.0, 2.0]),
            ],
            &[frame(&[1, 2], &[10, 20, 30], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        );
    }

    #[test]
    fn the_earlier_frame_wins_and_holes_are_filled() {
        check(
            &[
                frame(&[1], &[10, 20, 30], &[1.0, ABSENT, 3.0]),
                frame(&[1], &[10, 15, 20, 30], &[9.0, 1.5, 2.0, 9.0]),
            ],
            &[frame(&[1], &[10, 15, 20, 30], &[1.0, 1.5, 2.0, 3.0])],
        );
    }

    #[test]
    fn series_with_axes_of_their_own_keep_them_and_near_ones_share() {
        let times: Vec<i64> = (0..40).collect();
        check(
            &[
                frame(&[1], &times, &[1.0; 40]),
                frame(&[2], &times[1..], &[2.0; 39]),
                frame(&[3], &[100], &[3.0]),
            ],
            &[
                frame(&[1, 2], &times, &[&[1.0; 40][..], &[ABSENT], &[2.0; 39]].concat()),
                frame(&[3], &[100], &[3.0]),
            ],
        );
    }

    #[test]
    fn times_and_series_without_a_value_are_omitted() {
        check(
            &[frame(&[1, 2], &[10, 20], &[ABSENT, 1.0, ABSENT, ABSENT])],
            &[frame(&[1], &[20], &[1.0])],
        );
        check(&[frame(&[1], &[10], &[ABSENT])], &[]);
    }

    #[test]
    fn a_cut_puts_each_time_on_one_side() {
        let parts = cut(&[frame(&[1], &[10, 20, 30], &[1.0, 2.0, 3.0])], &[20, 40]);
        assert_eq!(
            parts,
            [
                vec![frame(&[1], &[10], &[1.0])],
                vec![frame(&[1], &[20, 30], &[2.0, 3.0])],
                vec![]
            ]
        );
    }
}
