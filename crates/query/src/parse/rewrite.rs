//! Rewrites PromQL that Prometheus accepts and the parser does not.
//!
//! ```text
//!  holt_winters(x[5m], 0.3, 0.1)   ─▶ double_exponential_smoothing(…)   its name in Prometheus 3; old rules use the old name
//!  {path=~`/api/\w+`}              ─▶ {path=~"/api/\\w+"}               between backquotes there are no escapes
//!  {city="K\xc3\xb6ln"}            ─▶ {city="Köln"}                     an escape is a byte, not a character
//! ```
//! It works token by token: a name is replaced only where it is called, not where it names a metric or label or is in a string.

use std::borrow::Cow;

use super::guard::{is_word, quoted_length};
use crate::error::ParseError;

const ALIASES: [(&str, &str); 1] = [("holt_winters", "double_exponential_smoothing")];

/// Returns the text in the form that the parser accepts.
///
/// # Errors
/// Returns an error if a string has bytes that are not UTF-8.
pub(super) fn rewrite(text: &str) -> Result<Cow<'_, str>, ParseError> {
    if !text.contains('\\') && ALIASES.iter().all(|(old, _)| !text.contains(old)) {
        return Ok(Cow::Borrowed(text));
    }
    let (mut rewritten, mut at) = (String::with_capacity(text.len() + 64), 0);
    while at < text.len() {
        let rest = &text[at..];
        let token = &rest[..token_length(rest.as_bytes())];
        at += token.len();
        match token.as_bytes()[0] {
            b'`' => rewritten.push_str(&raw_string(token)),
            b'"' | b'\'' => rewritten.push_str(&string(token)?),
            _ => rewritten.push_str(word(token, &text[at..])),
        }
    }
    Ok(Cow::Owned(rewritten))
}

/// Returns the length in bytes of a string, a comment, a word, or one other character.
fn token_length(rest: &[u8]) -> usize {
    match rest[0] {
        b'"' | b'\'' | b'`' => quoted_length(rest),
        b'#' => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        byte if is_word(byte) => rest.iter().take_while(|byte| is_word(**byte)).count(),
        _ => 1,
    }
}

fn word<'a>(token: &'a str, rest: &str) -> &'a str {
    let is_called = rest.trim_start().starts_with('(');
    let alias = ALIASES.iter().find(|(old, _)| is_called && *old == token);
    alias.map_or(token, |(_, new)| new)
}

fn raw_string(token: &str) -> Cow<'_, str> {
    let inner = token.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    match inner {
        Some(inner) if inner.contains('\\') => {
            let escaped = inner
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            Cow::Owned(format!("\"{escaped}\""))
        }
        _ => Cow::Borrowed(token),
    }
}

/// Replaces escaped bytes beyond ASCII in a string by characters.
fn string(token: &str) -> Result<Cow<'_, str>, ParseError> {
    let (mut written, mut at) = (String::new(), 0);
    while at < token.len() {
        let (bytes, length) = escaped_bytes(&token[at..]);
        if bytes.iter().any(|byte| !byte.is_ascii()) {
            let text = std::str::from_utf8(&bytes).map_err(|_| {
                ParseError::Syntax(format!("the string {token} has bytes that are not UTF-8"))
            })?;
            text.chars().for_each(|c| push(&mut written, c));
            at += length;
            continue;
        }
        // Other escapes are unchanged, with the character after the backslash.
        let is_escape = token[at..].starts_with('\\');
        let plain: usize = token[at..]
            .chars()
            .take(if is_escape { 2 } else { 1 })
            .map(char::len_utf8)
            .sum();
        written.push_str(&token[at..at + plain.max(length)]);
        at += plain.max(length);
    }
    Ok(Cow::Owned(written))
}

fn push(written: &mut String, c: char) {
    if c.is_ascii() {
        written.push_str(&format!("\\x{:02x}", c as u32));
    } else {
        written.push(c);
    }
}

/// Returns the bytes of a run of `\xff` and `\377`, and the length of the run in the text.
fn escaped_bytes(text: &str) -> (Vec<u8>, usize) {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Some((byte, length)) = escaped_byte(text.get(at..).unwrap_or_default()) {
        bytes.push(byte);
        at += length;
    }
    (bytes, at)
}

fn escaped_byte(text: &str) -> Option<(u8, usize)> {
    let (digits, radix) = match text.strip_prefix("\\x") {
        Some(_) => (text.get(2..4)?, 16),
        None => (text.strip_prefix('\\')?.get(..3)?, 8),
    };
    let is_digits = digits.chars().all(|digit| digit.is_digit(radix));
    let byte = u8::from_str_radix(digits, radix).ok()?;
    is_digits.then_some((byte, 4))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(rewrite(text).unwrap(), expected);
    }

    #[test]
    fn an_old_name_is_replaced_only_where_it_is_called() {
        for (text, expected) in [
            (
                "holt_winters(x[5m], 0.1, 0.2)",
                "double_exponential_smoothing(x[5m], 0.1, 0.2)",
            ),
            (
                "1 + holt_winters\n (x[5m])",
                "1 + double_exponential_smoothing\n (x[5m])",
            ),
        ] {
            check(text, expected);
        }
        for same in [
            "sum by (holt_winters) (holt_winters)",
            r#"x{a="holt_winters(", holt_winters='('}"#,
            "my_holt_winters(x) # holt_winters(\n",
            "é{a=\"ü\"} holt_winters",
            "x{a=\"holt_winters",
        ] {
            check(same, same);
        }
    }

    #[test]
    fn back_quoted_strings_have_no_escapes() {
        check(r"x{a=~`\w+\.`}", r#"x{a=~"\\w+\\."}"#);
        check("x{a=`\\\"\n`}", r#"x{a="\\\"\n"}"#);
        check("x{a=`b`, c=`\\", "x{a=`b`, c=`\\");
        crate::parse(r#"x{a=~`\w+\d"\\`, b="\\`"}"#).unwrap();
    }

    #[test]
    fn escapes_are_bytes() {
        check(r#"x{a="K\xc3\xb6ln", b='\303\266'}"#, "x{a=\"Köln\", b='ö'}");
        check(r#"x{a="\x22\\x41\"\n\101é"}"#, r#"x{a="\x22\\x41\"\n\101é"}"#);
        check(r#"x{a="\\xc3"}"#, r#"x{a="\\xc3"}"#);
        for text in [r#"x{a="\xff"}"#, r#"x{a="a\xc5z"}"#, r#"x{a="\377"}"#] {
            let error = rewrite(text).unwrap_err().to_string();
            assert!(error.contains("bytes that are not UTF-8"), "{error}");
        }
        for odd in ["\"\\", "\"\\x", "\"\\xé", "\"\\é", "'\\12"] {
            assert_eq!(rewrite(odd).unwrap(), odd);
        }
    }
}
