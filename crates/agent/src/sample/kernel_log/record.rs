//! Parses one record of `/dev/kmsg`, in the kernel's format:
//!
//! ```text
//! 4,1234,98765432,-;NVRM: Xid (PCI:0000:05:00): 79, …
//! │ │    │        │ └ text; control characters as \x0a
//! │ │    │        └ flags
//! │ │    └ microseconds since boot
//! │ └ sequence number, unique within one boot
//! └ facility and level
//!  KEY=value        a line that begins with a space belongs to the previous record
//! ```

/// A record with the text as the driver wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) since_boot_us: u64,
    pub(super) text: String,
}

impl Record {
    /// Parses a line. Returns `None` for a continuation line and for a line that is not a record.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (head, text) = line.split_once(';')?;
        let mut fields = head.split(',');
        fields.next()?.parse::<u32>().ok()?;
        let sequence = fields.next()?.parse().ok()?;
        let since_boot_us = fields.next()?.parse().ok()?;
        Some(Self {
            sequence,
            since_boot_us,
            text: unescaped(text),
        })
    }
}

/// Decodes escapes: `\x0a` becomes a line break, other escapes become white space.
fn unescaped(text: &str) -> String {
    if !text.contains("\\x") {
        return text.to_owned();
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once("\\x") {
        plain.push_str(before);
        let code = escape.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        plain.push_str(match code {
            Some(b'\n') => "\n",
            Some(b'\\') => "\\",
            _ => " ",
        });
        rest = if code.is_some() { &escape[2..] } else { escape };
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_continuations_and_rubbish() {
        let record = |sequence, since_boot_us, text: &str| {
            Some(Record {
                sequence,
                since_boot_us,
                text: text.to_owned(),
            })
        };
        let cases = [
            ("4,7,98,-;NVRM: a; b", record(7, 98, "NVRM: a; b")),
            ("12,8,99,c,caller=T1;x", record(8, 99, "x")),
            (
                r"4,9,1,-;one\x0atwo\x09three\\",
                record(9, 1, "one\ntwo three\\\\"),
            ),
            (" DEVICE=+pci:0000:05:00.0", None),
            ("", None),
            ("4,9;short", None),
            ("a,b,c,d;words", None),
            (r"4,9,1,-;cut\x", record(9, 1, "cut ")),
        ];
        for (line, expected) in cases {
            assert_eq!(Record::parse(line), expected, "{line}");
        }
    }
}
