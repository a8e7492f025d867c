//! Samples in columns, as the agent sends them to the collector and as the store receives them.
//!
//! ```text
//!               times_ms[0]  times_ms[1] …
//! series[0]     values[0]    values[1]   …      values are series-major:
//! series[1]     values[T]    values[T+1] …      values[s * times_ms.len() + t]
//! ```
//! A missing value of the matrix is [`ABSENT`]; the end of a series is [`STALE`]. Both are NaNs with different payloads. Compare them by
//! bits, never by arithmetic.

use crate::time::TimestampMs;

/// Prometheus' staleness marker: the series ended here. A query does not look back past it.
pub const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
/// Marks a missing value of a frame. It is never stored and never leaves Lockstep.
pub const ABSENT: f64 = f64::from_bits(0x7ff0_0000_0000_0ab5);

/// Returns true if the value is the staleness marker. Compares bits.
#[must_use]
pub fn is_stale(value: f64) -> bool {
    value.to_bits() == STALE.to_bits()
}

/// Returns true if the value is [`ABSENT`]. Compares bits.
#[must_use]
pub fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// A matrix of samples with one time axis. `S` identifies a series: on the wire an index into the dictionary of the connection, in the
/// store the store's own id.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame<S = u32> {
    /// Series of each row.
    pub series: Vec<S>,
    /// Time axis, strictly increasing.
    pub times_ms: Vec<TimestampMs>,
    /// `series.len() * times_ms.len()` values, series-major.
    pub values: Vec<f64>,
}

/// A frame whose parts do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The number of values is not `series × times`.
    #[error("a frame of {series} series and {times} times has {values} values")]
    Shape {
        /// Number of rows.
        series: usize,
        /// Number of columns.
        times: usize,
        /// Number of values.
        values: usize,
    },
    /// The time axis does not strictly increase.
    #[error("the times of a frame do not increase")]
    Times,
}

impl<S> Frame<S> {
    /// Checks that the parts of the frame match.
    ///
    /// # Errors
    /// Returns an error if the number of values is not rows × columns, or the times do not strictly increase.
    pub fn check(&self) -> Result<(), FrameError> {
        Self::check_parts(self.series.len(), &self.times_ms, self.values.len())
    }

    /// Like [`Frame::check`], for parts that are stored separately.
    ///
    /// # Errors
    /// See [`Frame::check`].
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

    /// Returns the values of row `s`, one per time.
    #[must_use]
    pub fn row(&self, s: usize) -> &[f64] {
        let times = self.times_ms.len();
        &self.values[s * times..(s + 1) * times]
    }

    /// Returns the number of samples, without missing values.
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
