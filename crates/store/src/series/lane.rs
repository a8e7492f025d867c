//! A lane: series of a group that tick together, as a matrix of ticks.
//!
//! ```text
//! rows        r0  r1  r2        which row of the group each column is
//! times[0]    v   v   v
//! times[1]    v   v   v         a tick is contiguous: what an agent says in one second is one copy
//! ```

use std::ops::Range;

use domain::series::{ABSENT, Frame, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;
use super::head::Counts;

/// Ticks that room is made for at once: a lane never holds much more memory than it uses, and is moved a few times only.
const GROW_TICKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Lane {
    /// Whether it takes samples that other lanes have no place for.
    pub(crate) late: bool,
    pub(crate) times_ms: Vec<TimestampMs>,
    pub(crate) rows: Vec<u32>,
    /// Tick-major, `times_ms.len() * rows.len()`.
    values: Vec<f64>,
}

/// What became of a sample.
pub(crate) enum Put {
    Stored,
    /// There already, with the same bits.
    Same,
    /// Another value is there already, and stays.
    Other,
    /// Older than the lane's end, and no tick there.
    Late,
}

/// The samples of some series at some times, series-major, and which of the series are meant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub(crate) times_ms: &'a [TimestampMs],
    pub(crate) values: &'a [f64],
    /// For each wanted series its place among `values`.
    pub(crate) columns: &'a [u32],
}

impl Cells<'_> {
    pub(crate) fn value(&self, column: usize, tick: usize) -> f64 {
        self.values[self.columns[column] as usize * self.times_ms.len() + tick]
    }
}

// === impl Lane: filling ===

impl Lane {
    /// A lane of the nth group. Groups make room at ticks of their own: if all did at once, the rooms they leave would be held
    /// beside the new ones.
    pub(crate) fn new(late: bool, rows: &[u32], group: usize) -> Self {
        let ticks = 1 + group % GROW_TICKS;
        Self {
            late,
            times_ms: Vec::with_capacity(ticks),
            rows: rows.to_vec(),
            values: Vec::with_capacity(ticks * rows.len()),
        }
    }

    pub(crate) fn last_ms(&self) -> Option<TimestampMs> {
        self.times_ms.last().copied()
    }

    /// Whether the axis has a tick within these times.
    pub(crate) fn has_within(&self, start_ms: TimestampMs, end_ms: TimestampMs) -> bool {
        !range_of(&self.times_ms, start_ms, end_ms).is_empty()
    }

    /// Adds whole ticks behind the last one; the cells are those of the lane's columns, in their order.
    pub(crate) fn extend(&mut self, cells: Cells<'_>) -> Counts {
        let mut counts = Counts::default();
        for (tick, time_ms) in cells.times_ms.iter().enumerate() {
            self.make_room();
            let mut stored = 0;
            for column in 0..self.rows.len() {
                let value = cells.value(column, tick);
                stored += u64::from(!is_absent(value));
                self.values.push(value);
            }
            if stored == 0 {
                self.values.truncate(self.values.len() - self.rows.len());
                continue;
            }
            self.times_ms.push(*time_ms);
            counts.accepted += stored;
            counts.cells += self.rows.len() as i64;
        }
        counts
    }

    pub(crate) fn put(
        &mut self,
        column: usize,
        time_ms: TimestampMs,
        value: f64,
        counts: &mut Counts,
    ) -> Put {
        let tick = match self.times_ms.last() {
            Some(&last) if time_ms == last => self.times_ms.len() - 1,
            Some(&last) if time_ms < last => match self.times_ms.binary_search(&time_ms) {
                Ok(tick) => tick,
                Err(_) => return Put::Late,
            },
            _ => self.insert_tick(self.times_ms.len(), time_ms, counts),
        };
        let width = self.rows.len();
        let cell = &mut self.values[tick * width + column];
        if is_absent(*cell) {
            *cell = value;
            Put::Stored
        } else if cell.to_bits() == value.to_bits() {
            Put::Same
        } else {
            Put::Other
        }
    }

    /// Makes room in the middle of the axis: the slow way, for samples that are late among the late.
    pub(crate) fn squeeze_in(
        &mut self,
        column: usize,
        time_ms: TimestampMs,
        value: f64,
        counts: &mut Counts,
    ) -> Put {
        let tick = self.times_ms.partition_point(|time| *time < time_ms);
        self.insert_tick(tick, time_ms, counts);
        self.put(column, time_ms, value, counts)
    }

    /// Adds a column without samples.
    pub(crate) fn add_column(&mut self, row: u32, counts: &mut Counts) -> usize {
        let width = self.rows.len();
        let mut wider = Vec::with_capacity((self.times_ms.len() + GROW_TICKS) * (width + 1));
        for tick in 0..self.times_ms.len() {
            wider.extend_from_slice(&self.values[tick * width..(tick + 1) * width]);
            wider.push(ABSENT);
        }
        self.values = wider;
        self.rows.push(row);
        counts.cells += self.times_ms.len() as i64;
        width
    }

    fn insert_tick(&mut self, tick: usize, time_ms: TimestampMs, counts: &mut Counts) -> usize {
        self.make_room();
        let width = self.rows.len();
        self.times_ms.insert(tick, time_ms);
        self.values
            .splice(tick * width..tick * width, std::iter::repeat_n(ABSENT, width));
        counts.cells += width as i64;
        tick
    }

    fn make_room(&mut self) {
        if self.times_ms.len() == self.times_ms.capacity() {
            self.times_ms.reserve_exact(GROW_TICKS);
        }
        if self.values.capacity() - self.values.len() < self.rows.len() {
            self.values.reserve_exact(GROW_TICKS * self.rows.len());
        }
    }
}

// === impl Lane: reading ===

impl Lane {
    /// Cells, those without a sample included.
    pub(crate) fn cells(&self) -> usize {
        self.values.len()
    }

    /// The first and last sample of a column within a range of ticks.
    pub(crate) fn span(&self, column: usize, range: Range<usize>) -> Option<(TimestampMs, TimestampMs)> {
        let present = |tick: &usize| !is_absent(self.value(*tick, column));
        let last = range.clone().rev().find(present)?;
        let first = range.clone().find(present)?;
        Some((self.times_ms[first], self.times_ms[last]))
    }

    /// The newest sample of a column at or before a time.
    pub(crate) fn latest(&self, column: usize, end_ms: TimestampMs) -> Option<(TimestampMs, f64)> {
        let ticks = self.times_ms.partition_point(|time| *time <= end_ms);
        let tick = (0..ticks)
            .rev()
            .find(|tick| !is_absent(self.value(*tick, column)))?;
        Some((self.times_ms[tick], self.value(tick, column)))
    }

    /// The columns that `wanted` asks for, between two indexes of the axis. `series` names the group's rows.
    pub(crate) fn frame(
        &self,
        range: Range<usize>,
        series: impl Fn(u32) -> SeriesId,
        wanted: impl Fn(SeriesId) -> bool,
    ) -> Frame<SeriesId> {
        let mut frame = Frame {
            times_ms: self.times_ms[range.clone()].to_vec(),
            ..Frame::default()
        };
        for (column, row) in self.rows.iter().enumerate() {
            let id = series(*row);
            if wanted(id) {
                frame.series.push(id);
                frame
                    .values
                    .extend(range.clone().map(|tick| self.value(tick, column)));
            }
        }
        frame
    }

    fn value(&self, tick: usize, column: usize) -> f64 {
        self.values[tick * self.rows.len() + column]
    }
}

/// The indexes of the times within `start..=end`.
pub(crate) fn range_of(times_ms: &[TimestampMs], start_ms: TimestampMs, end_ms: TimestampMs) -> Range<usize> {
    let from = times_ms.partition_point(|time| *time < start_ms);
    let to = times_ms.partition_point(|time| *time <= end_ms);
    from..to.max(from)
}
