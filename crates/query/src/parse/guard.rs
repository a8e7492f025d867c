//! Checks a text before the parser reads it: length, nesting, and numbers on which the parser panics.
//!
//! Every bracket and every operator can add a level to the tree, and all code that walks the tree is recursive (the parser's checks, its
//! `Drop`, the evaluator). Therefore both are counted here, in the text, before a tree exists.

use super::pattern;
use crate::error::ParseError;

/// Maximum length of a query in bytes. The longest queries of Grafana have a few KiB.
pub(crate) const LENGTH_MAX: usize = 16 * 1024;
/// Maximum nesting of brackets. People use at most ten levels; 8,000 overflow the parser's stack.
pub(crate) const DEPTH_MAX: usize = 64;
/// Maximum number of operator characters and words outside of matchers. A chain of operators becomes a tree of the same depth.
pub(crate) const OPERATORS_MAX: usize = 200;
/// Maximum number of regular expressions. Each may take milliseconds and megabytes to compile.
pub(crate) const REGEXES_MAX: usize = 50;
/// Maximum duration written as a number of seconds (about 30,000 years). The parser panics at far larger numbers.
const SECONDS_MAX: f64 = 1e12;

/// # Errors
/// Returns an error if the text is longer than [`LENGTH_MAX`].
pub(super) fn check_length(text: &str) -> Result<(), ParseError> {
    if text.len() > LENGTH_MAX {
        return Err(ParseError::TooLong {
            length: text.len(),
            max: LENGTH_MAX,
        });
    }
    Ok(())
}

/// # Errors
/// Returns an error if the text is nested too deeply, or contains something on which the parser could fail.
pub(super) fn check(text: &str) -> Result<(), ParseError> {
    let mut scan = Scan {
        text,
        at: 0,
        brackets: Vec::new(),
        deepest: 0,
        operators: 0,
        regexes: 0,
    };
    while scan.at < text.len() {
        scan.advance()?;
    }
    for (what, count, max) in [
        ("levels of brackets", scan.deepest, DEPTH_MAX),
        ("operators", scan.operators, OPERATORS_MAX),
    ] {
        if count > max {
            return Err(too_many(what, max));
        }
    }
    Ok(())
}

fn too_many(what: &'static str, max: usize) -> ParseError {
    ParseError::TooComplex { what, max }
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    brackets: Vec<u8>,
    deepest: usize,
    operators: usize,
    regexes: usize,
}

impl Scan<'_> {
    fn advance(&mut self) -> Result<(), ParseError> {
        let rest = &self.text.as_bytes()[self.at..];
        let byte = rest[0];
        match byte {
            b'"' | b'\'' | b'`' => self.at += quoted_length(rest),
            b'#' => self.at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            b'(' | b'[' | b'{' => self.open(byte)?,
            b')' | b']' | b'}' => {
                self.brackets.pop();
                self.at += 1;
            }
            b'=' | b'!' if self.in_braces() => {
                self.at += 1;
                if rest.get(1) == Some(&b'~') {
                    self.regex()?;
                }
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'^' | b'=' | b'!' | b'<' | b'>' => {
                self.operators += 1;
                self.at += 1;
            }
            _ if is_word(byte) => self.word()?,
            _ => self.at += 1,
        }
        Ok(())
    }

    /// Called before the `~` of a matcher.
    fn regex(&mut self) -> Result<(), ParseError> {
        self.regexes += 1;
        if self.regexes > REGEXES_MAX {
            return Err(too_many("regular expressions", REGEXES_MAX));
        }
        pattern::check(&self.text[self.at + 1..])
    }

    fn in_braces(&self) -> bool {
        self.brackets.last() == Some(&b'{')
    }

    fn open(&mut self, bracket: u8) -> Result<(), ParseError> {
        self.brackets.push(bracket);
        self.deepest = self.deepest.max(self.brackets.len());
        self.at += 1;
        if bracket == b'[' {
            let inside = self.text[self.at..].split(']').next().unwrap_or_default();
            inside.split(':').try_for_each(check_seconds)?;
        }
        Ok(())
    }

    fn word(&mut self) -> Result<(), ParseError> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
        let word = rest[..length].to_ascii_lowercase();
        self.at += length;
        match word.as_str() {
            "and" | "or" | "unless" | "atan2" => self.operators += 1,
            "offset" => {
                let number = rest[length..].trim_start_matches([' ', '\t', '\n', '\r', '+', '-']);
                let end = number.find(|c: char| !(c.is_ascii_alphanumeric() || "._+-".contains(c)));
                check_seconds(&number[..end.unwrap_or(number.len())])?;
            }
            _ => {}
        }
        Ok(())
    }
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':' || byte == b'.' || !byte.is_ascii()
}

/// Returns the length of a quoted string with its quotes, in bytes. If the string is not closed, returns the length of the text.
pub(super) fn quoted_length(text: &[u8]) -> usize {
    let quote = text[0];
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' && quote != b'`' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Rejects a duration in seconds that is out of range or not finite. A text that is not a number is left to the parser.
fn check_seconds(text: &str) -> Result<(), ParseError> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) if !(0.0..=SECONDS_MAX).contains(&seconds) => {
            Err(ParseError::Syntax(format!("{text} is not a duration")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_operators_and_regexes_are_counted() {
        let cases: [(String, Option<&str>); 9] = [
            ("sum(".repeat(DEPTH_MAX), None),
            ("sum(".repeat(DEPTH_MAX + 1), Some("levels of brackets")),
            (format!("1{}", "+1".repeat(OPERATORS_MAX)), None),
            (format!("1{}", "+1".repeat(OPERATORS_MAX + 1)), Some("operators")),
            (format!("{}1", "-".repeat(OPERATORS_MAX + 1)), Some("operators")),
            (
                format!("x{}", " or x".repeat(OPERATORS_MAX + 1)),
                Some("operators"),
            ),
            (
                format!("x{{{}}}", r#"a=~"b","#.repeat(REGEXES_MAX + 1)),
                Some("regular expressions"),
            ),
            (format!("x{{{}}}", r#"a="((((((",b!='-----+',"#.repeat(200)), None),
            (format!("x # {}", "(".repeat(5_000)), None),
        ];
        for (text, expected) in cases {
            let what = check(&text).err().map(|error| match error {
                ParseError::TooComplex { what, .. } => what,
                other => panic!("{other}"),
            });
            assert_eq!(what, expected, "{}", &text[..40]);
        }
    }

    #[test]
    fn escapes_do_not_end_a_string() {
        assert!(check(&format!(r#"x{{a="\"{}"}}"#, "(".repeat(500))).is_ok());
        assert!(check(&format!(r"x{{a=`\`{}}}", "(".repeat(500))).is_err());
        assert!(check("x{a=\"").is_ok());
        assert!(check("\"\\").is_ok());
    }
}
