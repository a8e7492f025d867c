//! Alerts as people read them.

use domain::api::alerts::{AlertState, AlertView, Diagnosis, Evidence};
use domain::api::prometheus::float;
use domain::event::Severity;
use domain::rule::alert::{Active, fingerprint};
use domain::rule::definition::{EVIDENCE_PREFIX, Rule};
use domain::rule::template;
use domain::series::Labels;
use domain::time::TimestampMs;

/// The labels of an alert: the sample's without the metric name, then the rule's own, then `alertname`. A rule's label
/// template that fails (checked when the rule was read) leaves its text as it is.
pub(super) fn alert_labels(rule: &Rule, sample: &Labels, value: f64) -> Labels {
    let own = sample.filtered(|name| name != domain::series::METRIC_NAME);
    let added = rule.labels.iter().fold(own, |labels, (name, text)| {
        let text = template::expand(text, sample, value).unwrap_or_else(|_| text.clone());
        labels.with(name, &text)
    });
    added.with("alertname", &rule.alert)
}

/// What people see of an alert.
pub(super) fn alert(
    rule: &Rule,
    active: &Active,
    evidence: Vec<Evidence>,
    resolved_ms: Option<TimestampMs>,
) -> AlertView {
    let state = if resolved_ms.is_some() {
        AlertState::Resolved
    } else {
        active.state
    };
    AlertView {
        fingerprint: fingerprint(&active.labels),
        rule: rule.alert.clone(),
        state,
        severity: severity(&active.labels),
        annotations: annotations(rule, active),
        labels: active.labels.clone(),
        value: float(active.value),
        active_ms: active.active_ms,
        fired_ms: active.fired_ms,
        resolved_ms,
        evidence,
    }
}

fn annotations(rule: &Rule, active: &Active) -> Labels {
    let texts = rule
        .annotations
        .iter()
        .filter(|(name, _)| !name.starts_with(EVIDENCE_PREFIX))
        .map(|(name, text)| {
            let text = template::expand(text, &active.labels, active.value).unwrap_or_else(|_| text.clone());
            (name.as_str().into(), text.into())
        });
    Labels::from_trusted(texts)
}

fn severity(labels: &Labels) -> Severity {
    match labels.get("severity") {
        Some("critical") => Severity::Critical,
        Some("info") => Severity::Info,
        _ => Severity::Warning,
    }
}

/// A firing alert, with its annotations where a page looks for them.
pub(super) fn diagnosis(alert: AlertView) -> Diagnosis {
    let text = |name: &str| alert.annotations.get(name).unwrap_or_default().to_owned();
    Diagnosis {
        summary: text("summary"),
        cause: text("cause"),
        advice: text("advice"),
        culprit: culprit(&alert.labels),
        alert,
    }
}

/// Who or what, from the narrowest labels that are there.
fn culprit(labels: &Labels) -> String {
    let part = |name: &str, word: &str| labels.get(name).map(|value| format!("{word}{value}"));
    let parts = [
        part("run", ""),
        part("rank", "rank "),
        part("gpu", "GPU "),
        part("mountpoint", ""),
        part("node", "on "),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_named_by_sample_and_rule() {
        let text = "
groups: [{ name: g, rules: [{ alert: Hot, expr: x, labels: { severity: critical, where: '{{ $labels.node }}' },
  annotations: { summary: 'GPU {{ $labels.gpu }}: {{ $value }}', cause: heat, advice: cool, evidence_x: x } }] }]";
        let file = domain::rule::RuleFile::parse(text).expect("well formed");
        let rule = &file.groups[0].rules[0];
        let sample = Labels::new([("__name__", "x"), ("gpu", "3"), ("node", "n1")]).expect("well formed");
        let labels = alert_labels(rule, &sample, 95.0);
        assert_eq!(
            labels.to_string(),
            r#"{alertname="Hot", gpu="3", node="n1", severity="critical", where="n1"}"#
        );
        let active = Active {
            labels,
            state: AlertState::Firing,
            value: 95.0,
            active_ms: 1,
            fired_ms: Some(2),
            true_ms: 2,
        };
        let diagnosis = diagnosis(alert(rule, &active, vec![], None));
        assert_eq!(
            (diagnosis.summary.as_str(), diagnosis.culprit.as_str()),
            ("GPU 3: 95", "GPU 3, on n1")
        );
        assert_eq!(diagnosis.alert.severity, Severity::Critical);
        assert_eq!(diagnosis.alert.annotations.get("evidence_x"), None);
    }
}
