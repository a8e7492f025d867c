//! Label matchers, as in `{gpu="0", node=~"rack1-.*"}`.

use std::fmt;

/// How a matcher compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `=~`, anchored at both ends
    Regex,
    /// `!~`, anchored at both ends
    NotRegex,
}

/// One condition on one label. A label that is not there counts as the empty string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matcher {
    /// The label's name.
    pub name: String,
    /// How to compare.
    pub op: MatchOp,
    /// The value or regular expression.
    pub value: String,
}

impl Matcher {
    /// `name="value"`.
    pub fn equal(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            op: MatchOp::Equal,
            value: value.into(),
        }
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Regex => "=~",
            MatchOp::NotRegex => "!~",
        };
        write!(f, "{}{op}{:?}", self.name, self.value)
    }
}

/// A matcher ready to be asked, its regular expression compiled.
#[cfg(feature = "regex")]
#[derive(Debug, Clone)]
pub struct CompiledMatcher {
    matcher: Matcher,
    regex: Option<regex::Regex>,
}

/// A regular expression that cannot be used.
#[cfg(feature = "regex")]
#[derive(Debug, Clone, thiserror::Error)]
#[error("the regular expression in {matcher} cannot be used")]
pub struct InvalidRegex {
    /// The matcher as written.
    pub matcher: String,
    /// What the regex engine says.
    #[source]
    pub source: regex::Error,
}

/// The most memory a compiled regular expression may take; beyond it the query is refused instead of the server hurt.
#[cfg(feature = "regex")]
const REGEX_BYTES_MAX: usize = 1 << 20;

#[cfg(feature = "regex")]
impl CompiledMatcher {
    /// Compiles the matcher; regular expressions are anchored at both ends and bounded in size.
    ///
    /// # Errors
    /// When the regular expression is malformed or too large.
    pub fn new(matcher: &Matcher) -> Result<Self, InvalidRegex> {
        let regex = match matcher.op {
            MatchOp::Equal | MatchOp::NotEqual => None,
            MatchOp::Regex | MatchOp::NotRegex => Some(
                regex::RegexBuilder::new(&format!("^(?s:{})$", matcher.value))
                    .size_limit(REGEX_BYTES_MAX)
                    .build()
                    .map_err(|source| InvalidRegex {
                        matcher: matcher.to_string(),
                        source,
                    })?,
            ),
        };
        Ok(Self {
            matcher: matcher.clone(),
            regex,
        })
    }

    /// The label this matcher looks at.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.matcher.name
    }

    /// The matcher it was made from.
    #[must_use]
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// Whether a value (empty for a missing label) satisfies it.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let regex_matches = || self.regex.as_ref().is_some_and(|regex| regex.is_match(value));
        match self.matcher.op {
            MatchOp::Equal => self.matcher.value == value,
            MatchOp::NotEqual => self.matcher.value != value,
            MatchOp::Regex => regex_matches(),
            MatchOp::NotRegex => !regex_matches(),
        }
    }
}

#[cfg(all(test, feature = "regex"))]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_anchored() {
        let matcher = |op, value: &str| {
            CompiledMatcher::new(&Matcher {
                name: "a".into(),
                op,
                value: value.into(),
            })
            .expect("a good expression")
        };
        assert!(matcher(MatchOp::Regex, "b|cd").matches("cd"));
        assert!(!matcher(MatchOp::Regex, "b|cd").matches("xcd"));
        assert!(matcher(MatchOp::NotRegex, "b.*").matches("ab"));
        assert!(matcher(MatchOp::Equal, "").matches(""));
    }

    #[test]
    fn an_exploding_expression_is_refused() {
        let bomb = Matcher {
            name: "a".into(),
            op: MatchOp::Regex,
            value: "(((a{100}){100}){100})".into(),
        };
        assert!(CompiledMatcher::new(&bomb).is_err());
    }
}
