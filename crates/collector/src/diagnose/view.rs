//! The views of alerts.

use domain::api::alerts::{AlertView, Diagnosis};
use domain::diagnosis::finding::Finding;
use domain::event::Severity;
use domain::incident::{Context, DiagnosisId, Handling, NamedCulprit, handling};
use domain::series::Labels;
use store::state::incidents::Incident;

/// Returns the severity of an alert from its label `severity`. The default is warning.
pub(super) fn severity(labels: &Labels) -> Severity {
    match labels.get("severity") {
        Some("critical") => Severity::Critical,
        Some("info") => Severity::Info,
        _ => Severity::Warning,
    }
}

/// Returns a stored alert as a diagnosis.
pub(crate) fn diagnosis(incident: &Incident) -> Diagnosis {
    shown(
        incident.alert.clone(),
        &incident.context,
        handling(&incident.entries),
    )
}

/// Returns an alert that has fired as a diagnosis, with its annotations in the fields that pages show.
pub(super) fn shown(alert: AlertView, context: &Context, handling: Handling) -> Diagnosis {
    let text = |name: &str| alert.annotations.get(name).unwrap_or_default().to_owned();
    let of_finding = context.finding.as_ref().and_then(Finding::cause_sentence);
    Diagnosis {
        summary: text("summary"),
        cause: of_finding.unwrap_or_else(|| text("cause")),
        advice: text("advice"),
        culprit: culprit(&alert.labels),
        id: DiagnosisId::of(&alert).to_string(),
        who: NamedCulprit::of(&alert.labels, context.finding.as_ref()),
        run: alert.labels.get("run").map(str::to_owned),
        attempt: context.attempt,
        confidence: context.confidence.clone(),
        handling,
        alert,
    }
}

/// Describes the culprit by the most specific labels that exist.
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
    use domain::api::alerts::AlertState;
    use domain::diagnosis::finding::{Cause, Culprit, FindingKind};

    use super::*;

    #[test]
    fn the_known_cause_of_a_straggler_replaces_the_text_of_the_rule() {
        let alert = AlertView {
            fingerprint: "1".to_owned(),
            rule: "StragglerRank".to_owned(),
            state: AlertState::Firing,
            severity: Severity::Warning,
            labels: Labels::new([("run", "r"), ("rank", "3")]).expect("well formed"),
            annotations: Labels::new([("cause", "One of many.")]).expect("well formed"),
            value: "0.3".to_owned(),
            active_ms: 5,
            fired_ms: Some(5),
            resolved_ms: None,
            evidence: Vec::new(),
        };
        for (cause, expected) in [
            (Cause::Throttled, "Its GPU throttles."),
            (Cause::Unknown, "One of many."),
        ] {
            let finding = Finding {
                kind: FindingKind::Straggler,
                culprit: Culprit::Unknown,
                phase: None,
                cause,
                since_ms: 1,
                since_step: None,
                witnesses: Vec::new(),
                is_suspect: false,
                is_symptom: false,
                severity: Severity::Warning,
                lost_seconds: 7.0,
            };
            let context = Context {
                finding: Some(finding),
                ..Context::default()
            };
            let shown = shown(alert.clone(), &context, Handling::default());
            assert_eq!(shown.cause, expected);
        }
    }

    #[test]
    fn a_diagnosis_names_its_culprit_from_the_narrowest_label_up() {
        let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied()).expect("well formed");
        for (pairs, expected) in [
            (&[("gpu", "3"), ("node", "n1")][..], "GPU 3, on n1"),
            (&[("run", "r"), ("rank", "2")], "r, rank 2"),
            (&[("severity", "critical")], ""),
        ] {
            assert_eq!(culprit(&labels(pairs)), expected);
        }
        assert_eq!(severity(&labels(&[("severity", "critical")])), Severity::Critical);
        assert_eq!(severity(&labels(&[("severity", "page")])), Severity::Warning);
    }
}
