//! Parses and prints sizes in bytes: `50GiB`, `500MB`, `12.3 MiB`.

use std::fmt;

/// Units and their sizes in bytes. `KiB` and `k` are 1,024 bytes; `kB` is 1,000 bytes.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write it like 500MB, 50GiB or 1TiB")]
pub struct InvalidBytes(pub String);

/// Parses `64MiB`, `50 GB`, `1g` or a plain number of bytes.
///
/// # Errors
/// Returns an error if the text has no whole number, the unit is unknown, or the size does not fit in 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, InvalidBytes> {
    let invalid = || InvalidBytes(text.to_owned());
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
    number.checked_mul(*factor).ok_or_else(invalid)
}

/// Prints a size with about three digits: `812 B`, `1.5 MiB`, `231 GiB`.
pub struct DisplayBytes(pub u64);

impl fmt::Display for DisplayBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut size = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
            if size < 1_024.0 {
                break;
            }
            size /= 1_024.0;
            unit = larger;
        }
        if unit == "B" || size >= 99.95 {
            write!(f, "{size:.0} {unit}")
        } else {
            write!(f, "{size:.1} {unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4_096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("50GB", 50_000_000_000),
            ("1g", 1 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "5 apples", "99999999999TiB", "0x10"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (99 << 20, "99.0 MiB"),
            (231 << 30, "231 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(DisplayBytes(bytes).to_string(), text);
        }
    }
}
