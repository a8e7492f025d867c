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
