//! `POST /api/diagnoses/{id}/act`: carries out one of the actions that a diagnosis lists.

use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use domain::api::checkpoints::PruneLine;
use domain::api::diagnoses::{ActAnswer, ActOnDiagnosis};
use domain::api::session::Role;
use domain::ident::RunId;
use domain::incident::action::{ACTIONS_ANNOTATION, Action, Hint};
use domain::incident::{DiagnosisId, Entry, EntryKind, NamedCulprit};
use domain::series::Labels;
use store::state::incidents::Incident;

use super::diagnoses::find;
use super::inspect::rank_value;
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;
use crate::runs::{ActionError, Diagnosed, LIST_CHANGED, RunError, Runs};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/diagnoses/{id}/act",
        post_with(
            act,
            needs(
                Role::Operator,
                "Carries out an action of a diagnosis, or only shows its cost",
            ),
        ),
    )
}

async fn act(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(asked): Json<ActOnDiagnosis>,
) -> ApiResult<Json<ActAnswer>> {
    let incident = find(&app.state, &app.alerts, &id).await?;
    let not_possible = || {
        ApiError::conflict(format!(
            "the action {:?} is not possible now; GET /api/diagnoses/{id} lists the possible ones",
            asked.action
        ))
    };
    let diagnosed = diagnosed(&app.runs, &incident).ok_or_else(not_possible)?;
    let possible = app.runs.possible_actions(&diagnosed).await?;
    let action = possible
        .into_iter()
        .find(|action| action.id == asked.action)
        .ok_or_else(not_possible)?;
    if asked.dry_run {
        return Ok(Json(ActAnswer {
            action,
            done: false,
            attempt: None,
            traced: Vec::new(),
        }));
    }
    let mut target = format!("{} {id} {}", diagnosed.run, action.id);
    let is_refused = PruneLine::paths(&action.removes) != asked.removes;
    if is_refused {
        target = format!("{target} {LIST_CHANGED}");
    }
    app.events.audit(&caller.id, "diagnosis_act", &target).await?;
    if is_refused {
        return Err(RunError::RemovalChanged(action.removes).into());
    }
    let done = app.runs.carry_out(&diagnosed.run, &action, &caller.id).await?;
    let entry = Entry {
        at_ms: clock::now_ms(),
        who: caller.id,
        what: EntryKind::Acted {
            action: action.id.clone(),
            title: action.title.clone(),
            run: diagnosed.run.to_string(),
            attempt: done.change.map(|id| id.attempt),
            live: done.change.map_or(0, |id| id.live),
            prune: done.prune,
        },
    };
    app.incidents
        .append(&DiagnosisId::of(&incident.alert), &entry)
        .await?;
    Ok(Json(ActAnswer {
        action,
        done: true,
        attempt: done.change.map(|id| id.attempt),
        traced: done.traced.into_iter().map(rank_value).collect(),
    }))
}

/// Returns the actions that are possible now. The list is empty if the diagnosis is not about a run of this collector.
pub(super) async fn possible(runs: &Runs, incident: &Incident) -> ApiResult<Vec<Action>> {
    let Some(diagnosed) = diagnosed(runs, incident) else {
        return Ok(Vec::new());
    };
    match runs.possible_actions(&diagnosed).await {
        Ok(actions) => Ok(actions),
        Err(RunError::Unknown(_)) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn diagnosed(runs: &Runs, incident: &Incident) -> Option<Diagnosed> {
    let alert = &incident.alert;
    // An attempt that ended long ago must not be changed because of an old problem.
    if alert.resolved_ms.is_some() {
        return None;
    }
    let hints = alert.annotations.get(ACTIONS_ANNOTATION).unwrap_or_default();
    Some(Diagnosed {
        run: run_of(runs, &alert.labels)?,
        hints: Hint::read(hints).unwrap_or_default(),
        culprit: NamedCulprit::of(&alert.labels, incident.context.finding.as_ref()),
        fired_ms: alert.fired_ms.unwrap_or(alert.active_ms),
    })
}

/// Returns the run that an alert names, otherwise the only run on the node that it names.
fn run_of(runs: &Runs, labels: &Labels) -> Option<RunId> {
    if let Some(run) = labels.get("run") {
        return RunId::new(run).ok();
    }
    let mut by_node = runs.by_node();
    match by_node.remove(labels.get("node")?)?.as_slice() {
        [run] => RunId::new(run.clone()).ok(),
        _ => None,
    }
}

impl From<ActionError> for ApiError {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Run(error) => error.into(),
            ActionError::Knob(error) => error.into(),
            ActionError::Resume(error) => error.into(),
            ActionError::Inspect(error) => error.into(),
            ActionError::Changed(_) => Self::conflict(error.to_string()),
        }
    }
}
