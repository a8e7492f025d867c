//! Parses rule files from YAML into definitions, with the same checks as Prometheus.
//!
//! All mistakes of a file are reported together, each with its group and rule. Expressions are not parsed here but in the crate `query`.

use std::fmt;

use serde::Deserialize;

use super::alert::AlertTimes;
use super::definition::{EVIDENCE_PREFIX, Group, Kind, Rule, RuleFile, Texts, repeated};
use super::evidence;
use super::template::Template;
use crate::series::labels::{METRIC_NAME, VALUE_BYTES_MAX, is_label_name, is_metric_name};
use crate::time::parse_duration_ms;

/// Maximum size of a rule file in bytes. The largest public rule collections have a tenth of this.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Why a rule file is not valid.
#[derive(Debug, thiserror::Error)]
pub enum RuleFileError {
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("the file has {0} bytes, more than the {FILE_BYTES_MAX} allowed; split it")]
    TooLarge(usize),
    /// The file is not YAML, or has the wrong structure.
    #[error("the file is not a Prometheus rule file")]
    Yaml(#[source] serde_norway::Error),
    /// The structure is right, but the contents have at least one mistake.
    #[error("{}", lines(.0))]
    Mistakes(Vec<Mistake>),
}

/// One mistake in a rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the group.
    pub group: String,
    /// Position of the rule in the group, from 1, and its name. `None` if the mistake is in the group itself.
    pub rule: Option<(usize, String)>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {:?}", self.group)?;
        if let Some((place, name)) = &self.rule {
            write!(f, ", rule {place}, {name:?}")?;
        }
        write!(f, ": {}", self.message)
    }
}

fn lines(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl RuleFile {
    /// Parses and checks a file.
    ///
    /// # Errors
    /// See [`RuleFileError`].
    pub fn parse(text: &str) -> Result<Self, RuleFileError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(RuleFileError::TooLarge(text.len()));
        }
        let written: Option<WrittenFile> = serde_norway::from_str(text).map_err(RuleFileError::Yaml)?;
        let written = written.unwrap_or_default();
        let mut mistakes = Vec::new();
        for name in repeated(written.groups.iter().map(|group| group.name.as_str())) {
            mistakes.push(Mistake {
                group: name.to_owned(),
                rule: None,
                message: "the group's name is repeated in the same file".to_owned(),
            });
        }
        let groups = written.groups.into_iter().map(|group| group.read(&mut mistakes));
        let groups = groups.collect();
        if mistakes.is_empty() {
            Ok(Self { groups })
        } else {
            Err(RuleFileError::Mistakes(mistakes))
        }
    }
}

// === as written ===

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    #[serde(default)]
    groups: Vec<WrittenGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGroup {
    #[serde(default)]
    name: String,
    interval: Option<String>,
    query_offset: Option<String>,
    #[serde(default)]
    limit: i64,
    labels: Option<Texts>,
    rules: Option<Vec<WrittenRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    #[serde(default)]
    alert: String,
    #[serde(default)]
    record: String,
    #[serde(default)]
    expr: String,
    #[serde(rename = "for")]
    hold: Option<String>,
    keep_firing_for: Option<String>,
    labels: Option<Texts>,
    annotations: Option<Texts>,
}

impl WrittenGroup {
    fn read(self, mistakes: &mut Vec<Mistake>) -> Group {
        let mut found = Vec::new();
        if self.name.is_empty() {
            found.push("the group has no name".to_owned());
        }
        let labels = self.labels.unwrap_or_default();
        check_labels(&labels, &mut found);
        let interval_ms = duration(self.interval.as_deref(), "interval", &mut found);
        let query_offset_ms = duration(self.query_offset.as_deref(), "query_offset", &mut found);
        let limit = usize::try_from(self.limit).unwrap_or_else(|_| {
            found.push(format!("the limit {} is negative", self.limit));
            0
        });
        let mistake = |rule, message| Mistake {
            group: self.name.clone(),
            rule,
            message,
        };
        mistakes.extend(found.into_iter().map(|message| mistake(None, message)));
        let mut rules = Vec::new();
        for (place, rule) in (1..).zip(self.rules.unwrap_or_default()) {
            let name = if rule.alert.is_empty() {
                &rule.record
            } else {
                &rule.alert
            };
            let (name, mut found) = (name.clone(), Vec::new());
            rules.push(rule.read(&labels, &mut found));
            mistakes.extend(
                found
                    .into_iter()
                    .map(|message| mistake(Some((place, name.clone())), message)),
            );
        }
        Group {
            name: self.name,
            interval_ms: interval_ms.filter(|ms| *ms > 0),
            query_offset_ms: query_offset_ms.unwrap_or_default(),
            limit,
            rules,
        }
    }
}

impl WrittenRule {
    fn read(self, of_group: &Texts, found: &mut Vec<String>) -> Rule {
        match (self.alert.is_empty(), self.record.is_empty()) {
            (true, true) => found.push("one of 'record' or 'alert' must be set".to_owned()),
            (false, false) => found.push("only one of 'record' and 'alert' must be set".to_owned()),
            _ => {}
        }
        if self.expr.trim().is_empty() {
            found.push("the field 'expr' must be set in a rule".to_owned());
        }
        let own = self.labels.unwrap_or_default();
        check_labels(&own, found);
        let annotations = self.annotations.unwrap_or_default();
        let times = AlertTimes {
            hold_ms: duration(self.hold.as_deref(), "for", found).unwrap_or_default(),
            keep_firing_ms: duration(self.keep_firing_for.as_deref(), "keep_firing_for", found)
                .unwrap_or_default(),
        };
        let kind = if self.alert.is_empty() {
            check_recording(&self.record, times, &annotations, found);
            Kind::Record
        } else {
            check_alerting(&self.alert, &own, &annotations, found);
            Kind::Alert(times)
        };
        let mut labels = of_group.clone();
        labels.extend(own);
        Rule {
            kind,
            name: if self.alert.is_empty() {
                self.record
            } else {
                self.alert
            },
            expr: self.expr,
            labels,
            annotations,
        }
    }
}

// === checks ===

fn check_recording(name: &str, times: AlertTimes, annotations: &Texts, found: &mut Vec<String>) {
    if !name.is_empty() && !is_metric_name(name) {
        found.push(format!("invalid recording rule name: {name:?}"));
    }
    let mut refuse = |is_there: bool, field: &str| {
        if is_there {
            found.push(format!("invalid field '{field}' in a recording rule"));
        }
    };
    refuse(!annotations.is_empty(), "annotations");
    refuse(times.hold_ms != 0, "for");
    refuse(times.keep_firing_ms != 0, "keep_firing_for");
}

fn check_alerting(name: &str, labels: &Texts, annotations: &Texts, found: &mut Vec<String>) {
    if name.len() > VALUE_BYTES_MAX {
        found.push(format!("the alert's name is longer than {VALUE_BYTES_MAX} bytes"));
    }
    for name in annotations.keys().filter(|name| !is_label_name(name)) {
        found.push(format!("invalid annotation name: {name:?}"));
    }
    for (name, text) in labels.iter().chain(annotations) {
        let read = if name.starts_with(EVIDENCE_PREFIX) && annotations.contains_key(name) {
            evidence::check(text).map_err(|error| error.to_string())
        } else {
            Template::parse(text).map(drop).map_err(|error| error.to_string())
        };
        if let Err(error) = read {
            found.push(format!("the template of {name:?} cannot be read: {error}"));
        }
    }
}

fn check_labels(labels: &Texts, found: &mut Vec<String>) {
    for (name, value) in labels {
        if !is_label_name(name) || name == METRIC_NAME {
            found.push(format!("invalid label name: {name:?}"));
        }
        if !value.contains("{{") && value.len() > VALUE_BYTES_MAX {
            found.push(format!(
                "the value of the label {name:?} is longer than {VALUE_BYTES_MAX} bytes"
            ));
        }
    }
}

fn duration(text: Option<&str>, field: &str, found: &mut Vec<String>) -> Option<i64> {
    match parse_duration_ms(text?) {
        Ok(ms) => Some(ms),
        Err(error) => {
            found.push(format!("'{field}': {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
groups:
  - name: g
    interval: 5s
    query_offset: 1m
    limit: 10
    labels: { team: infra, severity: info }
    rules:
      - record: node:gpu_power_watts:sum
        expr: sum by (node) (gpu_power_watts)
      - alert: GPU is hot
        expr: gpu_temperature_celsius > 90
        for: 30s
        keep_firing_for: 1m
        labels: { severity: warning, tier: 1 }
        annotations:
          summary: 'GPU {{ $labels.gpu }} at {{ $value }} degrees'
          evidence_gpu_temperature: 'gpu_temperature_celsius{gpu=\"{{ $labels.gpu }}\"}'
";

    #[test]
    fn a_prometheus_rule_file_is_read() {
        let file = RuleFile::parse(GOOD).expect("well formed");
        assert_eq!(file.counts(), (1, 1));
        let group = &file.groups[0];
        assert_eq!(
            (group.interval_ms, group.query_offset_ms, group.limit),
            (Some(5_000), 60_000, 10)
        );
        let (record, alert) = (&group.rules[0], &group.rules[1]);
        assert_eq!(record.kind, Kind::Record);
        assert_eq!(record.labels.get("severity").map(String::as_str), Some("info"));
        assert_eq!(
            alert.alert_times(),
            AlertTimes {
                hold_ms: 30_000,
                keep_firing_ms: 60_000
            }
        );
        let label = |name: &str| alert.labels.get(name).map(String::as_str);
        assert_eq!(
            (label("team"), label("severity"), label("tier")),
            (Some("infra"), Some("warning"), Some("1"))
        );
        assert_eq!(
            alert.evidence().next().map(|(title, _)| title).as_deref(),
            Some("GPU temperature")
        );
    }

    #[test]
    fn a_file_without_rules_is_a_file() {
        for text in [
            "",
            "# nothing yet\n",
            "groups: []",
            "groups: [{ name: g, rules: }]",
        ] {
            assert!(RuleFile::parse(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_named_with_group_and_rule() {
        for (from, to, expected) in [
            (
                "for: 30s",
                "for: soon",
                "group \"g\", rule 2, \"GPU is hot\": 'for': \"soon\" is not a duration",
            ),
            ("interval: 5s", "interval: x", "group \"g\": 'interval': \"x\""),
            ("limit: 10", "limit: -1", "negative"),
            ("name: g\n", "name: ''\n", "no name"),
            ("record: node:", "record: node-", "invalid recording rule name"),
            (
                "record: node:gpu_power_watts:sum",
                "record: a\n        for: 1m",
                "invalid field 'for'",
            ),
            (
                "record: node:gpu_power_watts:sum",
                "record: a\n        annotations: { a: b }",
                "invalid field 'annotations'",
            ),
            (
                "record: node:gpu_power_watts:sum",
                "record: a\n        alert: b",
                "only one of",
            ),
            (
                "      - record: node:gpu_power_watts:sum\n  ",
                "      -",
                "one of 'record' or 'alert'",
            ),
            ("gpu_temperature_celsius > 90", "", "'expr' must be set"),
            (
                "$labels.gpu }} at",
                "$lables.gpu }} at",
                "undefined variable \"$lables\"",
            ),
            (
                "$value }} degrees",
                "$value | shout }} degrees",
                "\"shout\" not defined",
            ),
            (
                "\"{{ $labels.gpu }}\"}'",
                "`{{ $labels.gpu }}`}'",
                "outside of a string",
            ),
            (
                "severity: warning",
                "se-verity: warning",
                "invalid label name: \"se-verity\"",
            ),
            ("severity: warning", "__name__: warning", "invalid label name"),
            ("team: infra", "te-am: infra", "group \"g\": invalid label name"),
            ("summary:", "sum mary:", "invalid annotation name"),
        ] {
            let error = RuleFile::parse(&GOOD.replace(from, to))
                .expect_err(to)
                .to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
        assert!(RuleFile::parse("groups: 3").is_err());
        assert!(RuleFile::parse(&GOOD.replace("expr:", "exrp:")).is_err());
        let twice = format!("{GOOD}  - name: g\n");
        let error = RuleFile::parse(&twice).expect_err("twice").to_string();
        assert!(error.contains("repeated"), "{error}");
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text = GOOD
            .replace("for: 30s", "for: soon")
            .replace("interval: 5s", "interval: x");
        let Err(RuleFileError::Mistakes(mistakes)) = RuleFile::parse(&text) else {
            panic!("it has mistakes")
        };
        assert_eq!(mistakes.len(), 2);
    }
}
