//! `GET /api/runs/{id}/actions`: what people did to a run.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, State};
use domain::api::runs::RunAction;
use domain::api::session::Role;
use domain::ident::RunId;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::audit::AuditEntry;

use super::ApiResult;
use super::runs::run_id;
use super::table::needs;
use crate::app::App;
use crate::runs::Runs;

/// Maximum number of actions in an answer. A run that people changed more often has its oldest actions cut off.
const ACTIONS_MAX: u32 = 500;
/// The audit log's name of a submission. Its target is the name of the run, which may look like the id of another run.
const SUBMISSION: &str = "run_submit";

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/runs/{id}/actions",
        get_with(
            list,
            needs(Role::Viewer, "What people did to a run, newest first"),
        ),
    )
}

async fn list(
    State(state): State<StateStore>,
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
) -> ApiResult<Json<Vec<RunAction>>> {
    let run = run_id(&id)?;
    // An unknown run is an error, not a run without actions.
    let submitted_ms = runs.view(&run).await?.summary.submitted_ms;
    let period = (submitted_ms, TimestampMs::MAX);
    let entries = state.audit_of(&[run.as_str()], period, ACTIONS_MAX).await?;
    let actions = entries.into_iter().filter(|entry| entry.what != SUBMISSION);
    Ok(Json(actions.map(|entry| action(entry, &run)).collect()))
}

/// Converts for example `run_apply` and `demo-abc123 num_workers=4` to `run apply: num_workers=4`.
fn action(entry: AuditEntry, run: &RunId) -> RunAction {
    let words = entry.what.replace('_', " ");
    let details = entry.target.strip_prefix(run.as_str()).unwrap_or_default().trim();
    RunAction {
        at_ms: entry.at_ms,
        who: entry.who,
        text: if details.is_empty() {
            words
        } else {
            format!("{words}: {details}")
        },
        kind: entry.what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_shown_without_the_run() {
        let run = RunId::new("demo-abc123").expect("a run's id");
        for (what, target, expected) in [
            ("run_stop", "demo-abc123", "run stop"),
            (
                "run_apply",
                "demo-abc123 lr=0.1 amp=off",
                "run apply: lr=0.1 amp=off",
            ),
        ] {
            let entry = AuditEntry {
                at_ms: 7,
                who: "ann".to_owned(),
                what: what.to_owned(),
                target: target.to_owned(),
            };
            let action = action(entry, &run);
            assert_eq!((action.text.as_str(), action.kind.as_str()), (expected, what));
        }
    }
}
