//! Escaped label names in a URL: `U__`, followed by the name with `_` sequences for characters that are not letters or digits.
//!
//! ```text
//! U__http_2e_status__code  ─▶  http.status_code        __ is _, _HEX_ is a character
//! ```

use std::borrow::Cow;

/// The prefix of an escaped name.
const PREFIX: &str = "U__";
/// Maximum number of hexadecimal digits of a character: 10ffff.
const DIGITS_MAX: usize = 6;

/// Returns the unescaped name, or the name itself if it is not escaped or not valid.
pub(super) fn unescaped(name: &str) -> Cow<'_, str> {
    let read = name.strip_prefix(PREFIX).and_then(read);
    read.map_or(Cow::Borrowed(name), Cow::Owned)
}

fn read(escaped: &str) -> Option<String> {
    let mut pieces = escaped.split('_');
    let mut name = pieces.next()?.to_owned();
    // Between two underscores is the number of a character, or nothing for an underscore.
    while let Some(number) = pieces.next() {
        match number {
            "" => name.push('_'),
            number => name.push(character(number)?),
        }
        name.push_str(pieces.next()?);
    }
    Some(name)
}

fn character(number: &str) -> Option<char> {
    let is_number = number.len() <= DIGITS_MAX && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_number.then(|| u32::from_str_radix(number, 16).ok())?;
    char::from_u32(number?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (escaped, name) in [
            ("gpu", "gpu"),
            ("__name__", "__name__"),
            ("U__gpu", "gpu"),
            ("U__http_2e_status__code", "http.status_code"),
            ("U______name____", "__name__"),
            ("U___1F600_x", "\u{1F600}x"),
            ("U__a_2e_", "a."),
            ("U__", ""),
        ] {
            assert_eq!(unescaped(escaped), name, "{escaped}");
        }
    }

    #[test]
    fn what_is_not_escaped_well_is_left_alone() {
        for name in [
            "U__a_2e",
            "U__a_zz_",
            "U__a_",
            "U__a_d800_",
            "U__a_0000041_",
            "U__a_+41_",
        ] {
            assert_eq!(unescaped(name), name);
        }
    }
}
