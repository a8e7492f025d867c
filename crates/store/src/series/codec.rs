//! Encoding of variable-length integers and columns, and a reader with bounds checks.
//!
//! ```text
//! varint    7 bits per byte, low bits first; the top bit is set in all bytes except the last
//! ids       varint count, then zigzag varints of the differences
//! values    little-endian, eight bytes each, so that every bit survives
//! ```

use super::SeriesId;

/// Bytes that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored bytes are damaged: {0}")]
pub(crate) struct Corrupt(pub(crate) &'static str);

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_ids(out: &mut Vec<u8>, ids: &[SeriesId]) {
    put_varint(out, ids.len() as u64);
    let mut last = 0;
    for id in ids {
        put_signed(out, i64::from(id.0) - last);
        last = i64::from(id.0);
    }
}

pub(crate) fn put_values(out: &mut Vec<u8>, values: &[f64]) {
    let start = out.len();
    out.resize(start + values.len() * 8, 0);
    for (place, value) in out[start..].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// Writes the magic, the checksum of the body, and the body.
pub(crate) fn seal(magic: [u8; 4], body: &[u8]) -> Vec<u8> {
    seal_written(magic, body.len(), |out| out.extend_from_slice(body))
}

/// Like [`seal`], for a body of about `length` bytes that `write` appends.
pub(crate) fn seal_written(magic: [u8; 4], length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&[0; 4]);
    write(&mut out);
    let sum = crc32c::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Checks magic and checksum, and returns the body.
pub(crate) fn unseal(magic: [u8; 4], bytes: &[u8]) -> Result<&[u8], Corrupt> {
    let mut reader = Reader(bytes);
    if reader.take(4)? != magic {
        return Err(Corrupt("it does not begin with the expected bytes"));
    }
    let sum = u32::from_le_bytes(reader.array()?);
    if crc32c::crc32c(reader.0) == sum {
        Ok(reader.0)
    } else {
        Err(Corrupt("the checksum does not match"))
    }
}

/// The bytes that are not read yet.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Corrupt> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Corrupt("it ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        Ok(self
            .take(N)?
            .try_into()
            .expect("take returns as many bytes as asked"))
    }

    /// Returns the next byte without reading past it.
    pub(crate) fn peek(&self) -> Result<u8, Corrupt> {
        self.0.first().copied().ok_or(Corrupt("it ends too early"))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Corrupt("a number is too long"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Corrupt> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// Reads a count of elements of at least `bytes_each` bytes each. The check against the remaining bytes keeps a damaged
    /// count from allocating all memory.
    pub(crate) fn count(&mut self, bytes_each: usize) -> Result<usize, Corrupt> {
        let count = usize::try_from(self.varint()?).map_err(|_| Corrupt("a count is too large"))?;
        if count.saturating_mul(bytes_each) > self.0.len() {
            Err(Corrupt("a count is too large"))
        } else {
            Ok(count)
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Corrupt> {
        let count = self.count(1)?;
        self.take(count)
    }

    pub(crate) fn ids(&mut self) -> Result<Vec<SeriesId>, Corrupt> {
        let mut last = 0_i64;
        let count = self.count(1)?;
        let mut next = || {
            last = last.wrapping_add(self.signed()?);
            u32::try_from(last)
                .map(SeriesId)
                .map_err(|_| Corrupt("a series id is out of range"))
        };
        (0..count).map(|_| next()).collect()
    }

    pub(crate) fn values(&mut self, count: usize) -> Result<Vec<f64>, Corrupt> {
        let bytes = self.take(count.checked_mul(8).ok_or(Corrupt("a count is too large"))?)?;
        let (values, _) = bytes.as_chunks();
        Ok(values.iter().map(|value| f64::from_le_bytes(*value)).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{ABSENT, STALE};

    use super::*;

    #[test]
    fn numbers_read_back() {
        let mut out = Vec::new();
        let numbers = [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN];
        numbers.iter().for_each(|n| put_signed(&mut out, *n));
        let mut reader = Reader(&out);
        assert_eq!(numbers.map(|_| reader.signed().unwrap()), numbers);
        assert!(reader.signed().is_err());
    }

    #[test]
    fn every_bit_of_a_value_survives() {
        let odd_nan = f64::from_bits(0xfff8_dead_beef_0001);
        let values = [
            0.0,
            -0.0,
            1.5,
            f64::NAN,
            odd_nan,
            STALE,
            ABSENT,
            f64::INFINITY,
            f64::MIN_POSITIVE,
            5e-324,
        ];
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let mut out = Vec::new();
        put_values(&mut out, &values);
        let mut reader = Reader(&out);
        assert_eq!(bits(&reader.values(values.len()).unwrap()), bits(&values));
        assert!(Reader(&out).values(values.len() + 1).is_err());
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut sealed = seal(*b"TEST", b"hello");
        assert_eq!(unseal(*b"TEST", &sealed), Ok(b"hello".as_slice()));
        assert!(unseal(*b"ELSE", &sealed).is_err());
        *sealed.last_mut().unwrap() ^= 1;
        assert!(unseal(*b"TEST", &sealed).is_err());
    }

    #[test]
    fn a_huge_count_asks_for_no_memory() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert!(Reader(&out).ids().is_err());
    }
}
