//! Rules as they are once a file was understood: recording and alerting rules in groups.
//!
//! What Lockstep adds to Prometheus' rules rides in annotations: `summary`, `cause`, `advice`, and any `evidence_NAME` whose
//! value is a query (a template of its own kind, see [`super::evidence`]) to be kept with the alert when it fires.

use std::collections::{BTreeMap, BTreeSet};

use super::alert::Holding;
use super::evidence;
use crate::series::Labels;

/// Annotations with this prefix are queries whose answers prove the diagnosis.
pub const EVIDENCE_PREFIX: &str = "evidence_";
/// Label names and values, sorted by name.
pub type Texts = BTreeMap<String, String>;

/// A rule file.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleFile {
    /// Its groups.
    pub groups: Vec<Group>,
}

/// Rules that are evaluated one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Unique in the file.
    pub name: String,
    /// Milliseconds between evaluations, when the group says so.
    pub interval_ms: Option<i64>,
    /// How far back queries look, in milliseconds, so that late samples are there.
    pub query_offset_ms: i64,
    /// The most series or alerts each rule may give; 0 for no limit.
    pub limit: usize,
    /// Its rules, in order; the group's labels are among theirs.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What it makes.
    pub kind: Kind,
    /// The name of the alert, or of the series.
    pub name: String,
    /// PromQL; each series of the answer is one alert, or one series.
    pub expr: String,
    /// Labels to add; of an alerting rule they are templates.
    pub labels: Texts,
    /// Texts to carry; templates.
    pub annotations: Texts,
}

/// What a rule makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Series under the rule's name.
    Record,
    /// Alerts.
    Alert(Holding),
}

impl RuleFile {
    /// Rules, recording and alerting.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let rules = || self.groups.iter().flat_map(|group| &group.rules);
        let recording = rules().filter(|rule| rule.kind == Kind::Record).count();
        (recording, rules().count() - recording)
    }
}

impl Rule {
    /// How long its condition must hold, and linger; nothing for a recording rule.
    #[must_use]
    pub fn holding(&self) -> Holding {
        match self.kind {
            Kind::Alert(holding) => holding,
            Kind::Record => Holding::default(),
        }
    }

    /// Whether it makes alerts.
    #[must_use]
    pub fn is_alert(&self) -> bool {
        matches!(self.kind, Kind::Alert(_))
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
        let filled = |text: &str| evidence::expand(text, &Labels::empty(), 0.0).unwrap_or_default();
        let evidence = self
            .evidence()
            .map(move |(title, text)| (format!("evidence {title:?}"), filled(text)));
        std::iter::once(("expr".to_owned(), self.expr.clone())).chain(evidence)
    }

    /// Whether an alert with these labels may be this rule's: its name, and each label the rule writes without a template.
    #[must_use]
    pub fn may_own(&self, alert: &Labels) -> bool {
        let is_written = |(name, value): (&String, &String)| {
            value.contains("{{") || alert.get(name).unwrap_or_default() == value
        };
        self.is_alert() && alert.get("alertname") == Some(&self.name) && self.labels.iter().all(is_written)
    }
}

/// Rules with the same name and labels, each once with how often it is there: one's series or alerts are taken for the
/// other's.
pub fn duplicates<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Vec<(&'a Rule, usize)> {
    let mut seen: BTreeMap<(&str, &Texts), (&Rule, usize)> = BTreeMap::new();
    for rule in rules {
        seen.entry((&rule.name, &rule.labels)).or_insert((rule, 0)).1 += 1;
    }
    seen.into_values().filter(|(_, count)| *count > 1).collect()
}

/// Names that come twice, each once.
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
            kind: Kind::Alert(Holding::default()),
            name: name.into(),
            expr: "x".into(),
            labels: texts.collect(),
            annotations: Texts::default(),
        }
    }

    #[test]
    fn rules_of_one_name_are_told_apart_by_their_labels() {
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
