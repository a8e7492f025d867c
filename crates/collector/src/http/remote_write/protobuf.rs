//! A cursor over the fields of one protobuf message. It borrows everything and allocates nothing.
//!
//! ```text
//! tag = varint(number << 3 | type)      type 0  varint            1  8 bytes, little-endian
//!                                            2  length, bytes     5  4 bytes, little-endian
//! ```
//! It is strict: a field never extends past the end of its message, numbers begin at 1, and a varint has at most 64 bits. Groups (types 3
//! and 4), which no sender has used for fifteen years, are rejected.

/// One field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) value: Value<'a>,
}

/// The value of a field, as encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// A field or varint extends past the end of its message.
    #[error("a field extends past the end of its message")]
    Truncated,
    /// A varint has more than 64 bits.
    #[error("a number is longer than 64 bits")]
    Varint,
    /// A field number is 0 or has more than 29 bits.
    #[error("a field has an invalid number")]
    Number,
    /// A field is a group, or has an unknown type.
    #[error("a field has the unknown wire type {0}")]
    WireType(u8),
    /// A field of the schema has another type.
    #[error("field {0} has the wrong wire type")]
    Type(u32),
}

/// The fields of a message, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The number of remaining bytes.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// The numbers of a packed list.
    pub(super) fn numbers(mut self) -> impl Iterator<Item = Result<u64, Malformed>> {
        std::iter::from_fn(move || {
            if self.rest.is_empty() {
                return None;
            }
            let number = self.varint();
            if number.is_err() {
                self.rest = &[];
            }
            Some(number)
        })
    }

    #[inline]
    fn field(&mut self) -> Result<Field<'a>, Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed::Number)?;
        if number == 0 || tag > u64::from(u32::MAX) {
            return Err(Malformed::Number);
        }
        let value = match (tag & 7) as u8 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => Value::Bytes(self.bytes()?),
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(Malformed::WireType(other)),
        };
        Ok(Field { number, value })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            [] => Err(Malformed::Truncated),
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    #[inline]
    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (n, byte) in self.rest.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * n);
            if *byte < 0x80 {
                self.rest = &self.rest[n + 1..];
                // The tenth byte has room for one bit.
                return if n == 9 && *byte > 1 {
                    Err(Malformed::Varint)
                } else {
                    Ok(number)
                };
            }
        }
        Err(if self.rest.len() < 10 {
            Malformed::Truncated
        } else {
            Malformed::Varint
        })
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Field<'a> {
    #[inline]
    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::Type(self.number)),
        }
    }

    #[inline]
    pub(super) fn varint(self) -> Result<u64, Malformed> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(Malformed::Type(self.number)),
        }
    }

    #[inline]
    pub(super) fn fixed64(self) -> Result<u64, Malformed> {
        match self.value {
            Value::Fixed64(number) => Ok(number),
            _ => Err(Malformed::Type(self.number)),
        }
    }
}

/// Writes a length-delimited field, as a sender would.
pub(super) fn put_bytes(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a number as a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &[u8], expected: Result<Vec<(u32, Value<'_>)>, Malformed>) {
        let fields: Result<Vec<_>, _> = Fields::of(message)
            .map(|field| field.map(|field| (field.number, field.value)))
            .collect();
        assert_eq!(fields, expected, "{message:02x?}");
    }

    #[test]
    fn each_type_is_read_as_it_is_written() {
        check(&[], Ok(vec![]));
        check(&[0x08, 0x96, 0x01], Ok(vec![(1, Value::Varint(150))]));
        check(
            &[0x09, 1, 0, 0, 0, 0, 0, 0, 0x80],
            Ok(vec![(1, Value::Fixed64(0x8000_0000_0000_0001))]),
        );
        check(
            &[0x12, 2, b'h', b'i', 0x1a, 0],
            Ok(vec![(2, Value::Bytes(b"hi")), (3, Value::Bytes(b""))]),
        );
        check(&[0x0d, 1, 2, 0, 0], Ok(vec![(1, Value::Fixed32(0x201))]));
        // A tag may have a longer encoding than necessary.
        check(&[0x88, 0x00, 0x05], Ok(vec![(1, Value::Varint(5))]));
        let most = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        check(&most, Ok(vec![(1, Value::Varint(u64::MAX))]));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        use Malformed::{Number, Truncated, Varint, WireType};
        for (message, expected) in [
            (&[0x08][..], Truncated),
            (&[0x80], Truncated),
            (&[0x08, 0xff], Truncated),
            (&[0x09, 1, 2, 3, 4, 5, 6, 7], Truncated),
            (&[0x0d, 1, 2, 3], Truncated),
            (&[0x0a], Truncated),
            (&[0x0a, 2, b'x'], Truncated),
            (
                &[
                    0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, b'x',
                ],
                Truncated,
            ),
            (
                &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
                Varint,
            ),
            (
                &[
                    0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
                ],
                Varint,
            ),
            (&[0x00, 0x01], Number),
            (&[0x02, 0x00], Number),
            (&[0x80, 0x80, 0x80, 0x80, 0x10, 0x01], Number),
            (&[0x0b, 0x0c], WireType(3)),
            (&[0x0c], WireType(4)),
            (&[0x0e], WireType(6)),
            (&[0x0f], WireType(7)),
        ] {
            check(message, Err(expected));
        }
    }

    #[test]
    fn a_field_with_a_wrong_type_is_refused() {
        let field = |value| Field { number: 7, value };
        assert_eq!(field(Value::Varint(1)).bytes(), Err(Malformed::Type(7)));
        assert_eq!(field(Value::Bytes(b"")).varint(), Err(Malformed::Type(7)));
        assert_eq!(field(Value::Varint(1)).fixed64(), Err(Malformed::Type(7)));
    }
}
