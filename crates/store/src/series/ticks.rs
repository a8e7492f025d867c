//! A selection of the ticks of a frame.

use std::ops::Range;

/// Some ticks of a frame, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ticks {
    All(Range<usize>),
    Some(Vec<usize>),
}

impl Ticks {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::All(range) => range.len(),
            Self::Some(ticks) => ticks.len(),
        }
    }

    /// Returns the values of a row at these ticks.
    pub(crate) fn of<T: Copy>(&self, row: &[T]) -> Vec<T> {
        match self {
            Self::All(range) => row[range.clone()].to_vec(),
            Self::Some(ticks) => ticks.iter().map(|tick| row[*tick]).collect(),
        }
    }

    /// Returns the first and the last tick.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::All(range) => (!range.is_empty()).then(|| (range.start, range.end - 1)),
            Self::Some(ticks) => Some((*ticks.first()?, *ticks.last()?)),
        }
    }

    /// Applies `value` to a row's numbers at these ticks and writes the results to `out`, which has one place per tick.
    pub(crate) fn put<T: Copy, V>(&self, row: &[T], out: &mut [V], value: impl Fn(T) -> V) {
        match self {
            Self::All(range) => {
                for (place, number) in out.iter_mut().zip(&row[range.clone()]) {
                    *place = value(*number);
                }
            }
            Self::Some(ticks) => {
                for (place, tick) in out.iter_mut().zip(ticks) {
                    *place = value(row[*tick]);
                }
            }
        }
    }

    /// Sets those of the values at these ticks that are in a run.
    pub(crate) fn fill(&self, run: Range<usize>, value: f64, values: &mut [f64]) {
        let places = match self {
            Self::All(range) => {
                let place = |tick: usize| tick.clamp(range.start, range.end) - range.start;
                place(run.start)..place(run.end)
            }
            Self::Some(ticks) => {
                let place = |tick: usize| ticks.partition_point(|this| *this < tick);
                place(run.start)..place(run.end)
            }
        };
        values[places].fill(value);
    }
}
