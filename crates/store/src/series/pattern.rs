//! The values that a matcher accepts, as far as they are known without running a regular expression on every value.
//!
//! ```text
//! a|b|node-[1-3]   Values    looked up one by one
//! node-1.*         Prefix    a range of the sorted values
//! .*  .+           Anything, Something
//! node-1.*:9100    Check     the values that begin with node-1 are tested
//! ```

use domain::series::{MatchOp, Matcher};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Dot, Hir, HirKind};

/// The maximum number of literals that an expression may be expanded to. A dashboard's list of selected nodes fits.
const LITERALS_MAX: usize = 1_000;
/// The maximum number of characters that one character class may be expanded to.
const CLASS_MAX: usize = 64;
/// The maximum length of a literal: the maximum length of a label value.
const LITERAL_BYTES_MAX: usize = domain::series::labels::VALUE_BYTES_MAX;

/// The values that the positive form of a matcher (`=` or `=~`) accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Every value, also a missing one.
    Anything,
    /// Every value except the empty one.
    Something,
    /// Exactly these values.
    Values(Vec<String>),
    /// All values with this prefix.
    Prefix(String),
    /// Some of the values with one of these prefixes. No prefix begins with another.
    Check(Vec<String>),
}

impl Pattern {
    pub(crate) fn of(matcher: &Matcher) -> Self {
        match matcher.op {
            MatchOp::Equal | MatchOp::NotEqual => Self::Values(vec![matcher.value.clone()]),
            MatchOp::Regex | MatchOp::NotRegex => of_regex(&matcher.value),
        }
    }
}

fn of_regex(value: &str) -> Pattern {
    // Parsed without anchors. A text that is a regular expression only between anchors, such as `a)|(b`, is left to the engine.
    let parsed = ParserBuilder::new()
        .dot_matches_new_line(true)
        .build()
        .parse(value);
    let unknown = || Pattern::Check(vec![String::new()]);
    let Ok(hir) = parsed else { return unknown() };
    if let Some(simple) = simple(&hir) {
        return simple;
    }
    let mut extractor = Extractor::new();
    extractor
        .limit_total(LITERALS_MAX)
        .limit_class(CLASS_MAX)
        .limit_literal_len(LITERAL_BYTES_MAX);
    let found = extractor.extract(&hir);
    let Some(literals) = found.literals() else {
        return unknown();
    };
    let texts = literals.iter().map(|literal| text(literal.as_bytes()));
    let Some(texts) = texts.collect::<Option<Vec<_>>>() else {
        return unknown();
    };
    // The extractor ignores anchors and word boundaries, so expressions with them are checked.
    if found.is_exact() && hir.properties().look_set().is_empty() {
        Pattern::Values(distinct(texts))
    } else {
        Pattern::Check(shortest(texts))
    }
}

/// Recognises `.*`, `.+` and `prefix.*`.
fn simple(hir: &Hir) -> Option<Pattern> {
    match hir.kind() {
        HirKind::Capture(capture) => simple(&capture.sub),
        HirKind::Repetition(_) if is_any(hir, 0) => Some(Pattern::Anything),
        HirKind::Repetition(_) if is_any(hir, 1) => Some(Pattern::Something),
        HirKind::Concat(parts) => match parts.as_slice() {
            [first, rest] if is_any(rest, 0) => match first.kind() {
                HirKind::Literal(literal) => text(&literal.0).map(Pattern::Prefix),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// Returns true for a repetition of any characters, at least `min`.
fn is_any(hir: &Hir, min: u32) -> bool {
    matches!(hir.kind(), HirKind::Repetition(repetition)
        if repetition.min == min && repetition.max.is_none() && *repetition.sub == Hir::dot(Dot::AnyChar))
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

fn distinct(mut texts: Vec<String>) -> Vec<String> {
    texts.sort_unstable();
    texts.dedup();
    texts
}

/// Removes texts that begin with another one.
fn shortest(texts: Vec<String>) -> Vec<String> {
    let mut texts = distinct(texts);
    texts.dedup_by(|longer, shorter| longer.starts_with(shorter.as_str()));
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(regex: &str, expected: &Pattern) {
        assert_eq!(of_regex(regex), *expected, "{regex}");
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn expressions_are_seen_through() {
        use Pattern::{Anything, Check, Prefix, Something, Values};
        check(".*", &Anything);
        check("(.*)", &Anything);
        check(".+", &Something);
        check("", &Values(texts(&[""])));
        check("a|b|cd", &Values(texts(&["a", "b", "cd"])));
        check("node-(1|2)", &Values(texts(&["node-1", "node-2"])));
        check("node-[1-3]", &Values(texts(&["node-1", "node-2", "node-3"])));
        check("a?", &Values(texts(&["", "a"])));
        check("(?i)ab", &Values(texts(&["AB", "Ab", "aB", "ab"])));
        check("10\\.0", &Values(texts(&["10.0"])));
        check("node-1.*", &Prefix("node-1".into()));
        check("node-1.+", &Check(texts(&["node-1"])));
        check("(node-1|node-12|x).*y", &Check(texts(&["node-1", "x"])));
        check(".*y", &Check(texts(&[""])));
        check("a\\b", &Check(texts(&["a"])));
        check("a)|(b", &Check(texts(&[""])));
    }
}
