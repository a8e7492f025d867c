//! Determines the required length of each shard from a `.metadata` of DCP. It parses the pickle and never executes it.
//!
//! For each tensor, `.metadata` contains a `_StorageInfo`, whose state is a dictionary written in this order:
//!
//! ```text
//! "relative_path" "__1_0.distcp"   "offset" 4096   "length" 1280
//! ```
//! Strings that occurred before are references to the memo. So it is sufficient to read the opcodes, keep the memoized strings, and search
//! for these six consecutive values. A shard that is shorter than the largest of its ends was cut off.

use std::collections::{BTreeMap, HashMap};

/// Maximum number of memoized strings: a `.metadata` of 100,000 tensors has fewer. Later strings are not resolved.
const MEMO_MAX: usize = 1 << 20;

/// Returns file name → minimum length in bytes. Parsing ends at data that cannot be parsed (another protocol, a truncated file); the
/// results up to there are kept.
pub(super) fn extents(pickle: &[u8]) -> BTreeMap<&str, u64> {
    let mut walk = Walk {
        rest: pickle,
        memo: HashMap::new(),
        memoized: 0,
        on_top: None,
    };
    let (mut ends, mut row) = (BTreeMap::new(), Row::default());
    while let Some(value) = walk.next_value() {
        if let Some((name, end)) = row.take(value) {
            let furthest: &mut u64 = ends.entry(name).or_default();
            *furthest = end.max(*furthest);
        }
    }
    ends
}

/// A value that an opcode pushes onto the stack.
#[derive(Clone, Copy)]
enum Value<'p> {
    Text(&'p str),
    Number(u64),
    Other,
}

/// The state of matching the six consecutive values.
#[derive(Default)]
struct Row<'p> {
    seen: usize,
    name: &'p str,
    offset: u64,
}

impl<'p> Row<'p> {
    /// Takes the next value. Returns the name and the end after the last of the six.
    fn take(&mut self, value: Value<'p>) -> Option<(&'p str, u64)> {
        let seen = std::mem::take(&mut self.seen);
        self.seen = match (seen, value) {
            (_, Value::Text("relative_path")) => 1,
            (1, Value::Text(name)) => {
                self.name = name;
                2
            }
            (2, Value::Text("offset")) => 3,
            (3, Value::Number(offset)) => {
                self.offset = offset;
                4
            }
            (4, Value::Text("length")) => 5,
            (5, Value::Number(length)) => return Some((self.name, self.offset.checked_add(length)?)),
            _ => 0,
        };
        None
    }
}

struct Walk<'p> {
    rest: &'p [u8],
    memo: HashMap<usize, &'p str>,
    memoized: usize,
    /// The string on top of the stack, if there is one.
    on_top: Option<&'p str>,
}

impl<'p> Walk<'p> {
    /// Returns the next pushed value. Opcodes that only arrange the stack are skipped.
    fn next_value(&mut self) -> Option<Value<'p>> {
        loop {
            let opcode = self.bytes(1)?[0];
            match opcode {
                // PROTO, FRAME
                0x80 => self.skip(1)?,
                0x95 => self.skip(8)?,
                // MEMOIZE, BINPUT, LONG_BINPUT
                0x94 => self.memoize(self.memoized),
                b'q' => {
                    let at = self.length(1)?;
                    self.memoize(at);
                }
                b'r' => {
                    let at = self.length(4)?;
                    self.memoize(at);
                }
                // MARK: the following value is the first of several
                b'(' => self.on_top = None,
                _ => {
                    let value = self.pushed(opcode)?;
                    self.on_top = match value {
                        Value::Text(text) => Some(text),
                        _ => None,
                    };
                    return Some(value);
                }
            }
        }
    }

    fn pushed(&mut self, opcode: u8) -> Option<Value<'p>> {
        match opcode {
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            0x8c => self.text(1),
            b'X' => self.text(4),
            0x8d => self.text(8),
            // BINGET, LONG_BINGET
            b'h' => self.remembered(1),
            b'j' => self.remembered(4),
            // BININT1, BININT2, BININT, LONG1
            b'K' => self.number(1),
            b'M' => self.number(2),
            b'J' => self.number(4),
            0x8a => {
                let length = self.length(1)?;
                self.number(length)
            }
            // bytes, BINFLOAT, LONG4, extensions: skipped
            b'C' | b'U' => self.other_of_length(1),
            b'B' | b'T' | 0x8b => self.other_of_length(4),
            0x8e | 0x96 => self.other_of_length(8),
            b'G' => self.other(8),
            0x82 => self.other(1),
            0x83 => self.other(2),
            0x84 => self.other(4),
            // STOP, and the opcodes of protocol 0, which are terminated by a newline
            b'.' | b'F' | b'I' | b'L' | b'S' | b'V' | b'P' | b'g' | b'p' | b'c' | b'i' => None,
            _ => Some(Value::Other),
        }
    }

    fn bytes(&mut self, count: usize) -> Option<&'p [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes(count).map(|_| ())
    }

    /// Reads an unsigned little-endian number.
    fn length(&mut self, width: usize) -> Option<usize> {
        match self.number(width)? {
            Value::Number(length) => usize::try_from(length).ok(),
            _ => None,
        }
    }

    /// Reads a number. Offsets and lengths are not negative; a value beyond 64 bits is another kind of number.
    fn number(&mut self, width: usize) -> Option<Value<'p>> {
        let bytes = self.bytes(width)?;
        let significant = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
        if significant > 8 {
            return Some(Value::Other);
        }
        let mut wide = [0; 8];
        wide[..significant].copy_from_slice(&bytes[..significant]);
        Some(Value::Number(u64::from_le_bytes(wide)))
    }

    fn text(&mut self, width: usize) -> Option<Value<'p>> {
        let length = self.length(width)?;
        let bytes = self.bytes(length)?;
        Some(std::str::from_utf8(bytes).map_or(Value::Other, Value::Text))
    }

    fn other(&mut self, count: usize) -> Option<Value<'p>> {
        self.skip(count).map(|()| Value::Other)
    }

    fn other_of_length(&mut self, width: usize) -> Option<Value<'p>> {
        let length = self.length(width)?;
        self.other(length)
    }

    fn remembered(&mut self, width: usize) -> Option<Value<'p>> {
        let at = self.length(width)?;
        let text = self.memo.get(&at);
        Some(text.map_or(Value::Other, |text| Value::Text(text)))
    }

    fn memoize(&mut self, at: usize) {
        self.memoized += 1;
        match self.on_top {
            Some(text) if self.memo.len() < MEMO_MAX => drop(self.memo.insert(at, text)),
            _ => drop(self.memo.remove(&at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The metadata of two ranks with a sharded model, its optimizer and each rank's own state; the shards had 25,749 and 47,061 bytes.
    const TWO: &[u8] = include_bytes!("../../../testdata/checkpoint/two-ranks.metadata");

    #[test]
    fn real_ones_reach_to_the_end_of_their_shards() {
        let sizes = BTreeMap::from([("__0_0.distcp", 25_749), ("__1_0.distcp", 47_061)]);
        assert_eq!(extents(TWO), sizes);
    }

    #[test]
    fn a_place_in_the_memo_that_nothing_was_put_into_is_no_text() {
        assert_eq!(
            extents(b"\x80\x04j\xff\xff\xff\xff\x8c\x01ar\xff\xff\xff\xff."),
            BTreeMap::new()
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _any_answer = extents(&bytes);
        }

        #[test]
        fn a_cut_or_changed_one_never_panics(at in 0..TWO.len(), byte in any::<u8>()) {
            let mut changed = TWO.to_vec();
            changed[at] = byte;
            let _any_answer = extents(&changed);
            let whole = extents(TWO);
            let cut = extents(&TWO[..at]);
            prop_assert!(cut.iter().all(|(name, end)| *end <= whole[name]));
        }
    }
}
