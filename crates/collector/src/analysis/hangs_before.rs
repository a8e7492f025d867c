//! Hangs that were found before the start of the collector.

use std::collections::{BTreeMap, HashMap};

use domain::api::alerts::AlertView;
use domain::diagnosis::finding::{Finding, FindingKind};
use domain::ident::{AttemptNo, RunId};
use domain::incident::{Context, DiagnosisId};
use store::StateStore;
use store::state::StateError;

/// The hang of each run, with the attempt in which it was found.
pub(crate) type HangsBefore = HashMap<RunId, (AttemptNo, Finding)>;

/// Returns the hangs about which an alert is active. The analysers keep them: what they knew of the ranks is lost.
///
/// # Errors
/// Returns an error if the store cannot be read.
pub(crate) async fn hangs_before(state: &StateStore) -> Result<HangsBefore, StateError> {
    let (alerts, contexts) = (state.active_alerts().await?, state.active_contexts().await?);
    Ok(hangs(&alerts, &contexts))
}

fn hangs(alerts: &[AlertView], contexts: &BTreeMap<DiagnosisId, Context>) -> HangsBefore {
    let hang = |alert: &AlertView| {
        let run = RunId::new(alert.labels.get("run")?).ok()?;
        let context = contexts.get(&DiagnosisId::of(alert))?;
        let finding = context.finding.as_ref()?;
        let found = (context.attempt?, finding.clone());
        (finding.kind == FindingKind::Hang).then_some((run, found))
    };
    alerts.iter().filter_map(hang).collect()
}

#[cfg(test)]
mod tests {
    use domain::api::alerts::AlertState;
    use domain::diagnosis::finding::{Cause, Culprit};
    use domain::event::Severity;
    use domain::incident::Confidence;
    use domain::series::Labels;

    use super::*;

    fn alert(run: &str) -> AlertView {
        AlertView {
            state: AlertState::Firing,
            fingerprint: run.to_owned(),
            rule: "RankStuck".to_owned(),
            severity: Severity::Critical,
            annotations: Labels::empty(),
            labels: Labels::new([("alertname", "RankStuck"), ("run", run)]).expect("well formed"),
            value: "7".to_owned(),
            active_ms: 5,
            fired_ms: Some(5),
            resolved_ms: None,
            evidence: Vec::new(),
        }
    }

    fn context(kind: FindingKind) -> Context {
        let finding = Finding {
            kind,
            culprit: Culprit::Unknown,
            phase: None,
            cause: Cause::Unknown,
            since_ms: 1,
            since_step: None,
            witnesses: Vec::new(),
            is_suspect: false,
            is_symptom: false,
            severity: Severity::Critical,
            lost_seconds: 7.0,
        };
        Context {
            attempt: Some(AttemptNo(2)),
            confidence: Confidence::of_finding(&finding),
            finding: Some(finding),
        }
    }

    #[test]
    fn the_hangs_of_active_alerts_are_known_after_a_restart() {
        let alerts = ["hangs", "slow", "unknown"].map(alert);
        let contexts = BTreeMap::from([
            (DiagnosisId::of(&alerts[0]), context(FindingKind::Hang)),
            (DiagnosisId::of(&alerts[1]), context(FindingKind::Straggler)),
        ]);
        let found = hangs(&alerts, &contexts);
        let runs: Vec<_> = found
            .iter()
            .map(|(run, (no, finding))| (run.as_str(), no.0, &finding.kind))
            .collect();
        assert_eq!(runs, [("hangs", 2, &FindingKind::Hang)]);
    }
}
