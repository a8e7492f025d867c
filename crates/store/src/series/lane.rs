//! A lane: series that tick together, on one axis.

use domain::series::{ABSENT, Frame, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Whether it takes samples that other lanes have no place for.
    pub(crate) late: bool,
    pub(crate) times_ms: Vec<TimestampMs>,
    /// Each at most as long as the axis; what is missing at the end is absent.
    pub(crate) columns: Vec<Vec<f64>>,
    pub(crate) series: Vec<SeriesId>,
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

impl Lane {
    pub(crate) fn put(&mut self, column: usize, time_ms: TimestampMs, value: f64) -> Put {
        let at = match self.times_ms.last() {
            Some(&last) if time_ms == last => self.times_ms.len() - 1,
            Some(&last) if time_ms < last => match self.times_ms.binary_search(&time_ms) {
                Ok(at) => at,
                Err(_) => return Put::Late,
            },
            _ => {
                self.times_ms.push(time_ms);
                self.times_ms.len() - 1
            }
        };
        let column = &mut self.columns[column];
        if column.len() <= at {
            column.resize(at, ABSENT);
            column.push(value);
            return Put::Stored;
        }
        let cell = &mut column[at];
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
    pub(crate) fn squeeze_in(&mut self, column: usize, time_ms: TimestampMs, value: f64) -> Put {
        let at = self.times_ms.partition_point(|time| *time < time_ms);
        self.times_ms.insert(at, time_ms);
        for column in self.columns.iter_mut().filter(|column| column.len() > at) {
            column.insert(at, ABSENT);
        }
        self.put(column, time_ms, value)
    }

    /// The columns that `wanted` asks for, between two indexes of the axis.
    pub(crate) fn frame(
        &self,
        range: std::ops::Range<usize>,
        wanted: impl Fn(SeriesId) -> bool,
    ) -> Frame<SeriesId> {
        let mut frame = Frame {
            times_ms: self.times_ms[range.clone()].to_vec(),
            ..Frame::default()
        };
        for (column, series) in self
            .columns
            .iter()
            .zip(&self.series)
            .filter(|(_, series)| wanted(**series))
        {
            frame.series.push(*series);
            let (from, to) = (range.start.min(column.len()), range.end.min(column.len()));
            frame.values.extend_from_slice(&column[from..to]);
            frame.values.resize(frame.series.len() * range.len(), ABSENT);
        }
        frame
    }
}

/// The indexes of the times within `start..=end`.
pub(crate) fn range_of(
    times_ms: &[TimestampMs],
    start_ms: TimestampMs,
    end_ms: TimestampMs,
) -> std::ops::Range<usize> {
    let from = times_ms.partition_point(|time| *time < start_ms);
    let to = times_ms.partition_point(|time| *time <= end_ms);
    from..to.max(from)
}
