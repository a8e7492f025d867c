//! Regular expressions of matchers, before the parser compiles them: a short one can stand for gigabytes.

use domain::series::matcher::CompiledMatcher;
use domain::series::{MatchOp, Matcher};
use promql_parser::util::unquote_string;

use super::guard::quoted_length;
use crate::error::ParseError;

/// How much of a hostile expression its message shows.
const SHOWN_CHARS: usize = 60;

/// Looks at the quoted expression at the start of a text. What is no string and what is no expression is left to the parser,
/// which has words for it.
///
/// # Errors
/// When it would take more memory than the store allows a matcher.
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
