//! The part of a frame that a selection needs.
//!
//! An instant selector reads, at each step, the newest sample within the lookback. Of all samples between two steps only the
//! newest can be that sample, whatever the lookback is, so the others are dropped.
//!
//! ```text
//! steps            |        |        |      counted backwards from the end of the selection
//! samples     . . x . . . x    . . x        x is kept
//! ```
//! Each piece is thinned separately. A kept sample may be overruled by another chunk's sample at the same time. That other
//! sample is dropped only in favour of a newer one in the same step, which is also kept, so no step reads either of them.

use std::ops::Range;

use domain::series::{Frame, Selection, is_absent};
use domain::time::{TimeRange, TimestampMs};

use super::SeriesId;
use super::chunk::OpenFrame;
use super::column::first_after;
use super::lane::range_of;
use super::members::Members;
use super::ticks::Ticks;

/// Thinning is used only if it leaves at most one tick in this many: finding one tick takes as long as copying several.
const WORTH_IT: usize = 4;

/// The range of a selection, and which samples within it are needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) range: TimeRange,
    /// Only the newest sample of each series is needed.
    pub(crate) latest: bool,
    /// Only the newest sample of each step is needed, counted backwards from the end. 0 if all samples are needed.
    pub(crate) step_ms: i64,
}

impl Cut {
    pub(crate) fn of(selection: &Selection) -> Self {
        // A function around the selector reads all samples of its range.
        let thin = selection.function.is_none() && selection.step_ms > 0;
        Self {
            range: selection.range(),
            latest: selection.latest,
            step_ms: if thin { selection.step_ms } else { 0 },
        }
    }

    /// Returns true if only a few of the samples are needed.
    pub(crate) fn is_thin(&self) -> bool {
        self.latest || self.step_ms > 0
    }

    /// Returns a cut that needs all samples within a range.
    #[cfg(test)]
    pub(crate) fn within(start_ms: TimestampMs, end_ms: TimestampMs) -> Self {
        Self {
            range: TimeRange::new(start_ms, end_ms),
            latest: false,
            step_ms: 0,
        }
    }

    /// Returns how many whole steps before the end of the selection a time is.
    fn bucket(&self, time_ms: TimestampMs) -> i64 {
        if self.latest {
            0
        } else {
            self.range.end_ms.saturating_sub(time_ms) / self.step_ms
        }
    }

    /// Returns the last millisecond of the next step towards the past.
    fn before_bucket(&self, bucket: i64) -> TimestampMs {
        if self.latest {
            TimestampMs::MIN
        } else {
            let steps = bucket.saturating_add(1).saturating_mul(self.step_ms);
            self.range.end_ms.saturating_sub(steps)
        }
    }

    /// Returns the ticks of a range that some of the rows need. `first_after` finds the first tick of a range after a time.
    /// `is_absent` reports the holes of a row; `None` if there are no holes.
    fn ticks(
        &self,
        range: Range<usize>,
        time: impl Fn(usize) -> TimestampMs,
        first_after: impl Fn(TimestampMs, Range<usize>) -> usize,
        rows: &[usize],
        is_absent: Option<impl Fn(usize, usize) -> bool>,
    ) -> Ticks {
        if range.is_empty() || !self.is_thin() {
            return Ticks::All(range);
        }
        let (first, last) = (self.bucket(time(range.start)), self.bucket(time(range.end - 1)));
        let buckets = first.saturating_sub(last).saturating_add(1);
        if !self.latest && (range.len() as i64) < buckets.saturating_mul(WORTH_IT as i64) {
            return Ticks::All(range);
        }
        // The ticks at which some row has its newest sample of a step.
        let mut kept = Vec::with_capacity(usize::try_from(buckets).unwrap_or_default());
        let (mut end, mut missing) = (range.end, Vec::new());
        while end > range.start {
            let before_ms = self.before_bucket(self.bucket(time(end - 1)));
            let start = first_after(before_ms, range.start..end);
            match &is_absent {
                None => kept.push(end - 1),
                Some(is_absent) => {
                    missing.clear();
                    missing.extend_from_slice(rows);
                    for tick in (start..end).rev() {
                        let before = missing.len();
                        missing.retain(|row| is_absent(*row, tick));
                        if missing.len() < before {
                            kept.push(tick);
                        }
                        if missing.is_empty() {
                            break;
                        }
                    }
                }
            }
            end = start;
        }
        kept.reverse();
        Ticks::Some(kept)
    }
}

/// Returns the wanted series of a frame at the needed ticks, or `None` if nothing is needed.
pub(crate) fn trim(frame: Frame<SeriesId>, members: &Members, cut: &Cut) -> Option<Frame<SeriesId>> {
    let range = range_of(&frame.times_ms, cut.range);
    let rows = wanted_rows(&frame.series, members);
    if range.is_empty() || rows.is_empty() {
        return None;
    }
    let time = |tick: usize| frame.times_ms[tick];
    let ticks = cut.ticks(
        range,
        time,
        |time_ms, range| first_after(time_ms, range, time),
        &rows,
        Some(|row, tick| is_absent(frame.row(row)[tick])),
    );
    if rows.len() == frame.series.len() && ticks == Ticks::All(0..frame.times_ms.len()) {
        return Some(frame);
    }
    let mut values = vec![0.0; rows.len() * ticks.len()];
    for (row, out) in rows.iter().zip(values.chunks_exact_mut(ticks.len().max(1))) {
        ticks.put(frame.row(*row), out, |value| value);
    }
    Some(Frame {
        series: rows.iter().map(|row| frame.series[*row]).collect(),
        times_ms: ticks.of(&frame.times_ms),
        values,
    })
}

/// Returns the ticks that some loaded rows of a frame in a chunk need.
pub(crate) fn ticks(frame: &OpenFrame, rows: &[usize], cut: &Cut) -> Ticks {
    let range = frame.axis.range(cut.range);
    let time = |tick| frame.axis.time(tick);
    let first_after = |time_ms, range| frame.axis.first_after(time_ms, range);
    let is_absent = |row, tick| frame.is_absent(row, tick);
    let is_absent = frame.may_have_holes().then_some(is_absent);
    cut.ticks(range, time, first_after, rows, is_absent)
}

/// Returns the indices of the wanted series.
pub(crate) fn wanted_rows(series: &[SeriesId], members: &Members) -> Vec<usize> {
    let is_wanted = |row: &usize| members.has(series[*row]);
    (0..series.len()).filter(is_wanted).collect()
}

#[cfg(test)]
mod tests {
    use domain::series::ABSENT;

    use super::*;

    fn cut(start_ms: i64, end_ms: i64, step_ms: i64, latest: bool) -> Cut {
        Cut {
            range: TimeRange::new(start_ms, end_ms),
            latest,
            step_ms,
        }
    }

    fn trimmed(cut: &Cut, wanted: &[u32]) -> (Vec<i64>, Vec<f64>) {
        let frame = Frame {
            series: vec![SeriesId(1), SeriesId(2)],
            times_ms: (1..=8).collect(),
            values: vec![
                1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.5, 2.5, 3.5, ABSENT, 5.5, 6.5, 7.5, ABSENT,
            ],
        };
        let members = Members::new(wanted.iter().map(|id| (SeriesId(*id), 0)));
        let frame = trim(frame, &members, cut).unwrap_or_default();
        (frame.times_ms, frame.values)
    }

    #[test]
    fn only_wanted_series_and_times_are_kept() {
        assert_eq!(trimmed(&cut(0, 9, 0, false), &[1, 2]).1.len(), 16);
        assert_eq!(
            trimmed(&cut(3, 5, 0, false), &[1]),
            (vec![3, 4, 5], vec![3.0, 4.0, 5.0])
        );
        assert_eq!(trimmed(&cut(9, 12, 0, false), &[1]), (vec![], vec![]));
        assert_eq!(trimmed(&cut(0, 9, 0, false), &[3]), (vec![], vec![]));
    }

    #[test]
    fn each_series_keeps_its_newest_sample_of_a_step() {
        // Steps end at 8, 4 and 0.
        assert_eq!(trimmed(&cut(0, 8, 4, false), &[1]), (vec![4, 8], vec![4.0, 8.0]));
        let (times, values) = trimmed(&cut(0, 8, 4, false), &[1, 2]);
        assert_eq!(times, [3, 4, 7, 8], "the second series has none at 4 and 8");
        assert_eq!(values[..5], [3.0, 4.0, 7.0, 8.0, 3.5]);
        assert!(is_absent(values[5]) && is_absent(values[7]));
    }

    #[test]
    fn the_latest_of_each_series_is_kept() {
        assert_eq!(trimmed(&cut(0, 9, 0, true), &[1]), (vec![8], vec![8.0]));
        assert_eq!(trimmed(&cut(0, 9, 0, true), &[1, 2]).0, [7, 8]);
        assert_eq!(trimmed(&cut(0, 3, 0, true), &[1, 2]), (vec![3], vec![3.0, 3.5]));
    }
}
