//! Groups series, each of which has its own times, into blocks of series with the same times.
//!
//! ```text
//! a scrape     series × one time          one block, wherever the sender cuts its requests
//! a backfill   series × the same times    one block
//! ```

use std::collections::{HashMap, HashSet};

use domain::series::is_absent;
use domain::time::TimestampMs;
use foldhash::fast::RandomState;
use store::series::{APPEND_SAMPLES_MAX, SeriesId};

use super::message::Points;

/// Maximum number of times in one block: far below the size of one append, so that a block can always be split by rows.
const TIMES_MAX: usize = APPEND_SAMPLES_MAX / 8;
/// Maximum number of samples in one request: 64 MiB of values and times. The largest body of a correct sender has fewer, because a sample
/// takes 18 bytes. An empty sample takes only two bytes.
pub(super) const SAMPLES_MAX: usize = 4 << 20;
/// Maximum number of different sets of times in one request. Each needs its own block of some hundred bytes. Senders that scrape have a
/// few.
pub(super) const BLOCKS_MAX: usize = 1 << 16;

/// Samples of several series at the same times, ordered by series.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    pub(super) series: Vec<SeriesId>,
    pub(super) times_ms: Vec<TimestampMs>,
    pub(super) values: Vec<f64>,
}

/// The samples of a request, grouped by their times.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    /// The row of the previous series: most often the next one belongs to it too.
    current: usize,
    by_times: HashMap<Vec<TimestampMs>, usize>,
    samples: usize,
    pub(super) repeats: Repeats,
    /// The earliest time and its series, and the latest time and its series.
    pub(super) oldest: Option<(TimestampMs, SeriesId)>,
    pub(super) newest: Option<(TimestampMs, SeriesId)>,
}

/// Samples of a request at a time for which the request already has a value: the same value, or another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Repeats {
    pub(super) duplicates: u64,
    pub(super) conflicts: u64,
}

impl std::ops::AddAssign for Repeats {
    fn add_assign(&mut self, other: Self) {
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
    }
}

/// A request that exceeds a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMuch {
    #[error("a request may have at most {SAMPLES_MAX} samples; send several requests")]
    Samples,
    #[error(
        "the series of a request may have at most {BLOCKS_MAX} different sets of times; send fewer series at once"
    )]
    Blocks,
}

impl Rows {
    /// Adds the samples of a series.
    #[inline]
    pub(super) fn push(&mut self, id: SeriesId, points: &mut Points) -> Result<(), TooMuch> {
        self.samples += points.values.len();
        if self.samples > SAMPLES_MAX {
            return Err(TooMuch::Samples);
        }
        for value in &mut points.values {
            // A sender uses the bits of our marker for a missing sample as an ordinary NaN.
            if is_absent(*value) {
                *value = f64::NAN;
            }
        }
        if let Some(row) = self.rows.get_mut(self.current)
            && row.times_ms == points.times_ms
        {
            row.series.push(id);
            row.values.extend_from_slice(&points.values);
            return Ok(());
        }
        self.push_elsewhere(id, points)
    }

    fn push_elsewhere(&mut self, id: SeriesId, points: &mut Points) -> Result<(), TooMuch> {
        if !points.times_ms.is_sorted_by(|a, b| a < b) {
            self.sort(points);
        }
        let (Some(first), Some(last)) = (points.times_ms.first(), points.times_ms.last()) else {
            return Ok(());
        };
        self.oldest = self.oldest.into_iter().chain([(*first, id)]).min();
        self.newest = self.newest.into_iter().chain([(*last, id)]).max();
        let parts = points
            .times_ms
            .chunks(TIMES_MAX)
            .zip(points.values.chunks(TIMES_MAX));
        for (times_ms, values) in parts {
            self.current = self.row_of(times_ms)?;
            let row = &mut self.rows[self.current];
            row.series.push(id);
            row.values.extend_from_slice(values);
        }
        Ok(())
    }

    /// Sorts the samples. If a time occurs several times, the first value counts.
    fn sort(&mut self, points: &mut Points) {
        let mut pairs: Vec<_> = std::iter::zip(&points.times_ms, &points.values)
            .map(|(time_ms, value)| (*time_ms, *value))
            .collect();
        pairs.sort_by_key(|(time_ms, _)| *time_ms);
        pairs.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same && later.1.to_bits() == first.1.to_bits() {
                self.repeats.duplicates += 1;
            } else if same {
                self.repeats.conflicts += 1;
            }
            same
        });
        (points.times_ms, points.values) = pairs.into_iter().unzip();
    }

    fn row_of(&mut self, times_ms: &[TimestampMs]) -> Result<usize, TooMuch> {
        if let Some(at) = self.by_times.get(times_ms) {
            return Ok(*at);
        }
        if self.rows.len() >= BLOCKS_MAX {
            return Err(TooMuch::Blocks);
        }
        // A new row will be about as large as the previous one.
        let expected = self.rows.get(self.current).map_or(0, |row| row.series.len());
        self.rows.push(Row {
            series: Vec::with_capacity(expected),
            times_ms: times_ms.to_vec(),
            values: Vec::with_capacity(expected * times_ms.len()),
        });
        self.by_times.insert(times_ms.to_vec(), self.rows.len() - 1);
        Ok(self.rows.len() - 1)
    }

    /// Frees what only [`Rows::push`] needs: it may be as large as the times of the request.
    pub(super) fn finish(&mut self) {
        self.by_times = HashMap::new();
    }
}

impl Row {
    /// Returns true if a series occurs twice.
    pub(super) fn has_repeats(&self) -> bool {
        let mut seen = HashSet::with_capacity_and_hasher(self.series.len(), RandomState::default());
        !self.series.iter().all(|id| seen.insert(*id))
    }

    /// Keeps the first values of each series.
    pub(super) fn without_repeats(self) -> (Self, Repeats) {
        let times = self.times_ms.len();
        let mut repeats = Repeats::default();
        let mut first: HashMap<SeriesId, usize> = HashMap::with_capacity(self.series.len());
        let mut kept = Self {
            times_ms: self.times_ms,
            ..Self::default()
        };
        for (id, values) in self.series.into_iter().zip(self.values.chunks_exact(times)) {
            let Some(at) = first.get(&id) else {
                first.insert(id, kept.series.len());
                kept.series.push(id);
                kept.values.extend_from_slice(values);
                continue;
            };
            let same = |(a, b): &(&f64, &f64)| a.to_bits() == b.to_bits();
            let pairs = kept.values[at * times..][..times].iter().zip(values);
            let equal = pairs.filter(same).count() as u64;
            repeats.duplicates += equal;
            repeats.conflicts += times as u64 - equal;
        }
        (kept, repeats)
    }

    /// Splits a row that is too large for one append.
    pub(super) fn into_appendable(self) -> Vec<Self> {
        let times = self.times_ms.len();
        if self.values.len() <= APPEND_SAMPLES_MAX {
            return vec![self];
        }
        let series = APPEND_SAMPLES_MAX / times;
        let parts = self.series.chunks(series).zip(self.values.chunks(series * times));
        parts
            .map(|(series, values)| Self {
                series: series.to_vec(),
                times_ms: self.times_ms.clone(),
                values: values.to_vec(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    type Series<'a> = (u32, &'a [(i64, f64)]);

    fn rows(series: &[Series<'_>]) -> Rows {
        let mut rows = Rows::default();
        for (id, points) in series {
            let (times_ms, values) = points.iter().copied().unzip();
            rows.push(SeriesId(*id), &mut Points { times_ms, values })
                .unwrap();
        }
        rows
    }

    fn row(series: &[u32], times_ms: &[i64], values: &[f64]) -> Row {
        Row {
            series: series.iter().copied().map(SeriesId).collect(),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        }
    }

    #[test]
    fn series_with_the_same_times_share_a_row() {
        let sorted = rows(&[
            (1, &[(10, 1.0)]),
            (2, &[(10, 2.0)]),
            (3, &[(20, 3.0)]),
            (4, &[(10, 4.0)]),
            (5, &[]),
            (6, &[(10, 5.0), (20, 6.0)]),
        ]);
        assert_eq!(
            sorted.rows,
            [
                row(&[1, 2, 4], &[10], &[1.0, 2.0, 4.0]),
                row(&[3], &[20], &[3.0]),
                row(&[6], &[10, 20], &[5.0, 6.0]),
            ]
        );
        assert_eq!(sorted.oldest, Some((10, SeriesId(1))));
        assert_eq!(sorted.newest, Some((20, SeriesId(6))));
    }

    #[test]
    fn times_out_of_order_are_sorted_and_the_first_value_counts() {
        let sorted = rows(&[(1, &[(20, 2.0), (10, 1.0), (20, 9.0), (10, 1.0)])]);
        assert_eq!(sorted.rows, [row(&[1], &[10, 20], &[1.0, 2.0])]);
        assert_eq!((sorted.repeats.conflicts, sorted.repeats.duplicates), (1, 1));
        // Next to each other, and with the times of the previous row.
        let sorted = rows(&[(1, &[(i64::MIN, 1.0), (i64::MAX, 2.0), (i64::MAX, f64::NAN)])]);
        assert_eq!(sorted.rows, [row(&[1], &[i64::MIN, i64::MAX], &[1.0, 2.0])]);
        assert_eq!(sorted.repeats.conflicts, 1);
    }

    #[test]
    fn our_mark_for_a_hole_is_any_other_nan() {
        let sorted = rows(&[
            (1, &[(1, domain::series::ABSENT)]),
            (2, &[(1, domain::series::STALE)]),
        ]);
        let values = &sorted.rows[0].values;
        assert!(values[0].is_nan() && !is_absent(values[0]));
        assert_eq!(values[1].to_bits(), domain::series::STALE.to_bits());
    }

    #[test]
    fn the_first_value_at_a_time_counts() {
        let again = row(
            &[1, 2, 1, 1],
            &[5, 6],
            &[1.0, f64::NAN, 2.0, 2.5, 1.0, f64::NAN, 1.0, 4.5],
        );
        assert!(again.has_repeats());
        let (kept, repeats) = again.without_repeats();
        assert_eq!(
            (kept.series.as_slice(), kept.values.len()),
            (&[SeriesId(1), SeriesId(2)][..], 4)
        );
        assert_eq!((kept.values[0], kept.values[2]), (1.0, 2.0));
        assert_eq!((repeats.duplicates, repeats.conflicts), (3, 1));
        assert!(!row(&[1, 2], &[5], &[1.0, 2.0]).has_repeats());
    }

    #[test]
    fn what_is_too_large_for_one_append_is_split() {
        let (times, series) = (1_000, APPEND_SAMPLES_MAX as u32 / 1_000 + 10);
        let ids: Vec<u32> = (0..series).collect();
        let large = row(
            &ids,
            &(0..times).collect::<Vec<_>>(),
            &vec![1.0; ids.len() * times as usize],
        );
        let parts = large.into_appendable();
        assert_eq!(parts.len(), 2);
        assert!(
            parts
                .iter()
                .all(|part| part.values.len() == part.series.len() * times as usize)
        );
        assert_eq!(
            parts.iter().map(|part| part.series.len()).sum::<usize>(),
            series as usize
        );
        let long: Vec<(i64, f64)> = (0..TIMES_MAX as i64 + 1).map(|n| (n, 1.0)).collect();
        let sorted = rows(&[(1, &long)]);
        assert_eq!(
            sorted
                .rows
                .iter()
                .map(|row| row.times_ms.len())
                .collect::<Vec<_>>(),
            [TIMES_MAX, 1]
        );
    }

    #[test]
    fn a_request_has_bounds() {
        let mut all = Rows::default();
        let push = |all: &mut Rows, time_ms| {
            let (times_ms, values) = (vec![time_ms], vec![0.0]);
            all.push(SeriesId(1), &mut Points { times_ms, values })
        };
        for n in 0..BLOCKS_MAX as i64 {
            push(&mut all, n).unwrap();
        }
        assert_eq!(push(&mut all, -1), Err(TooMuch::Blocks));
        assert_eq!(push(&mut all, 0), Ok(()));
        let times_ms = vec![0; SAMPLES_MAX];
        let values = vec![0.0; SAMPLES_MAX];
        assert_eq!(
            all.push(SeriesId(1), &mut Points { times_ms, values }),
            Err(TooMuch::Samples)
        );
    }
}
