//! The data of the map: one row per rank, one column per time, in plain lists.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::api::stream::Column;
use domain::series::Labels;
use domain::time::TimestampMs;

use super::layout::Layout;
use super::measure::{SERIES, STEP, TYPICAL};
use crate::ui::{UNMEASURED, quantile, shade, sorted};

/// Maximum number of ranks.
const RANKS_MAX: usize = 1_024;
/// Minimum number of ranks with a value: with two values, neither is the normal one.
pub(super) const PEERS_MIN: usize = 3;
/// The difference to the median that has the strongest colour, as a share of the run's step time.
pub(super) const SPAN: f64 = 0.25;

/// The values of all ranks at one time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moment {
    /// The time.
    pub(super) at_ms: TimestampMs,
    /// The highest step of the ranks; NaN if unknown.
    pub(super) step: f64,
    /// The median of the values; NaN if fewer than [`PEERS_MIN`] ranks have one.
    pub(super) median: f64,
    /// The median of the step times of all ranks; NaN if unknown.
    typical_s: f64,
    /// In the order of the ranks; NaN if not measured.
    values: Vec<f64>,
}

/// The values of all ranks in a period.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    ranks: Vec<u32>,
    moments: Vec<Moment>,
    /// Number of the oldest columns that are not shown, because the run or the attempt had not begun.
    hidden: usize,
    /// The series since the last reset by rank and node, and when each began.
    series: BTreeMap<String, usize>,
    begins_ms: Vec<TimestampMs>,
    /// Counts the changes of all cells, and the columns added since the last such change. So a canvas knows what it has not drawn.
    epoch: u32,
    added: usize,
}

impl Matrix {
    /// Adds a frame. With `reset`, it replaces all data; otherwise the period moves on.
    pub(super) fn take(&mut self, reset: bool, times_ms: &[TimestampMs], series: &[Column]) {
        if reset {
            let epoch = self.epoch;
            *self = Self {
                epoch,
                ..Self::default()
            };
        }
        let (known, length) = (self.ranks.len(), self.moments.len());
        let of_ranks = self.of_ranks(times_ms, series);
        self.moments.extend(
            times_ms
                .iter()
                .map(|at_ms| Moment::empty(*at_ms, self.ranks.len())),
        );
        let new = &mut self.moments[length..];
        // A rank that moved to another node has two series for a short time: the one that began later counts.
        for (_, rank, column) in sorted(of_ranks, |a, b| a.0.cmp(&b.0)) {
            if let Ok(row) = self.ranks.binary_search(&rank) {
                put(new, column, |moment, value| moment.values[row] = value);
            }
        }
        for column in series {
            match column.labels.get(SERIES) {
                Some(TYPICAL) => put(new, column, |moment, value| moment.typical_s = value),
                Some(STEP) => put(new, column, |moment, value| moment.step = value),
                _ => {}
            }
        }
        new.iter_mut().for_each(Moment::compare);
        if reset || self.ranks.len() != known {
            self.epoch = self.epoch.wrapping_add(1);
            self.added = 0;
        } else {
            self.added += times_ms.len();
        }
        if !reset {
            self.moments.drain(..times_ms.len().min(self.moments.len()));
        }
    }

    /// Hides the columns before the start of the attempt that was measured first: `start_of` returns the start of the attempt that ran at a
    /// time. A column with a value is never hidden.
    pub(super) fn hide_before_start(&mut self, start_of: impl FnOnce(TimestampMs) -> Option<TimestampMs>) {
        let first = self.moments.iter().position(Moment::is_measured);
        let start_ms = first.and_then(|at| start_of(self.moments[at].at_ms));
        let is_before = |moment: &Moment| start_ms.is_some_and(|start_ms| moment.at_ms < start_ms);
        self.hidden = self.moments.partition_point(is_before).min(first.unwrap_or(0));
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the lowest and the highest rank.
    pub(super) fn first_and_last(&self) -> Option<(u32, u32)> {
        Some((*self.ranks.first()?, *self.ranks.last()?))
    }

    /// Returns the columns that are shown, oldest first.
    pub(super) fn moments(&self) -> &[Moment] {
        &self.moments[self.hidden..]
    }

    /// Returns the column of a time.
    pub(super) fn column(&self, at_ms: TimestampMs) -> Option<usize> {
        self.moments()
            .binary_search_by_key(&at_ms, |moment| moment.at_ms)
            .ok()
    }

    /// Returns two counters: the first changes with all cells, the second counts the columns that were added since.
    pub(super) fn version(&self) -> (u32, usize) {
        (self.epoch, self.added)
    }

    /// Returns the number of columns in which a rank has a value.
    pub(super) fn measured(&self) -> usize {
        self.moments.iter().filter(|moment| moment.is_measured()).count()
    }

    /// Returns the colour numbers of the last `columns` columns, column by column.
    pub(super) fn colours(&self, layout: Layout, columns: usize) -> Vec<u8> {
        let begin = self.moments.len().saturating_sub(columns);
        let mut colours = Vec::with_capacity(columns * layout.rows);
        for moment in &self.moments[begin..] {
            for row in 0..layout.rows {
                let ranks = layout.ranks_of(row);
                colours.push(
                    moment
                        .odd_one_out(ranks)
                        .map_or(UNMEASURED, |at| moment.colour(at)),
                );
            }
        }
        colours
    }

    /// Returns the rank that a cell shows and its value, which is NaN if no rank of the row has one.
    pub(super) fn shown(&self, column: usize, ranks: Range<usize>) -> Option<(u32, f64)> {
        let moment = self.moments().get(column)?;
        let at = moment.odd_one_out(ranks.clone()).unwrap_or(ranks.start);
        Some((*self.ranks.get(at)?, *moment.values.get(at)?))
    }

    /// Returns the value of a rank at a time.
    pub(super) fn value(&self, rank: u32, at_ms: TimestampMs) -> Option<f64> {
        let row = self.ranks.binary_search(&rank).ok()?;
        let value = self.moments().get(self.column(at_ms)?)?.values.get(row)?;
        (!value.is_nan()).then_some(*value)
    }

    /// Returns the lowest and the highest rank of a row.
    pub(super) fn row(&self, ranks: Range<usize>) -> Option<(u32, u32)> {
        let last = ranks.end.min(self.ranks.len()).checked_sub(1)?;
        Some((*self.ranks.get(ranks.start)?, *self.ranks.get(last)?))
    }

    /// Returns the series of ranks with the time at which each began. Adds the ranks that are new.
    fn of_ranks<'a>(
        &mut self,
        times_ms: &[TimestampMs],
        series: &'a [Column],
    ) -> Vec<(TimestampMs, u32, &'a Column)> {
        let mut of_ranks = Vec::with_capacity(series.len());
        for column in series {
            let first = column.values.iter().position(Option::is_some);
            let first_ms = first.and_then(|at| times_ms.get(at));
            if let (Some(rank), Some(first_ms)) = (rank_of(&column.labels), first_ms) {
                self.add_rank(rank);
                of_ranks.push((self.begin_ms(rank, &column.labels, *first_ms), rank, column));
            }
        }
        of_ranks
    }

    fn add_rank(&mut self, rank: u32) {
        if let Err(row) = self.ranks.binary_search(&rank)
            && self.ranks.len() < RANKS_MAX
        {
            self.ranks.insert(row, rank);
            for moment in &mut self.moments {
                moment.values.insert(row, f64::NAN);
            }
        }
    }

    /// Returns when a series began: at `first_ms` if it is new.
    fn begin_ms(&mut self, rank: u32, labels: &Labels, first_ms: TimestampMs) -> TimestampMs {
        let key = format!("{rank} {}", labels.get("node").unwrap_or_default());
        let next = self.begins_ms.len();
        let at = *self.series.entry(key).or_insert(next);
        if at == next {
            self.begins_ms.push(first_ms);
        }
        self.begins_ms[at]
    }
}

impl Moment {
    fn empty(at_ms: TimestampMs, ranks: usize) -> Self {
        Self {
            at_ms,
            step: f64::NAN,
            median: f64::NAN,
            typical_s: f64::NAN,
            values: vec![f64::NAN; ranks],
        }
    }

    fn is_measured(&self) -> bool {
        self.values.iter().any(|value| !value.is_nan())
    }

    /// Sets the median.
    fn compare(&mut self) {
        let measured = self.values.iter().filter(|value| !value.is_nan()).count();
        self.median = if measured < PEERS_MIN {
            f64::NAN
        } else {
            quantile(&self.values, 0.5)
        };
    }

    /// Returns the position of the rank with the largest difference to the median, or of any measured one if there is no median.
    fn odd_one_out(&self, ranks: Range<usize>) -> Option<usize> {
        let mut odd = None;
        let mut largest = f64::NEG_INFINITY;
        for at in ranks.start..ranks.end.min(self.values.len()) {
            let value = self.values[at];
            let size = (value - self.median).abs();
            if !value.is_nan() && (odd.is_none() || size > largest) {
                (odd, largest) = (Some(at), size);
            }
        }
        odd
    }

    fn colour(&self, at: usize) -> u8 {
        // Shares of a step time of 0 are infinite or NaN; no measured step takes no time.
        if self.typical_s <= 0.0 {
            return UNMEASURED;
        }
        let share = (self.values[at] - self.median) / self.typical_s;
        shade(0.5 + share / (2.0 * SPAN))
    }
}

fn rank_of(labels: &Labels) -> Option<u32> {
    labels.get("rank")?.parse().ok()
}

/// Puts the values of a series into its columns.
fn put(moments: &mut [Moment], column: &Column, set: impl Fn(&mut Moment, f64)) {
    for (moment, value) in moments.iter_mut().zip(&column.values) {
        if let Some(value) = value {
            set(moment, *value);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Returns the values of a rank on a node.
    pub(in super::super) fn rank(rank: u32, node: &str, values: &[Option<f64>]) -> Column {
        column(&[("rank", rank.to_string().as_str()), ("node", node)], values)
    }

    /// Returns a series of the run.
    pub(in super::super) fn of_run(name: &str, values: &[Option<f64>]) -> Column {
        column(&[(SERIES, name)], values)
    }

    fn column(labels: &[(&str, &str)], values: &[Option<f64>]) -> Column {
        Column {
            labels: Labels::new(labels.iter().copied()).unwrap(),
            values: values.to_vec(),
            not_finite: vec![],
            min: vec![],
            max: vec![],
        }
    }

    /// Returns a frame of one column: a value per rank, and a typical step of one second.
    fn frame(values: &[Option<f64>]) -> Vec<Column> {
        let ranks = (0..).zip(values).map(|(n, value)| rank(n, "a", &[*value]));
        ranks.chain([of_run(TYPICAL, &[Some(1.0)])]).collect()
    }

    fn colours(matrix: &Matrix, columns: usize) -> Vec<u8> {
        matrix.colours(Layout::of(matrix.ranks(), columns), columns)
    }

    #[test]
    fn the_late_rank_has_another_colour_than_its_peers() {
        let mut matrix = Matrix::default();
        matrix.take(true, &[1_000], &frame(&[Some(1.0), Some(1.25), Some(1.0), None]));
        assert_eq!(matrix.ranks(), 3, "a rank without a value is no row");
        assert_eq!(colours(&matrix, 1), [128, 254, 128]);
        assert_eq!(matrix.measured(), 1);
    }

    #[test]
    fn fewer_than_three_values_have_no_colour() {
        let mut matrix = Matrix::default();
        matrix.take(true, &[1_000], &frame(&[Some(1.0), Some(2.0)]));
        assert_eq!(colours(&matrix, 1), [UNMEASURED, UNMEASURED]);
        let unknown = [0, 1, 2].map(|n| rank(n, "a", &[Some(1.0)]));
        matrix.take(true, &[1_000], &unknown);
        assert_eq!(colours(&matrix, 1), [UNMEASURED; 3], "the step time is unknown");
        assert_eq!(matrix.shown(0, 1..2), Some((1, 1.0)));
    }

    #[test]
    fn new_columns_move_the_period_and_new_ranks_change_all_rows() {
        let mut matrix = Matrix::default();
        let two = |value: f64| [0, 1, 3].map(|n| rank(n, "a", &[None, Some(value)]));
        matrix.take(true, &[1_000, 2_000], &two(1.0));
        let (epoch, added) = matrix.version();
        assert_eq!(added, 0);
        matrix.take(false, &[3_000], &frame(&[Some(1.0), Some(1.0)]));
        assert_eq!(matrix.version(), (epoch, 1));
        let times: Vec<_> = matrix.moments().iter().map(|moment| moment.at_ms).collect();
        assert_eq!(times, [2_000, 3_000]);
        assert_eq!((matrix.column(3_000), matrix.column(1_000)), (Some(1), None));
        matrix.take(false, &[4_000], &frame(&[Some(1.0), Some(1.0), Some(2.0)]));
        assert_ne!(matrix.version().0, epoch, "rank 2 is new");
        assert_eq!(
            matrix.shown(0, 2..3).map(|(rank, value)| (rank, value.is_nan())),
            Some((2, true))
        );
        assert_eq!(matrix.shown(1, 2..3), Some((2, 2.0)));
        assert_eq!(matrix.first_and_last(), Some((0, 3)));
    }

    #[test]
    fn the_map_begins_at_the_start_of_the_attempt_and_hides_no_value() {
        let values = |values: &[Option<f64>]| [0, 1, 2].map(|n| rank(n, "a", values));
        let times: Vec<TimestampMs> = (1..=5).map(|n| n * 1_000).collect();
        for (first, start_ms, hidden) in [
            (3, Some(2_500), 2),
            (3, Some(3_000), 2),
            (3, Some(0), 0),
            (3, None, 0),
            (1, Some(3_000), 1),
            (5, Some(3_000), 0),
        ] {
            let measured: Vec<_> = (0..5).map(|n| (n >= first).then_some(1.0)).collect();
            let mut matrix = Matrix::default();
            matrix.take(true, &times, &values(&measured));
            matrix.hide_before_start(|at_ms| {
                assert_eq!(Some(&at_ms), times.get(first), "the first measured column");
                start_ms
            });
            let shown: Vec<_> = matrix.moments().iter().map(|moment| moment.at_ms).collect();
            assert_eq!(shown, times[hidden..], "{first} {start_ms:?}");
        }
        let mut matrix = Matrix::default();
        matrix.take(true, &times, &values(&[None, None, None, Some(1.0), Some(2.0)]));
        matrix.hide_before_start(|_| Some(3_000));
        assert_eq!(matrix.column(3_000), Some(0));
        assert_eq!(matrix.column(2_000), None);
        assert_eq!(matrix.shown(2, 1..2), Some((1, 2.0)));
        assert_eq!(matrix.value(1, 5_000), Some(2.0));
        assert_eq!(colours(&matrix, 3).len(), 9);
        matrix.take(false, &[6_000], &values(&[Some(3.0)]));
        matrix.hide_before_start(|_| Some(3_000));
        assert_eq!(matrix.moments().len(), 4, "there is room for a column more");
        matrix.take(false, &[7_000, 8_000], &values(&[Some(4.0), Some(4.0)]));
        matrix.hide_before_start(|_| Some(3_000));
        assert_eq!(matrix.moments().len(), 5, "the period moves on");
        assert_eq!(matrix.column(4_000), Some(0));
    }

    #[test]
    fn a_rank_that_moved_has_the_values_of_its_new_node() {
        for order in [[0, 1], [1, 0]] {
            let mut matrix = Matrix::default();
            let parts = [
                rank(0, "a", &[Some(1.0), Some(1.0)]),
                rank(0, "b", &[None, Some(2.0)]),
            ];
            matrix.take(true, &[1_000, 2_000], &order.map(|at| parts[at].clone()));
            assert_eq!(matrix.ranks(), 1);
            assert_eq!(matrix.shown(0, 0..1), Some((0, 1.0)));
            assert_eq!(matrix.shown(1, 0..1), Some((0, 2.0)));
            matrix.take(
                false,
                &[3_000],
                &[rank(0, "b", &[Some(3.0)]), rank(0, "a", &[Some(1.0)])],
            );
            assert_eq!(matrix.shown(1, 0..1), Some((0, 3.0)), "as it began later");
        }
    }

    #[test]
    fn a_row_of_several_ranks_shows_the_one_that_differs_most() {
        let mut matrix = Matrix::default();
        matrix.take(
            true,
            &[1_000],
            &frame(&[Some(1.0), Some(0.9), Some(1.0), Some(1.1), None, Some(1.0)]),
        );
        let layout = Layout {
            rows: 3,
            per_row: 2,
            columns: 1,
            height: 3,
        };
        assert_eq!(matrix.shown(0, layout.ranks_of(0)), Some((1, 0.9)));
        assert_eq!(matrix.row(layout.ranks_of(2)), Some((5, 5)));
        let colours = matrix.colours(layout, 1);
        assert!(
            colours[0] < 128 && colours[1] > 128 && colours[2] == 128,
            "{colours:?}"
        );
    }
}
