//! The window of time that samples are taken from: neither too old for the agents' spools nor ahead of the clock.

use domain::series::Frame;
use domain::time::TimestampMs;

use super::lane::range_of;
use super::wal::Entry;
use super::{Append, Appended, FUTURE_MS_MAX, SeriesId};

/// Cuts off the samples that are too old or too far ahead, and counts them.
pub(crate) fn within_window(
    append: Append,
    now_ms: TimestampMs,
    out_of_order_ms: i64,
    appended: &mut Appended,
) -> Entry {
    let (start_ms, end_ms) = (
        now_ms.saturating_sub(out_of_order_ms),
        now_ms.saturating_add(FUTURE_MS_MAX),
    );
    let mut cut = |frame: Frame<SeriesId>| {
        let range = range_of(&frame.times_ms, start_ms, end_ms);
        if range.len() == frame.times_ms.len() {
            return frame;
        }
        let (before, within, after) = (
            part(&frame, 0..range.start),
            part(&frame, range.clone()),
            part(&frame, range.end..frame.times_ms.len()),
        );
        appended.too_old += before.samples() as u64;
        appended.too_new += after.samples() as u64;
        within
    };
    let frames = append
        .frames
        .into_iter()
        .map(&mut cut)
        .filter(|frame| !frame.values.is_empty())
        .collect();
    Entry {
        source: append.source,
        frames,
    }
}

fn part(frame: &Frame<SeriesId>, range: std::ops::Range<usize>) -> Frame<SeriesId> {
    let values = (0..frame.series.len())
        .flat_map(|row| &frame.row(row)[range.clone()])
        .copied()
        .collect();
    Frame {
        series: frame.series.clone(),
        times_ms: frame.times_ms[range.clone()].to_vec(),
        values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_out_of_the_window_are_counted_and_the_others_kept() {
        let frame = Frame {
            series: vec![SeriesId(1), SeriesId(2)],
            times_ms: vec![0, 9_000_000, 99_000_000],
            values: vec![1.0, 2.0, 3.0, domain::series::ABSENT, 5.0, 6.0],
        };
        let mut appended = Appended::default();
        let append = Append {
            source: None,
            frames: vec![frame],
        };
        let kept = within_window(append, 10_000_000, 2_000_000, &mut appended);
        assert_eq!((appended.too_old, appended.too_new), (1, 2));
        assert_eq!(
            (
                kept.frames[0].times_ms.as_slice(),
                kept.frames[0].values.as_slice()
            ),
            (&[9_000_000][..], &[2.0, 5.0][..])
        );
    }
}
