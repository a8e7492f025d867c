//! A lane: series of a group with samples at the same times, as a matrix of ticks.
//!
//! ```text
//! rows        r0  r1  r2        the row of the group that each column belongs to
//! times[0]    v   v   v
//! times[1]    v   v   v         a tick is contiguous: the samples of one second are one copy
//! ```
//! Ticks are stored in blocks. A new tick moves no earlier tick, and freed blocks of one lane fit another lane.

use std::ops::Range;

use domain::series::{ABSENT, Frame, is_absent};
use domain::time::{TimeRange, TimestampMs};

use super::SeriesId;
use super::counts::Counts;

/// The number of ticks in a block. It is small, so that a lane never holds much more memory than it uses.
const BLOCK_TICKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Lane {
    /// True if the lane takes samples that have no place in other lanes.
    pub(crate) late: bool,
    pub(crate) times_ms: Vec<TimestampMs>,
    pub(crate) rows: Vec<u32>,
    /// Tick-major. Cells after the last tick are undefined.
    blocks: Vec<Box<[f64]>>,
    /// The number of ticks that the first block lacks, so that not all lanes need a new block at the same tick.
    skipped: usize,
}

/// The result for one sample.
pub(crate) enum Put {
    Stored,
    /// A sample with the same bits is already stored.
    Same,
    /// Another value is already stored, and stays.
    Other,
    /// Older than the end of the lane, and the lane has no tick at this time.
    Late,
}

/// The samples of some series at some times, series-major, and which of the series to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub(crate) times_ms: &'a [TimestampMs],
    pub(crate) values: &'a [f64],
    /// For each wanted series, its index in `values`.
    pub(crate) columns: &'a [u32],
}

impl Cells<'_> {
    pub(crate) fn value(&self, column: usize, tick: usize) -> f64 {
        self.values[self.columns[column] as usize * self.times_ms.len() + tick]
    }
}

// === impl Lane: filling ===

impl Lane {
    /// Creates a lane of the group with number `group`.
    pub(crate) fn new(late: bool, rows: &[u32], group: usize) -> Self {
        Self {
            late,
            times_ms: Vec::new(),
            rows: rows.to_vec(),
            blocks: Vec::new(),
            skipped: group % BLOCK_TICKS,
        }
    }

    pub(crate) fn last_ms(&self) -> Option<TimestampMs> {
        self.times_ms.last().copied()
    }

    /// Returns true if the axis has a tick within these times.
    pub(crate) fn has_within(&self, range: TimeRange) -> bool {
        !range_of(&self.times_ms, range).is_empty()
    }

    /// Adds whole ticks after the last one. The columns of `cells` are in the order of the lane's columns.
    pub(crate) fn extend(&mut self, cells: Cells<'_>) -> Counts {
        let mut counts = Counts::default();
        for (tick, time_ms) in cells.times_ms.iter().enumerate() {
            self.make_room();
            let mut stored = 0;
            for (column, cell) in self.tick_mut(self.times_ms.len()).iter_mut().enumerate() {
                *cell = cells.value(column, tick);
                stored += u64::from(!is_absent(*cell));
            }
            if stored == 0 {
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
        let cell = &mut self.tick_mut(tick)[column];
        if is_absent(*cell) {
            *cell = value;
            Put::Stored
        } else if cell.to_bits() == value.to_bits() {
            Put::Same
        } else {
            Put::Other
        }
    }

    /// Inserts a tick in the middle of the axis. This is the slow path, for samples that are late even in a late lane.
    pub(crate) fn insert_late(
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
        for block in &mut self.blocks {
            let ticks = block.chunks_exact(width);
            *block = ticks
                .flat_map(|tick| tick.iter().copied().chain([ABSENT]))
                .collect();
        }
        self.rows.push(row);
        counts.cells += self.times_ms.len() as i64;
        width
    }

    fn insert_tick(&mut self, tick: usize, time_ms: TimestampMs, counts: &mut Counts) -> usize {
        self.make_room();
        let width = self.rows.len();
        let (first, from) = self.place(tick);
        let (last, _) = self.place(self.times_ms.len());
        for block in (first..=last).rev() {
            let (before, cells) = self.blocks.split_at_mut(block);
            let cells = &mut cells[0];
            let from = if block == first { from } else { 0 };
            cells.copy_within(from..cells.len() - width, from + width);
            if block > first
                && let Some(before) = before.last()
            {
                cells[..width].copy_from_slice(&before[before.len() - width..]);
            }
        }
        self.tick_mut(tick).fill(ABSENT);
        self.times_ms.insert(tick, time_ms);
        counts.cells += self.rows.len() as i64;
        tick
    }

    /// Makes room for one more tick.
    fn make_room(&mut self) {
        let ticks = self.times_ms.len();
        if ticks == self.times_ms.capacity() {
            self.times_ms.reserve_exact(BLOCK_TICKS);
        }
        if self.place(ticks).0 == self.blocks.len() {
            let missing = if self.blocks.is_empty() { self.skipped } else { 0 };
            let cells = (BLOCK_TICKS - missing) * self.rows.len();
            self.blocks.push(vec![ABSENT; cells].into());
        }
    }

    fn tick_mut(&mut self, tick: usize) -> &mut [f64] {
        let (block, from) = self.place(tick);
        &mut self.blocks[block][from..from + self.rows.len()]
    }

    /// Returns the block of a tick, and the position of the tick in it.
    fn place(&self, tick: usize) -> (usize, usize) {
        let at = tick + self.skipped;
        let missing = if at < BLOCK_TICKS { self.skipped } else { 0 };
        (at / BLOCK_TICKS, (at % BLOCK_TICKS - missing) * self.rows.len())
    }
}

// === impl Lane: reading ===

impl Lane {
    /// Returns the number of cells, including those without a sample.
    pub(crate) fn cells(&self) -> usize {
        self.times_ms.len() * self.rows.len()
    }

    pub(crate) fn samples(&self) -> usize {
        let ticks = (0..self.times_ms.len()).map(|tick| self.tick(tick));
        ticks.flatten().filter(|value| !is_absent(**value)).count()
    }

    /// Returns the times of the first and the last sample of a column within a range of ticks.
    pub(crate) fn span(&self, column: usize, range: Range<usize>) -> Option<(TimestampMs, TimestampMs)> {
        let present = |tick: &usize| !is_absent(self.value(*tick, column));
        let last = range.clone().rev().find(present)?;
        let first = range.clone().find(present)?;
        Some((self.times_ms[first], self.times_ms[last]))
    }

    /// Returns the newest sample of a column at or before a time.
    pub(crate) fn latest(&self, column: usize, end_ms: TimestampMs) -> Option<(TimestampMs, f64)> {
        let ticks = self.times_ms.partition_point(|time| *time <= end_ms);
        let tick = (0..ticks)
            .rev()
            .find(|tick| !is_absent(self.value(*tick, column)))?;
        Some((self.times_ms[tick], self.value(tick, column)))
    }

    /// Returns the wanted columns within a range of ticks. `series` has the ids of all columns.
    pub(crate) fn frame(
        &self,
        range: Range<usize>,
        series: impl Iterator<Item = SeriesId> + Clone,
        wanted: impl Fn(SeriesId) -> bool,
    ) -> Frame<SeriesId> {
        let columns = || series.clone().enumerate().filter(|(_, id)| wanted(*id));
        let mut frame = Frame {
            times_ms: self.times_ms[range.clone()].to_vec(),
            series: columns().map(|(_, id)| id).collect(),
            values: Vec::new(),
        };
        frame.values.reserve_exact(frame.series.len() * range.len());
        for (column, _) in columns() {
            let values = range.clone().map(|tick| self.value(tick, column));
            frame.values.extend(values);
        }
        frame
    }

    fn tick(&self, tick: usize) -> &[f64] {
        let (block, from) = self.place(tick);
        &self.blocks[block][from..from + self.rows.len()]
    }

    fn value(&self, tick: usize, column: usize) -> f64 {
        self.tick(tick)[column]
    }
}

/// Returns the indices of the times within `start..=end`.
pub(crate) fn range_of(times_ms: &[TimestampMs], range: TimeRange) -> Range<usize> {
    let from = times_ms.partition_point(|time| *time < range.start_ms);
    let to = times_ms.partition_point(|time| *time <= range.end_ms);
    from..to.max(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserting a tick anywhere must not change other ticks, however many ticks the first block lacks.
    #[test]
    fn ticks_stay_in_order_over_blocks() {
        for group in 0..BLOCK_TICKS {
            for squeezed in 0..40 {
                let mut lane = Lane::new(true, &[7, 8], group);
                let mut counts = Counts::default();
                for tick in (0..40).filter(|tick| *tick != squeezed) {
                    let (time_ms, value) = (tick * 10, tick as f64);
                    let cells = Cells {
                        times_ms: &[time_ms, time_ms + 5],
                        values: &[value, ABSENT, -value, ABSENT],
                        columns: &[0, 1],
                    };
                    counts += lane.extend(cells);
                }
                lane.insert_late(0, squeezed * 10, squeezed as f64, &mut counts);
                lane.add_column(9, &mut counts);
                lane.put(2, 390, 1.0, &mut counts);

                let frame = lane.frame(0..40, [7, 8, 9].map(SeriesId).into_iter(), |_| true);
                assert_eq!(frame.times_ms, (0..40).map(|tick| tick * 10).collect::<Vec<_>>());
                for tick in 0..40 {
                    let (at, value) = (tick as usize, tick as f64);
                    assert_eq!(frame.row(0)[at].to_bits(), value.to_bits());
                    let second = if tick == squeezed { ABSENT } else { -value };
                    assert_eq!(frame.row(1)[at].to_bits(), second.to_bits());
                    let third = if tick == 39 { 1.0 } else { ABSENT };
                    assert_eq!(frame.row(2)[at].to_bits(), third.to_bits());
                }
                assert_eq!((lane.cells(), counts.cells), (120, 120));
                assert_eq!(lane.samples(), 80);
            }
        }
    }
}
