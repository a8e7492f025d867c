//! What of a piece of samples a selection needs.
//!
//! An instant selector looks at each of its steps for the newest sample within the lookback. Of all samples between two steps
//! only the newest can be that one, for whatever lookback; the others need not be kept.
//!
//! ```text
//! steps            |        |        |      counted back from the end of the selection
//! samples     . . x . . . x    . . x        x is kept
//! ```
//! Pieces are thinned one by one. A sample that another chunk's sample at its time rules out may then be left, but only
//! where that one went for a newer one of the same step, which is left too: nobody looks at either.

use domain::series::{Frame, Selection, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;
use super::fetch::Members;
use super::lane::range_of;

/// Thinning pays when it leaves no more than this part of the ticks.
const WORTH_IT: usize = 2;

/// The range of a selection and which samples within it matter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) start_ms: TimestampMs,
    pub(crate) end_ms: TimestampMs,
    /// Only the newest sample of each series.
    pub(crate) latest: bool,
    /// Only the newest sample of each step, counted back from the end; 0 when all matter.
    step_ms: i64,
}

impl Cut {
    pub(crate) fn of(selection: &Selection) -> Self {
        // A function around the selector looks at all samples of its range.
        let thin = selection.function.is_none() && selection.step_ms > 0;
        Self {
            start_ms: selection.start_ms,
            end_ms: selection.end_ms,
            latest: selection.latest,
            step_ms: if thin { selection.step_ms } else { 0 },
        }
    }

    /// How many whole steps before the end of the selection a time lies.
    fn bucket(&self, time_ms: TimestampMs) -> i64 {
        if self.latest {
            0
        } else {
            self.end_ms.saturating_sub(time_ms) / self.step_ms
        }
    }

    fn is_thin(&self, times_ms: &[TimestampMs]) -> bool {
        if !self.latest && self.step_ms == 0 {
            return false;
        }
        let (Some(first), Some(last)) = (times_ms.first(), times_ms.last()) else {
            return false;
        };
        let buckets = self
            .bucket(*first)
            .saturating_sub(self.bucket(*last))
            .saturating_add(1);
        times_ms.len() as i64 >= buckets.saturating_mul(WORTH_IT as i64)
    }
}

/// The wanted series of a frame, at the ticks that matter; none when nothing does.
pub(crate) fn trim(frame: Frame<SeriesId>, members: &Members, cut: &Cut) -> Option<Frame<SeriesId>> {
    let range = range_of(&frame.times_ms, cut.start_ms, cut.end_ms);
    let is_wanted = |row: &usize| members.place(frame.series[*row]).is_some();
    let rows: Vec<usize> = (0..frame.series.len()).filter(is_wanted).collect();
    if range.is_empty() || rows.is_empty() {
        return None;
    }
    if cut.is_thin(&frame.times_ms[range.clone()]) {
        let ticks = newest_ticks(&frame, &rows, range, cut);
        return Some(picked(
            &frame,
            &rows,
            |values, row| {
                values.extend(ticks.iter().map(|tick| row[*tick]));
            },
            ticks.iter().map(|tick| frame.times_ms[*tick]).collect(),
        ));
    }
    if rows.len() == frame.series.len() && range.len() == frame.times_ms.len() {
        return Some(frame);
    }
    let times_ms = frame.times_ms[range.clone()].to_vec();
    Some(picked(
        &frame,
        &rows,
        |values, row| values.extend_from_slice(&row[range.clone()]),
        times_ms,
    ))
}

/// Some rows of a frame, of each what `pick` takes.
fn picked(
    frame: &Frame<SeriesId>,
    rows: &[usize],
    pick: impl Fn(&mut Vec<f64>, &[f64]),
    times_ms: Vec<TimestampMs>,
) -> Frame<SeriesId> {
    let mut values = Vec::with_capacity(rows.len() * times_ms.len());
    rows.iter().for_each(|row| pick(&mut values, frame.row(*row)));
    Frame {
        series: rows.iter().map(|row| frame.series[*row]).collect(),
        times_ms,
        values,
    }
}

/// The ticks at which some row has its newest sample of a step, ascending.
fn newest_ticks(
    frame: &Frame<SeriesId>,
    rows: &[usize],
    range: std::ops::Range<usize>,
    cut: &Cut,
) -> Vec<usize> {
    let mut kept = Vec::new();
    let mut bucket = None;
    let mut missing: Vec<usize> = Vec::new();
    for tick in range.rev() {
        let this = cut.bucket(frame.times_ms[tick]);
        if bucket != Some(this) {
            bucket = Some(this);
            missing.clear();
            missing.extend_from_slice(rows);
        }
        let before = missing.len();
        missing.retain(|row| is_absent(frame.row(*row)[tick]));
        if missing.len() < before {
            kept.push(tick);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use domain::series::ABSENT;

    use super::*;

    fn cut(start_ms: i64, end_ms: i64, step_ms: i64, latest: bool) -> Cut {
        Cut {
            start_ms,
            end_ms,
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
