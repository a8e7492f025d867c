//! Parses a text to a [`Query`]. Only this module uses the crate promql-parser.
//!
//! The parser's tree is converted to the engine's tree at once, because it changes with minor versions of the parser. A text that [`guard`]
//! rejects is never passed to the parser: deep nesting would overflow its stack and end the process.

mod convert;
mod guard;
mod pattern;
mod rewrite;

use domain::series::Matcher;

use crate::Query;
use crate::error::ParseError;
use crate::expr::{Expr, Shift};

/// Parses a query.
///
/// # Errors
/// Returns an error if the text is too long, nested too deeply, not PromQL, or uses something that this engine does not support.
pub fn parse(text: &str) -> Result<Query, ParseError> {
    guard::check_length(text)?;
    let rewritten = rewrite::rewrite(text)?;
    guard::check(&rewritten)?;
    let expr = convert::expression(&parse_guarded(&rewritten)?)?;
    Ok(Query {
        text: text.to_owned(),
        expr,
    })
}

/// Parses a plain selector such as `gpu_power_watts{node="a"}`: the value of `match[]` in the series API.
///
/// # Errors
/// As for [`parse`], and if the text is more than a selector.
pub fn parse_selector(text: &str) -> Result<Vec<Matcher>, ParseError> {
    match parse(text)?.expr {
        Expr::Select(selector) if selector.shift == Shift::default() => Ok(selector.matchers),
        _ => Err(ParseError::Syntax(format!(
            "{text:?} is not a plain selector; write it like name{{label=\"value\"}}"
        ))),
    }
}

/// Formats a query. A long query gets one part per line.
///
/// # Errors
/// As for [`parse`].
pub fn pretty(text: &str) -> Result<String, ParseError> {
    guard::check(text)?;
    Ok(parse_guarded(text)?.prettify())
}

/// Parses a checked text. A panic in the parser becomes a parse error, because its arithmetic panics on unusual numbers, and a query must
/// never end the process. [`guard`] rejects the known cases before.
fn parse_guarded(text: &str) -> Result<promql_parser::parser::Expr, ParseError> {
    match std::panic::catch_unwind(|| promql_parser::parser::parse(text)) {
        Ok(Ok(expr)) => Ok(expr),
        Ok(Err(message)) => Err(ParseError::Syntax(message)),
        Err(_) => Err(ParseError::Syntax(
            "the parser could not read this query".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use domain::series::MatchOp;

    #[test]
    fn an_invalid_query_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no expression"),
            ("sum(", "unclosed left parenthesis"),
            ("1 < 2", "comparisons between scalars must use BOOL modifier"),
            (
                "rate(x)",
                "expected type matrix in call to function 'rate', got vector",
            ),
            ("nope(x)", "unknown function with name 'nope'"),
            (r#"{a=""}"#, "at least one non-empty matcher"),
            ("x[0s]", "duration must be greater than 0"),
            (r#"x{a="1" or b="2"}"#, "not supported"),
            ("info(x)", "not supported"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn odd_numbers_are_errors_and_not_panics() {
        for text in [
            "x[Inf]",
            "x[NaN]",
            "x[1e300]",
            "x[5m:1e300]",
            "x offset inf",
            "x offset -1e300",
            "x[9999999999y]",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("x @ 1e300").is_err());
        assert!(parse("x[1.5]").is_ok());
    }

    #[test]
    fn a_selector_gives_its_matchers() {
        let matchers = parse_selector(r#"gpu_power_watts{node=~"a.*", gpu!="0"}"#).unwrap();
        let name = matchers.iter().find(|m| m.name == "__name__").unwrap();
        assert_eq!(
            (name.op, name.value.as_str()),
            (MatchOp::Equal, "gpu_power_watts")
        );
        assert_eq!(matchers.len(), 3);
        assert!(parse_selector("sum(x)").is_err());
        assert!(parse_selector("x offset 5m").is_err());
    }
}
