//! Label matchers, as in `{gpu="0", node=~"rack1-.*"}`.

use std::fmt;

/// Comparison operator of a matcher.
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

/// A condition on one label. A missing label counts as the empty string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matcher {
    /// Name of the label.
    pub name: String,
    /// Comparison operator.
    pub op: MatchOp,
    /// Value or regular expression to compare with.
    pub value: String,
}

impl Matcher {
    /// Returns the matcher `name="value"`.
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

/// A matcher whose regular expression is compiled.
#[cfg(feature = "regex")]
#[derive(Debug, Clone)]
pub struct CompiledMatcher {
    matcher: Matcher,
    regex: Option<regex::Regex>,
}

/// A regular expression that is malformed or too large.
#[cfg(feature = "regex")]
#[derive(Debug, Clone, thiserror::Error)]
#[error("the regular expression in {matcher} is malformed or too large")]
pub struct InvalidRegex {
    /// The matcher in PromQL's notation.
    pub matcher: String,
    /// Error of the regular expression library.
    #[source]
    pub source: regex::Error,
}

/// Maximum memory of a compiled regular expression, in bytes. A query with a larger one is rejected, to protect the memory of the process.
#[cfg(feature = "regex")]
const REGEX_BYTES_MAX: usize = 1 << 20;

#[cfg(feature = "regex")]
impl CompiledMatcher {
    /// Compiles the matcher. Regular expressions are anchored at both ends and limited in size.
    ///
    /// # Errors
    /// Returns an error if the regular expression is malformed or too large.
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

    /// Returns the name of the label that this matcher compares.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.matcher.name
    }

    /// Returns the matcher that was compiled.
    #[must_use]
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// Returns true if the value (empty for a missing label) satisfies the matcher.
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
