//! Time as values: milliseconds since the Unix epoch, and durations in Prometheus' notation.

use std::fmt;

/// Milliseconds since 1970-01-01 UTC. All samples and records use this unit.
pub type TimestampMs = i64;

/// A period of time. Both ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// First time of the period.
    pub start_ms: TimestampMs,
    /// Last time of the period.
    pub end_ms: TimestampMs,
}

impl TimeRange {
    /// The period that includes every time.
    pub const ALL: Self = Self::new(TimestampMs::MIN, TimestampMs::MAX);

    /// Returns the period from `start_ms` to `end_ms`.
    #[must_use]
    pub const fn new(start_ms: TimestampMs, end_ms: TimestampMs) -> Self {
        Self { start_ms, end_ms }
    }

    /// Returns true if the two periods have a time in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start_ms <= other.end_ms && other.start_ms <= self.end_ms
    }

    /// Returns true if `other` lies entirely within this period.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.start_ms <= other.start_ms && other.end_ms <= self.end_ms
    }
}

/// Units from the largest to the smallest, in milliseconds. `y` and `w` have a fixed length, as in Prometheus.
const UNITS: [(&str, i64); 7] = [
    ("y", 365 * 24 * 3_600_000),
    ("w", 7 * 24 * 3_600_000),
    ("d", 24 * 3_600_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// A text that is not a duration in Prometheus' notation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write it like 30s, 5m or 1h30m")]
pub struct InvalidDuration(pub String);

/// Parses `1h30m`, `15s`, `250ms` or `0`. Units must be in order from large to small, each at most once. Returns milliseconds.
///
/// # Errors
/// Returns an error if the text is empty, has an unknown or repeated unit, or does not fit in 64 bits.
pub fn parse_duration_ms(text: &str) -> Result<i64, InvalidDuration> {
    let invalid = || InvalidDuration(text.to_owned());
    if text == "0" {
        return Ok(0);
    }
    let mut rest = text;
    let mut total: i64 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(unit_len);
        let factor = units
            .by_ref()
            .find(|(name, _)| *name == unit)
            .ok_or_else(invalid)?
            .1;
        let number: i64 = number.parse().map_err(|_| invalid())?;
        total = number
            .checked_mul(factor)
            .and_then(|ms| total.checked_add(ms))
            .ok_or_else(invalid)?;
        rest = tail;
    }
    if text.is_empty() {
        Err(invalid())
    } else {
        Ok(total)
    }
}

/// Prints a duration in milliseconds in Prometheus' notation: `1h30m`, `15s`, `0s`.
pub struct DisplayDuration(pub i64);

impl fmt::Display for DisplayDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        if rest < 0 {
            f.write_str("-")?;
            rest = rest.saturating_neg();
        }
        for (name, factor) in UNITS.iter().filter(|(name, _)| !matches!(*name, "y" | "w")) {
            if rest >= *factor {
                write!(f, "{}{name}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_prometheus_writes_them() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250),
            ("15s", 15_000),
            ("1h30m", 5_400_000),
            ("2w", 1_209_600_000),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for text in [
            "",
            "5",
            "5x",
            "5m5m",
            "5s5m",
            "-5m",
            "99999999999999999y",
            "m",
            "1.5h",
        ] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_write_and_read_back() {
        for ms in [0, 1, 999, 1_000, 61_000, 5_400_000, 90_061_001] {
            assert_eq!(parse_duration_ms(&DisplayDuration(ms).to_string()), Ok(ms));
        }
    }
}
