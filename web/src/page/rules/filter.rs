//! The filter of the table of rules.

use domain::api::alerts::{RuleKind, RuleView};
use domain::event::Severity;

use crate::language::marked;

/// The state of a rule, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleState {
    /// The evaluation failed.
    Error,
    /// An alert of the rule is firing.
    Firing,
    /// A condition is true, but not yet for long enough.
    Pending,
    /// No alerts.
    Inactive,
}

/// All severities with their words in the address.
pub(super) const SEVERITIES: [(Severity, &str); 3] = [
    (Severity::Critical, marked("critical")),
    (Severity::Warning, marked("warning")),
    (Severity::Info, marked("info")),
];

/// All states with their words in the address.
pub(super) const RULE_STATES: [(RuleState, &str); 4] = [
    (RuleState::Error, marked("error")),
    (RuleState::Firing, marked("firing")),
    (RuleState::Pending, marked("pending")),
    (RuleState::Inactive, marked("inactive")),
];

impl RuleState {
    /// Returns the state of this rule.
    pub(super) fn of(rule: &RuleView) -> Self {
        let fires = rule.alerts.iter().any(|alert| alert.fired_ms.is_some());
        match (&rule.error, fires, rule.alerts.is_empty()) {
            (Some(_), ..) => Self::Error,
            (None, true, _) => Self::Firing,
            (None, false, false) => Self::Pending,
            (None, false, true) => Self::Inactive,
        }
    }

    /// Returns the state as a word of the address.
    pub(super) fn word(self) -> &'static str {
        RULE_STATES
            .iter()
            .find(|(one, _)| *one == self)
            .map_or("", |(_, word)| *word)
    }

    /// Returns the CSS class for colour and shape.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Error => "state state-critical",
            Self::Firing => "state state-warning",
            Self::Pending => "state state-info",
            Self::Inactive => "state state-ok",
        }
    }
}

/// Returns the severity of a rule's alerts. `None` if the rule records series or takes the severity from label templates.
pub(super) fn severity(rule: &RuleView) -> Option<Severity> {
    match rule.labels.get("severity") {
        Some("critical") => Some(Severity::Critical),
        Some("info") => Some(Severity::Info),
        Some("warning") => Some(Severity::Warning),
        _ if rule.kind == RuleKind::Alerting => Some(Severity::Warning),
        _ => None,
    }
}

/// The user's filter; empty fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// Words that name, group, expression or texts must all contain.
    pub(super) words: String,
    /// The word of a [`RuleState`].
    pub(super) state: String,
    /// The word of a severity.
    pub(super) severity: String,
}

impl Filter {
    /// Returns true if the rule matches the filter.
    pub(super) fn takes(&self, rule: &RuleView) -> bool {
        let severity = severity(rule);
        let has_severity = |(one, word): &(Severity, &str)| Some(*one) == severity && self.severity == *word;
        (self.state.is_empty() || self.state == RuleState::of(rule).word())
            && (self.severity.is_empty() || SEVERITIES.iter().any(has_severity))
            && self
                .words
                .split_whitespace()
                .all(|word| contains(rule, &word.to_lowercase()))
    }
}

fn contains(rule: &RuleView, word: &str) -> bool {
    let annotation = |name| rule.annotations.get(name).unwrap_or_default();
    let texts = [
        rule.name.as_str(),
        &rule.group,
        &rule.expr,
        annotation("summary"),
        annotation("cause"),
    ];
    texts.iter().any(|text| text.to_lowercase().contains(word))
}

#[cfg(test)]
mod tests {
    use domain::series::Labels;

    use super::*;

    fn rule(name: &str, severity: &str) -> RuleView {
        RuleView {
            file: "builtin".into(),
            group: "training".into(),
            kind: RuleKind::Alerting,
            name: name.into(),
            expr: "train_loss > 1".into(),
            for_ms: 0,
            keep_firing_ms: 0,
            labels: Labels::from_trusted([("severity".into(), severity.into())]),
            annotations: Labels::empty(),
            alerts: vec![],
            last_fired_ms: None,
            evaluated_ms: 0,
            duration_s: 0.0,
            error: None,
        }
    }

    #[test]
    fn each_part_narrows_the_table() {
        let quiet = rule("LossNaN", "critical");
        let mut broken = rule("DiskFull", "warning");
        broken.error = Some("no".into());
        for (words, state, severity, takes) in [
            ("", "", "", [true, true]),
            ("loss nan", "", "", [true, false]),
            ("TRAIN", "", "", [true, true]),
            ("", "error", "", [false, true]),
            ("", "inactive", "critical", [true, false]),
            ("disk", "", "critical", [false, false]),
        ] {
            let filter = Filter {
                words: words.into(),
                state: state.into(),
                severity: severity.into(),
            };
            assert_eq!([filter.takes(&quiet), filter.takes(&broken)], takes, "{filter:?}");
        }
    }
}
