//! Alerts as people read them.

use domain::api::alerts::{AlertView, Diagnosis};
use domain::event::Severity;
use domain::series::Labels;

/// How bad an alert is, by its label `severity`.
pub(super) fn severity(labels: &Labels) -> Severity {
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
