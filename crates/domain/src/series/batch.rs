//! Samples in columns: what travels from agent to collector and into the store.
//!
//! ```text
//!               times_ms[0]  times_ms[1] …
//! series[0]     values[0]    values[1]   …      values are series-major:
//! series[1]     values[T]    values[T+1] …      values[s * times_ms.len() + t]
//! ```
//! A hole in the matrix is [`ABSENT`]; a series that ended is [`STALE`]. Both are NaNs with a payload of their own and are
//! told apart by bits, never by arithmetic.

use crate::time::TimestampMs;

/// Prometheus' staleness marker: the series has ended, do not look back past this.
pub const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
/// No sample at this time. Never stored, never leaves the system.
pub const ABSENT: f64 = f64::from_bits(0x7ff0_0000_0000_0ab5);

/// Whether a value is the staleness marker, by its bits.
#[must_use]
pub fn is_stale(value: f64) -> bool {
    value.to_bits() == STALE.to_bits()
}

/// Whether a value marks a hole, by its bits.
#[must_use]
pub fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// A matrix of samples over one time axis. `S` names a series: an index into a session's dictionary on the wire, the
/// store's own id behind it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame<S = u32> {
    /// The series of each row.
    pub series: Vec<S>,
    /// The time axis, strictly increasing.
    pub times_ms: Vec<TimestampMs>,
    /// `series.len() * times_ms.len()` values, series-major.
    pub values: Vec<f64>,
}

/// A frame whose parts do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not `series × times` values.
    #[error("a frame of {series} series and {times} times carries {values} values")]
    Shape {
        /// Rows.
        series: usize,
        /// Columns.
        times: usize,
        /// Values found.
        values: usize,
    },
    /// The time axis goes back or stands still.
    #[error("the times of a frame do not increase")]
    Times,
}

impl<S> Frame<S> {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// When the value count is not rows × columns, or times do not strictly increase.
    pub fn check(&self) -> Result<(), FrameError> {
        Self::check_parts(self.series.len(), &self.times_ms, self.values.len())
    }

    /// The same for parts that are kept apart.
    ///
    /// # Errors
    /// As [`Frame::check`].
    pub fn check_parts(series: usize, times_ms: &[TimestampMs], values: usize) -> Result<(), FrameError> {
        let times = times_ms.len();
        if series.checked_mul(times) != Some(values) {
            return Err(FrameError::Shape {
                series,
                times,
                values,
            });
        }
        if times_ms.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(FrameError::Times);
        }
        Ok(())
    }

    /// The values of row `s`, one a time.
    #[must_use]
    pub fn row(&self, s: usize) -> &[f64] {
        let times = self.times_ms.len();
        &self.values[s * times..(s + 1) * times]
    }

    /// How many samples are really there.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.values.iter().filter(|value| !is_absent(**value)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_knows_when_it_is_malformed() {
        let good = Frame {
            series: vec![0_u32, 1],
            times_ms: vec![10, 20],
            values: vec![1.0, 2.0, 3.0, ABSENT],
        };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.samples(), 3);
        assert_eq!(good.row(0), [1.0, 2.0]);
        let short = Frame {
            values: vec![1.0],
            ..good.clone()
        };
        assert!(matches!(short.check(), Err(FrameError::Shape { .. })));
        let back = Frame {
            times_ms: vec![20, 20],
            ..good
        };
        assert_eq!(back.check(), Err(FrameError::Times));
    }

    #[test]
    fn markers_are_told_apart_by_bits() {
        assert!(is_stale(STALE) && !is_stale(f64::NAN) && !is_stale(ABSENT));
        assert!(is_absent(ABSENT) && !is_absent(f64::NAN) && !is_absent(STALE));
    }
}
