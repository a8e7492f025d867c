//! Parsed rules: recording and alerting rules in groups.
//!
//! Lockstep's additions to Prometheus' rules are annotations: `summary`, `cause`, `advice`, and any `evidence_NAME`. The value of
//! `evidence_NAME` is a query (a template of its own kind, see [`super::evidence`]) whose result is stored with the alert when it fires.

use std::collections::{BTreeMap, BTreeSet};

use super::alert::AlertTimes;
use super::evidence;
use crate::series::Labels;

/// Prefix of annotations that contain evidence queries.
pub const EVIDENCE_PREFIX: &str = "evidence_";
/// Words of titles that are not written in lower case.
const TITLE_WORDS: [&str; 11] = [
    "CPU", "ECC", "GPU", "GPUs", "NCCL", "NVLink", "NVLinks", "PCIe", "RDMA", "SXid", "Xid",
];
/// Label names and values, sorted by name.
pub type Texts = BTreeMap<String, String>;

/// A rule file.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleFile {
    /// Groups of the file.
    pub groups: Vec<Group>,
}

/// A group of rules, evaluated one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Name of the group, unique in the file.
    pub name: String,
    /// Milliseconds between evaluations, if the group specifies it.
    pub interval_ms: Option<i64>,
    /// How far in the past the queries are evaluated, in milliseconds, so that late samples are included.
    pub query_offset_ms: i64,
    /// Maximum number of series or alerts per rule; 0 for no limit.
    pub limit: usize,
    /// Rules in order. Their labels include the labels of the group.
    pub rules: Vec<Rule>,
}

/// A recording or alerting rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Kind of the rule.
    pub kind: Kind,
    /// Name of the alert or of the recorded series.
    pub name: String,
    /// PromQL expression. Each series of its result is one alert or one recorded series.
    pub expr: String,
    /// Labels to add. In an alerting rule their values are templates.
    pub labels: Texts,
    /// Annotations; their values are templates.
    pub annotations: Texts,
}

/// Kind of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Records series under the rule's name.
    Record,
    /// Makes alerts.
    Alert(AlertTimes),
}

impl RuleFile {
    /// Returns the numbers of recording rules and of alerting rules.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let rules = || self.groups.iter().flat_map(|group| &group.rules);
        let recording = rules().filter(|rule| rule.kind == Kind::Record).count();
        (recording, rules().count() - recording)
    }
}

impl Rule {
    /// Returns the `for` and `keep_firing_for` durations; zero for a recording rule.
    #[must_use]
    pub fn alert_times(&self) -> AlertTimes {
        match self.kind {
            Kind::Alert(times) => times,
            Kind::Record => AlertTimes::default(),
        }
    }

    /// Returns true if this is an alerting rule.
    #[must_use]
    pub fn is_alert(&self) -> bool {
        matches!(self.kind, Kind::Alert(_))
    }

    /// Returns the evidence queries as `(title, query template)`. The title of `evidence_gpu_clock` is "GPU clock".
    pub fn evidence(&self) -> impl Iterator<Item = (String, &str)> {
        self.annotations
            .iter()
            .filter_map(|(name, query)| Some((title(name.strip_prefix(EVIDENCE_PREFIX)?), query.as_str())))
    }

    /// Returns all queries of the rule as `(expr or the annotation's title, query)`, for a caller that parses them. Templates of evidence
    /// are expanded with every label empty.
    pub fn queries(&self) -> impl Iterator<Item = (String, String)> {
        let filled = |text: &str| evidence::expand(text, &Labels::empty(), 0.0).unwrap_or_default();
        let evidence = self
            .evidence()
            .map(move |(title, text)| (format!("evidence {title:?}"), filled(text)));
        std::iter::once(("expr".to_owned(), self.expr.clone())).chain(evidence)
    }

    /// Returns the labels that the rule sets without a template: the same for all its alerts.
    pub fn fixed_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.labels.iter().filter(|(_, value)| !value.contains("{{"));
        labels.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if an alert with these labels can be from this rule: it has the rule's name and its fixed labels.
    #[must_use]
    pub fn may_own(&self, alert: &Labels) -> bool {
        let has = |(name, value): (&str, &str)| alert.get(name).unwrap_or_default() == value;
        self.is_alert() && alert.get("alertname") == Some(&self.name) && self.fixed_labels().all(has)
    }
}

/// Returns the name of evidence as a title. It differs from the name only in the case of letters and by spaces.
fn title(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let known = TITLE_WORDS.iter().find(|known| known.eq_ignore_ascii_case(word));
        known.copied().unwrap_or(word)
    });
    let title = words.collect::<Vec<_>>().join(" ");
    let mut letters = title.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// Returns the rules with equal name and labels, each once with its number of occurrences. Series or alerts of such rules cannot be told
/// apart.
pub fn duplicates<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Vec<(&'a Rule, usize)> {
    let mut seen: BTreeMap<(&str, &Texts), (&Rule, usize)> = BTreeMap::new();
    for rule in rules {
        seen.entry((&rule.name, &rule.labels)).or_insert((rule, 0)).1 += 1;
    }
    seen.into_values().filter(|(_, count)| *count > 1).collect()
}

/// Returns the names that occur more than once, each once.
pub(super) fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, labels: &[(&str, &str)]) -> Rule {
        let texts = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Rule {
            kind: Kind::Alert(AlertTimes::default()),
            name: name.into(),
            expr: "x".into(),
            labels: texts.collect(),
            annotations: Texts::default(),
        }
    }

    #[test]
    fn a_title_has_the_usual_case_of_its_words() {
        for (name, expected) in [
            ("gpus_answering", "GPUs answering"),
            ("xid_errors_within_a_week", "Xid errors within a week"),
            ("pcie_width", "PCIe width"),
            ("backward_pass_by_rank", "Backward pass by rank"),
            ("", ""),
        ] {
            assert_eq!(title(name), expected);
        }
    }

    #[test]
    fn rules_of_one_name_are_distinguished_by_their_fixed_labels() {
        let (warning, critical) = (
            rule("Hot", &[("severity", "warning"), ("where", "{{ $labels.node }}")]),
            rule("Hot", &[("severity", "critical")]),
        );
        let alert = Labels::new([("alertname", "Hot"), ("severity", "warning"), ("where", "n1")])
            .expect("well formed");
        assert!(warning.may_own(&alert) && !critical.may_own(&alert));
        assert_eq!(duplicates([&warning, &critical]), []);
        let again = warning.clone();
        assert_eq!(duplicates([&warning, &critical, &again]), [(&warning, 2)]);
    }
}
