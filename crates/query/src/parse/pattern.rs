//! Checks the regular expressions of matchers before the parser compiles them: a short one can need gigabytes.

use domain::series::matcher::CompiledMatcher;
use domain::series::{MatchOp, Matcher};
use promql_parser::util::unquote_string;

use super::guard::quoted_length;
use crate::error::ParseError;

/// Maximum number of characters of a rejected expression in the error message.
const SHOWN_CHARS: usize = 60;

/// Checks the quoted regular expression at the start of a text. A text that is not a string or not a regular expression is left to the
/// parser, which reports it.
///
/// # Errors
/// Returns an error if the compiled expression needs more memory than the store allows for a matcher.
pub(super) fn check(rest: &str) -> Result<(), ParseError> {
    let rest = rest.trim_start();
    if !rest.starts_with(['"', '\'', '`']) {
        return Ok(());
    }
    let Ok(pattern) = unquote_string(&rest[..quoted_length(rest.as_bytes())]) else {
        return Ok(());
    };
    let matcher = Matcher {
        name: String::new(),
        op: MatchOp::Regex,
        value: pattern,
    };
    match CompiledMatcher::new(&matcher) {
        Err(error) if is_too_big(&error.source) => Err(ParseError::RegexTooLarge(shown(&matcher.value))),
        _ => Ok(()),
    }
}

fn is_too_big(error: &regex::Error) -> bool {
    matches!(error, regex::Error::CompiledTooBig(_))
}

fn shown(pattern: &str) -> String {
    pattern.chars().take(SHOWN_CHARS).collect()
}
