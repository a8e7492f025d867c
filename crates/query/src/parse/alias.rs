//! Functions under the names they had before.
//!
//! Prometheus 3 calls `holt_winters` `double_exponential_smoothing`. Rules and dashboards written for 2 keep their word: it is
//! replaced where it is called, token by token, and left alone where it names a metric or a label or stands in a string.

use std::borrow::Cow;

use super::guard::{is_word, quoted_length};

const ALIASES: [(&str, &str); 1] = [("holt_winters", "double_exponential_smoothing")];

/// The text with today's names.
pub(super) fn resolved(text: &str) -> Cow<'_, str> {
    if ALIASES.iter().all(|(old, _)| !text.contains(old)) {
        return Cow::Borrowed(text);
    }
    let (mut resolved, mut at) = (String::with_capacity(text.len() + 64), 0);
    while at < text.len() {
        let rest = &text[at..];
        let length = token_length(rest.as_bytes());
        let token = &rest[..length];
        let is_called = rest[length..].trim_start().starts_with('(');
        let alias = ALIASES.iter().find(|(old, _)| is_called && *old == token);
        resolved.push_str(alias.map_or(token, |(_, new)| new));
        at += length;
    }
    Cow::Owned(resolved)
}

/// Bytes of a string, a comment, a word, or the character between them.
fn token_length(rest: &[u8]) -> usize {
    match rest[0] {
        b'"' | b'\'' | b'`' => quoted_length(rest),
        b'#' => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        byte if is_word(byte) => rest.iter().take_while(|byte| is_word(**byte)).count(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_replaced_only_where_it_is_called() {
        for (text, expected) in [
            (
                "holt_winters(x[5m], 0.1, 0.2)",
                "double_exponential_smoothing(x[5m], 0.1, 0.2)",
            ),
            (
                "1 + holt_winters\n (x[5m], 0.1, 0.2)",
                "1 + double_exponential_smoothing\n (x[5m], 0.1, 0.2)",
            ),
            (
                "sum by (holt_winters) (holt_winters)",
                "sum by (holt_winters) (holt_winters)",
            ),
            (
                r#"x{a="holt_winters(", holt_winters='('}"#,
                r#"x{a="holt_winters(", holt_winters='('}"#,
            ),
            (
                "my_holt_winters(x) # holt_winters(\n",
                "my_holt_winters(x) # holt_winters(\n",
            ),
            ("é{a=\"ü\"} holt_winters", "é{a=\"ü\"} holt_winters"),
            ("x{a=\"holt_winters", "x{a=\"holt_winters"),
        ] {
            assert_eq!(resolved(text), expected);
        }
    }
}
