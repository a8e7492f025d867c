//! Alerting rules in the file format of Prometheus: `promtool check rules` accepts ours, and we read theirs.
//!
//! What Lockstep adds rides in annotations: `summary`, `cause`, `advice`, and any `evidence_NAME` whose value is a query
//! (a template like the others) to be kept with the alert when it fires.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::series::labels::{is_label_name, is_metric_name};
use crate::time::parse_duration_ms;

/// Annotations with this prefix are queries whose answers prove the diagnosis.
pub const EVIDENCE_PREFIX: &str = "evidence_";
/// How often a group is evaluated when it does not say.
pub const INTERVAL_MS_DEFAULT: i64 = 1_000;

/// A rule file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Its groups.
    pub groups: Vec<Group>,
}

/// Rules that are evaluated one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Unique in the file.
    pub name: String,
    /// Like `15s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// An alerting rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The name of the alert.
    #[serde(default)]
    pub alert: String,
    /// The name of the series a recording rule makes. Read, so that the message can say that it is not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// PromQL; each series of the answer is one alert.
    pub expr: String,
    /// How long the condition must hold before it fires, like `30s`.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// How long it goes on firing after the condition ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_firing_for: Option<String>,
    /// Labels to add; templates.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Texts to carry; templates.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// What is wrong with a rule file.
#[derive(Debug, thiserror::Error)]
pub enum RuleFileError {
    /// Not YAML, or not of this shape.
    #[cfg(feature = "yaml")]
    #[error("the file is not a Prometheus rule file")]
    Yaml(#[source] serde_norway::Error),
    /// Well formed, but something in it makes no sense.
    #[error("group {group:?}, rule {rule:?}: {message}")]
    Rule {
        /// The group.
        group: String,
        /// The rule, or empty for the group itself.
        rule: String,
        /// What is wrong.
        message: String,
    },
}

impl RuleFile {
    /// Reads and checks a file. Expressions are not parsed here: that is the query crate's part.
    ///
    /// # Errors
    /// See [`RuleFileError`]; the first mistake ends it.
    #[cfg(feature = "yaml")]
    pub fn parse(text: &str) -> Result<Self, RuleFileError> {
        let file: Self = serde_norway::from_str(text).map_err(RuleFileError::Yaml)?;
        file.check()?;
        Ok(file)
    }

    /// Checks names, durations and templates.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), RuleFileError> {
        let mut names = std::collections::BTreeSet::new();
        for group in &self.groups {
            let fail = |rule: &str, message: String| RuleFileError::Rule {
                group: group.name.clone(),
                rule: rule.to_owned(),
                message,
            };
            if !names.insert(&group.name) {
                return Err(fail("", "the group's name appears twice in the file".to_owned()));
            }
            if let Some(interval) = &group.interval {
                parse_duration_ms(interval).map_err(|error| fail("", error.to_string()))?;
            }
            for rule in &group.rules {
                rule.check().map_err(|message| fail(&rule.alert, message))?;
            }
        }
        Ok(())
    }
}

impl Group {
    /// Milliseconds between evaluations.
    #[must_use]
    pub fn interval_ms(&self) -> i64 {
        self.interval
            .as_deref()
            .and_then(|text| parse_duration_ms(text).ok())
            .unwrap_or(INTERVAL_MS_DEFAULT)
            .max(1)
    }
}

impl Rule {
    /// Milliseconds the condition must hold.
    #[must_use]
    pub fn hold_ms(&self) -> i64 {
        self.hold
            .as_deref()
            .and_then(|text| parse_duration_ms(text).ok())
            .unwrap_or(0)
    }

    /// Milliseconds it goes on firing after the condition ended.
    #[must_use]
    pub fn keep_firing_ms(&self) -> i64 {
        self.keep_firing_for
            .as_deref()
            .and_then(|text| parse_duration_ms(text).ok())
            .unwrap_or(0)
    }

    /// Evidence queries: `(title, query template)`. `evidence_gradient_norm` is titled "gradient norm".
    pub fn evidence(&self) -> impl Iterator<Item = (String, &str)> {
        self.annotations.iter().filter_map(|(name, query)| {
            let title = name.strip_prefix(EVIDENCE_PREFIX)?.replace('_', " ");
            Some((title, query.as_str()))
        })
    }

    /// All queries of the rule, for whoever can parse them: `(expr or the annotation's title, query)`. Evidence is filled in as
    /// if every label were empty.
    pub fn queries(&self) -> impl Iterator<Item = (String, String)> {
        let filled = |text: &str| super::template::expand_query(text, &crate::series::Labels::empty(), 0.0);
        let evidence = self
            .evidence()
            .map(move |(title, text)| (format!("evidence {title:?}"), filled(text).unwrap_or_default()));
        std::iter::once(("expr".to_owned(), self.expr.clone())).chain(evidence)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(record) = &self.record {
            return Err(format!(
                "{record:?} is a recording rule; this version evaluates alerting rules only"
            ));
        }
        if !is_metric_name(&self.alert) {
            return Err("an alert needs a name of letters, digits, '_' and ':'".to_owned());
        }
        for duration in [&self.hold, &self.keep_firing_for].into_iter().flatten() {
            parse_duration_ms(duration).map_err(|error| error.to_string())?;
        }
        for (name, text) in self.labels.iter().chain(&self.annotations) {
            if !is_label_name(name) {
                return Err(format!("{name:?} is not a label name"));
            }
            let check = if name.starts_with(EVIDENCE_PREFIX) {
                super::template::check_query
            } else {
                super::template::check
            };
            check(text).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "yaml"))]
mod tests {
    use super::*;

    const GOOD: &str = "
groups:
  - name: g
    interval: 5s
    rules:
      - alert: Hot
        expr: gpu_temperature_celsius > 90
        for: 30s
        labels: { severity: warning }
        annotations:
          summary: 'GPU {{ $labels.gpu }} at {{ $value }} degrees'
          evidence_gpu_temperature: 'gpu_temperature_celsius{gpu=\"{{ $labels.gpu }}\"}'
";

    #[test]
    fn a_prometheus_rule_file_is_read() {
        let file = RuleFile::parse(GOOD).expect("well formed");
        let rule = &file.groups[0].rules[0];
        assert_eq!((file.groups[0].interval_ms(), rule.hold_ms()), (5_000, 30_000));
        assert_eq!(
            rule.evidence().next().map(|(title, _)| title).as_deref(),
            Some("gpu temperature")
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, expected) in [
            ("for: 30s", "for: soon", "\"soon\" is not a duration"),
            ("alert: Hot", "record: hot", "recording rule"),
            ("$labels.gpu }} at", "$lables.gpu }} at", "$lables"),
            (
                "\"{{ $labels.gpu }}\"}'",
                "`{{ $labels.gpu }}`}'",
                "outside of a string",
            ),
            ("severity: warning", "se-verity: warning", "not a label name"),
        ] {
            let error = RuleFile::parse(&GOOD.replace(from, to))
                .expect_err(to)
                .to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
        assert!(RuleFile::parse("groups: 3").is_err());
        assert!(RuleFile::parse(&GOOD.replace("expr:", "exrp:")).is_err());
    }
}
