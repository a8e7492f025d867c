//! Records in a run that its loss diverges, before anyone sees the alert: an action of the alert then resumes from a good checkpoint.

use domain::api::alerts::AlertView;
use domain::ident::{Rank, RunId};
use tracing::warn;

use super::engine::Engine;

/// The annotation with which a rule says that the loss of the run in its labels diverges.
const ANNOTATION: &str = "loss_diverges";

/// Records the divergence if the rule of the alert requests it.
pub(super) async fn note(engine: &Engine, alert: &AlertView) {
    if alert.annotations.get(ANNOTATION) != Some("true") {
        return;
    }
    let Some(run) = alert.labels.get("run").and_then(|run| RunId::new(run).ok()) else {
        return;
    };
    let rank = alert.labels.get("rank").and_then(|rank| rank.parse().ok());
    if let Err(error) = engine.runs.note_divergence(&run, rank.map(Rank)).await {
        warn!(%run, %error, "a divergence cannot be recorded");
    }
}
