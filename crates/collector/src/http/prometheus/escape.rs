//! Label names that do not fit into an address as they are: `U__`, then `_` for what is not a letter or digit.
//!
//! ```text
//! U__http_2e_status__code  ─▶  http.status_code        __ is _, _HEX_ is a character
//! ```

use std::borrow::Cow;

/// What an escaped name begins with.
const PREFIX: &str = "U__";
/// A character's number in hexadecimal has no more digits: 10ffff.
const DIGITS_MAX: usize = 6;

/// The name that was meant; itself where it is not escaped, or not well.
pub(super) fn unescaped(name: &str) -> Cow<'_, str> {
    let read = name.strip_prefix(PREFIX).and_then(read);
    read.map_or(Cow::Borrowed(name), Cow::Owned)
}

fn read(escaped: &str) -> Option<String> {
    let mut pieces = escaped.split('_');
    let mut name = pieces.next()?.to_owned();
    // What stands between two underscores is a character's number, or nothing for an underscore.
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
