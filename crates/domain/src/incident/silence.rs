//! Silences: no notifications are sent for matching alerts during a period. The alerts stay visible and are marked as silenced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::spec::FieldError;
use crate::series::{MatchOp, Matcher};
use crate::time::TimestampMs;

/// Maximum number of matchers of a silence. An alert rarely has more than 12 labels.
const MATCHERS_MAX: usize = 32;
/// Maximum length of a name, value or comment in bytes.
const TEXT_BYTES_MAX: usize = 2_048;
/// Maximum duration of a silence: one year. If a problem is accepted for longer, change the rule.
const DURATION_MS_MAX: i64 = 366 * 24 * 3_600_000;

/// A silence; the stored form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Id of the silence.
    pub id: String,
    /// Matchers for the labels of an alert, including `alertname`. All must match.
    pub matchers: Vec<SilenceMatcher>,
    /// When the silence begins.
    pub starts_ms: TimestampMs,
    /// When the silence ends.
    pub ends_ms: TimestampMs,
    /// When the silence was created.
    pub created_ms: TimestampMs,
    /// Id of the token that created it.
    pub created_by: String,
    /// Why the silence is needed.
    pub comment: String,
}

/// A condition on one label, with the same fields as in Alertmanager. A missing label counts as the empty string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceMatcher {
    /// Name of the label.
    pub name: String,
    /// Value to compare with, or a regular expression that must match the whole value.
    pub value: String,
    /// True if `value` is a regular expression.
    #[serde(default, alias = "isRegex", skip_serializing_if = "std::ops::Not::not")]
    pub is_regex: bool,
    /// True if the label must match `value`; false if it must not match.
    #[serde(default = "yes", alias = "isEqual")]
    pub is_equal: bool,
}

/// State of a silence, with Alertmanager's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SilenceState {
    /// The silence has not begun.
    Pending,
    /// The silence is in effect now.
    Active,
    /// The silence has ended.
    Expired,
}

fn yes() -> bool {
    true
}

impl From<&SilenceMatcher> for Matcher {
    fn from(matcher: &SilenceMatcher) -> Self {
        Self {
            name: matcher.name.clone(),
            op: match (matcher.is_regex, matcher.is_equal) {
                (false, true) => MatchOp::Equal,
                (false, false) => MatchOp::NotEqual,
                (true, true) => MatchOp::Regex,
                (true, false) => MatchOp::NotRegex,
            },
            value: matcher.value.clone(),
        }
    }
}

impl Silence {
    /// Returns the state at the time `now_ms`.
    #[must_use]
    pub fn state(&self, now_ms: TimestampMs) -> SilenceState {
        if now_ms >= self.ends_ms {
            SilenceState::Expired
        } else if now_ms < self.starts_ms {
            SilenceState::Pending
        } else {
            SilenceState::Active
        }
    }

    /// Returns the errors of a new silence, per field. Regular expressions are not checked here but where they are compiled.
    #[must_use]
    pub fn problems(&self, now_ms: TimestampMs) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut wrong = |field: &str, message: String| {
            problems.push(FieldError::new(field, message));
        };
        if self.matchers.is_empty() || self.matchers.len() > MATCHERS_MAX {
            wrong("matchers", format!("give 1 to {MATCHERS_MAX} matchers"));
        }
        for matcher in &self.matchers {
            if matcher.name.is_empty() || matcher.name.len() > TEXT_BYTES_MAX {
                wrong("matchers", "each matcher needs the name of a label".to_owned());
            }
            if matcher.value.len() > TEXT_BYTES_MAX {
                wrong(
                    "matchers",
                    format!(
                        "the value of {} is longer than {TEXT_BYTES_MAX} bytes",
                        matcher.name
                    ),
                );
            }
        }
        if self.ends_ms <= self.starts_ms.max(now_ms) {
            wrong(
                "ends_ms",
                "the end must be in the future and after the start".to_owned(),
            );
        } else if self.ends_ms - self.starts_ms.max(now_ms) > DURATION_MS_MAX {
            wrong("ends_ms", "a silence can last at most 366 days".to_owned());
        }
        if self.comment.trim().is_empty() || self.comment.len() > TEXT_BYTES_MAX {
            wrong(
                "comment",
                format!("a comment of 1 to {TEXT_BYTES_MAX} bytes is required: it tells others why"),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(ends_ms: i64, matchers: usize, comment: &str) -> Silence {
        let matcher = SilenceMatcher {
            name: "node".into(),
            value: "a".into(),
            is_regex: false,
            is_equal: true,
        };
        Silence {
            id: "s".into(),
            matchers: vec![matcher; matchers],
            starts_ms: 1_000,
            ends_ms,
            created_ms: 1_000,
            created_by: "ann".into(),
            comment: comment.into(),
        }
    }

    #[test]
    fn a_silence_needs_matchers_an_end_and_a_reason() {
        for (silence, expected) in [
            (silence(2_000, 1, "fan"), &[][..]),
            (silence(2_000, 0, "fan"), &["matchers"]),
            (silence(1_000, 1, "fan"), &["ends_ms"]),
            (silence(2_000 + DURATION_MS_MAX, 1, "fan"), &["ends_ms"]),
            (silence(2_000, 1, " "), &["comment"]),
        ] {
            let fields: Vec<String> = silence
                .problems(1_000)
                .into_iter()
                .map(|error| error.field)
                .collect();
            assert_eq!(fields, expected, "{silence:?}");
        }
    }

    #[test]
    fn a_silence_begins_and_ends_by_the_clock() {
        let silence = silence(2_000, 1, "fan");
        for (now_ms, state) in [
            (999, SilenceState::Pending),
            (1_000, SilenceState::Active),
            (1_999, SilenceState::Active),
            (2_000, SilenceState::Expired),
        ] {
            assert_eq!(silence.state(now_ms), state, "{now_ms}");
        }
    }

    #[test]
    fn the_matchers_of_alertmanager_are_understood() {
        let read = |text: &str| -> SilenceMatcher { serde_json::from_str(text).expect("a matcher") };
        let alertmanager = read(r#"{"name":"node","value":"a|b","isRegex":true,"isEqual":false}"#);
        assert_eq!(Matcher::from(&alertmanager).to_string(), r#"node!~"a|b""#);
        let short = read(r#"{"name":"node","value":"a"}"#);
        assert_eq!(Matcher::from(&short).to_string(), r#"node="a""#);
    }
}
