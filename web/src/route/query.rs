//! The query of an address: it contains what a page shows, so a copied address shows the same.

use std::fmt::Write as _;

/// Returns the decoded value of a parameter; `None` if the query does not have it.
pub(super) fn param(query: &str, name: &str) -> Option<String> {
    pairs(query)
        .find(|(known, _)| *known == name)
        .map(|(_, value)| decoded(value))
}

/// Returns the query with one parameter set or removed. The others keep their order.
pub(super) fn with_param(query: &str, name: &str, value: Option<&str>) -> String {
    let mut all: Vec<String> = pairs(query)
        .filter(|(known, _)| *known != name)
        .map(|(known, value)| format!("{known}={value}"))
        .collect();
    if let Some(value) = value {
        all.push(format!("{name}={}", encoded(value)));
    }
    if all.is_empty() {
        return String::new();
    }
    format!("?{}", all.join("&"))
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = query.trim_start_matches('?').split('&');
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:,/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a `String` cannot fail.
            let _infallible = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        match (
            first,
            escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()),
        ) {
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', None) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, None) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_read_as_it_was_set() {
        for value in ["", "run", "node-07 GPU 3", "a&b=c%", "显存"] {
            let query = with_param("?wall=1", "by", Some(value));
            assert_eq!(param(&query, "by").as_deref(), Some(value), "{query}");
            assert_eq!(param(&query, "wall").as_deref(), Some("1"), "{query}");
        }
    }

    #[test]
    fn parameters_are_set_once_and_removed() {
        for (query, value, expected) in [
            ("", Some("x"), "?by=x"),
            ("?by=old&wall=1", Some("new"), "?wall=1&by=new"),
            ("?by=old", None, ""),
            ("?wall=1", None, "?wall=1"),
        ] {
            assert_eq!(with_param(query, "by", value), expected);
        }
    }

    #[test]
    fn what_was_typed_by_hand_is_read_too() {
        assert_eq!(param("?q=step+time", "q").as_deref(), Some("step time"));
        assert_eq!(param("?q=100%", "q").as_deref(), Some("100%"));
        assert_eq!(param("?wall", "wall").as_deref(), Some(""));
        assert_eq!(param("?wally=1", "wall"), None);
    }
}
