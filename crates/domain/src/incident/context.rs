//! Information about an alert that is stored when it fires and when it ends.

use serde::{Deserialize, Serialize};

use super::Confidence;
use crate::diagnosis::finding::{Culprit, Finding, FindingKind};
use crate::ident::{AttemptNo, Rank};
use crate::series::Labels;

/// Information about an alert.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// Attempt of its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Confidence in the alert.
    pub confidence: Confidence,
    /// Finding from which the alert was made, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<Finding>,
}

/// Prefixes of the series that the analysers write, and the kind of finding of each.
const FINDING_SERIES: [(&str, FindingKind); 5] = [
    ("diagnosis_hang_", FindingKind::Hang),
    ("diagnosis_alone_", FindingKind::WorksAlone),
    ("diagnosis_straggler_", FindingKind::Straggler),
    ("diagnosis_rare_stall_", FindingKind::RareStalls),
    ("diagnosis_replicas_", FindingKind::ReplicasDiffer),
];

/// Returns the finding from which an alert was made: its kind is one whose series the rule reads, and it is about the rank or node in the
/// labels.
#[must_use]
pub fn finding_of<'f>(
    findings: impl IntoIterator<Item = &'f Finding>,
    labels: &Labels,
    metrics: &[String],
) -> Option<&'f Finding> {
    let reads = |kind: &FindingKind| {
        FINDING_SERIES
            .iter()
            .any(|(prefix, of)| of == kind && metrics.iter().any(|name| name.starts_with(prefix)))
    };
    findings
        .into_iter()
        .find(|finding| reads(&finding.kind) && is_about(&finding.culprit, labels))
}

fn is_about(culprit: &Culprit, labels: &Labels) -> bool {
    let rank = labels.get("rank").and_then(|rank| rank.parse().ok()).map(Rank);
    match (culprit, rank) {
        (Culprit::Ranks { ranks, .. }, Some(rank)) => ranks.contains(rank),
        (Culprit::Node { node, .. }, None) => labels.get("node") == Some(node),
        (Culprit::Sides { .. } | Culprit::Unknown, None) => labels.get("node").is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::finding::Cause;
    use crate::event::Severity;

    fn finding(kind: FindingKind, culprit: Culprit) -> Finding {
        Finding {
            kind,
            culprit,
            phase: None,
            cause: Cause::Unknown,
            since_ms: 0,
            since_step: None,
            witnesses: vec![],
            is_suspect: false,
            is_symptom: false,
            severity: Severity::Warning,
            lost_seconds: 0.0,
        }
    }

    #[test]
    fn an_alert_belongs_to_the_finding_of_its_rank_and_kind() {
        let ranks = |rank| Culprit::Ranks {
            ranks: [Rank(rank)].into_iter().collect(),
            nodes: vec!["a".into()],
        };
        let all = [
            finding(FindingKind::Hang, Culprit::Unknown),
            finding(FindingKind::Straggler, ranks(1)),
            finding(FindingKind::Straggler, ranks(3)),
        ];
        let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied()).expect("well formed");
        let straggler = ["diagnosis_straggler_ratio".to_owned()];
        let rank = labels(&[("run", "r"), ("node", "a"), ("rank", "3")]);
        assert_eq!(finding_of(&all, &rank, &straggler), Some(&all[2]));
        assert_eq!(finding_of(&all, &rank, &["train_step".to_owned()]), None);
        let hang = ["diagnosis_hang_seconds".to_owned()];
        assert_eq!(finding_of(&all, &labels(&[("run", "r")]), &hang), Some(&all[0]));
        assert_eq!(finding_of(&all, &rank, &hang), None);
    }
}
