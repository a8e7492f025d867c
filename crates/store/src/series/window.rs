//! The window of accepted sample times: not older than agents keep samples in their spool, and not ahead of the clock.

use std::ops::Range;

use domain::series::is_absent;
use domain::time::{TimeRange, TimestampMs};

use super::lane::range_of;
use super::wal::Entry;
use super::{Append, Appended, Block, FUTURE_MS_MAX};

/// Removes and counts the samples that are too old or too far ahead.
pub(crate) fn within_window(
    append: Append,
    now_ms: TimestampMs,
    out_of_order_ms: i64,
    appended: &mut Appended,
) -> Entry {
    let window = TimeRange::new(
        now_ms.saturating_sub(out_of_order_ms),
        now_ms.saturating_add(FUTURE_MS_MAX),
    );
    let mut cut = |block: Block| {
        let range = range_of(&block.times_ms, window);
        if range.len() == block.times_ms.len() {
            return block;
        }
        appended.too_old += samples(&block, 0..range.start);
        appended.too_new += samples(&block, range.end..block.times_ms.len());
        part(&block, range)
    };
    let blocks = append
        .blocks
        .into_iter()
        .map(&mut cut)
        .filter(|block| !block.values.is_empty())
        .collect();
    Entry {
        source: append.source,
        blocks,
    }
}

fn samples(block: &Block, range: Range<usize>) -> u64 {
    let rows = block.values.chunks_exact(block.times_ms.len());
    let present = |row: &[f64]| {
        row[range.clone()]
            .iter()
            .filter(|value| !is_absent(**value))
            .count() as u64
    };
    rows.map(present).sum()
}

fn part(block: &Block, range: Range<usize>) -> Block {
    let rows = block.values.chunks_exact(block.times_ms.len());
    Block {
        shape: block.shape.clone(),
        times_ms: block.times_ms[range.clone()].to_vec(),
        values: rows.flat_map(|row| &row[range.clone()]).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_out_of_the_window_are_counted_and_the_others_kept() {
        let block = Block {
            shape: crate::series::shape::of_rows(2),
            times_ms: vec![0, 9_000_000, 99_000_000],
            values: vec![1.0, 2.0, 3.0, domain::series::ABSENT, 5.0, 6.0],
        };
        let mut appended = Appended::default();
        let append = Append {
            source: None,
            blocks: vec![block],
        };
        let kept = within_window(append, 10_000_000, 2_000_000, &mut appended);
        assert_eq!((appended.too_old, appended.too_new), (1, 2));
        assert_eq!(
            (
                kept.blocks[0].times_ms.as_slice(),
                kept.blocks[0].values.as_slice()
            ),
            (&[9_000_000][..], &[2.0, 5.0][..])
        );
    }
}
