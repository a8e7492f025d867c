//! `/api/diagnoses`: alerts that fire or have fired, with culprit, cause and advice; and a single diagnosis with its details.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, Query, State};
use domain::api::alerts::{AlertState, Diagnosis};
use domain::api::diagnoses::{DiagnosisState, DiagnosisView};
use domain::api::session::Role;
use domain::diagnosis::finding::Witness;
use domain::incident::{DiagnosisId, charts};
use schemars::JsonSchema;
use serde::Deserialize;
use store::StateStore;
use store::state::incidents::Incident;

use super::table::needs;
use super::{ApiError, ApiResult, actions};
use crate::app::App;
use crate::clock;
use crate::diagnose::{Alerts, diagnosis};
use crate::incidents::{changed_before, similar, timeline};

/// Number of ended diagnoses in an answer: the default and the maximum.
const HISTORY_DEFAULT: u32 = 100;
const HISTORY_MAX: u32 = 1_000;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/diagnoses",
            get_with(
                list,
                needs(
                    Role::Viewer,
                    "Firing diagnoses, most severe and oldest first, or ended ones, latest first",
                ),
            ),
        )
        .api_route(
            "/api/diagnoses/{id}",
            get_with(
                show,
                needs(
                    Role::Viewer,
                    "One diagnosis with its evidence, context and history",
                ),
            ),
        )
}

#[derive(JsonSchema, Deserialize)]
struct ListQuery {
    /// Which diagnoses to list. Default: `firing`.
    #[serde(default)]
    state: DiagnosisState,
    /// List only diagnoses of this run.
    run: Option<String>,
    /// Maximum number of ended diagnoses. Default: 100.
    limit: Option<u32>,
}

async fn list(
    State(state): State<StateStore>,
    State(alerts): State<Alerts>,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<Vec<Diagnosis>>> {
    let mut all = match query.state {
        DiagnosisState::Firing | DiagnosisState::All => alerts.diagnoses(),
        DiagnosisState::Resolved => Vec::new(),
    };
    if let Some(run) = &query.run {
        all.retain(|diagnosis| diagnosis.run.as_ref() == Some(run));
    }
    if query.state != DiagnosisState::Firing {
        let limit = query.limit.unwrap_or(HISTORY_DEFAULT).min(HISTORY_MAX);
        let ended = state.resolved_incidents(query.run.as_deref(), limit).await?;
        all.extend(ended.iter().map(diagnosis));
    }
    Ok(Json(all))
}

async fn show(State(app): State<App>, Path(id): Path<String>) -> ApiResult<Json<DiagnosisView>> {
    view(&app, &id).await
}

/// Returns one diagnosis with its details.
pub(super) async fn view(app: &App, id: &str) -> ApiResult<Json<DiagnosisView>> {
    let (state, incidents) = (&app.state, &app.incidents);
    let incident = find(state, &app.alerts, id).await?;
    let now_ms = clock::now_ms();
    let mut shown = diagnosis(&incident);
    if shown.alert.state == AlertState::Firing {
        let silences = incidents.silences();
        shown.handling.silenced_until_ms = silences.silenced_until(&shown.alert.labels, now_ms);
    }
    let witnesses = incident
        .context
        .finding
        .iter()
        .flat_map(|finding| &finding.witnesses);
    let why = std::iter::once(shown.cause.clone())
        .chain(witnesses.map(Witness::words))
        .filter(|sentence| !sentence.is_empty());
    Ok(Json(DiagnosisView {
        why: why.collect(),
        charts: charts(&shown.alert, &shown.who, now_ms),
        changed_before: changed_before(state, &shown, incident.context.finding.as_ref()).await?,
        similar: similar(state, &app.runs, &shown.alert).await?,
        actions: actions::possible(&app.runs, &incident).await?,
        timeline: timeline(&app.runs, &incident.entries).await,
        diagnosis: shown,
    }))
}

/// Returns the stored diagnosis; while it fires, with the current alert of its rule.
pub(super) async fn find(state: &StateStore, alerts: &Alerts, id: &str) -> ApiResult<Incident> {
    let id: DiagnosisId = id.parse().map_err(|_| unknown(id))?;
    let mut incident = state
        .incident(&id)
        .await?
        .ok_or_else(|| unknown(&id.to_string()))?;
    if let Some((alert, context)) = alerts.firing(&id) {
        (incident.alert, incident.context) = (alert, context);
    }
    Ok(incident)
}

pub(super) fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!(
        "there is no diagnosis {id:?}; GET /api/diagnoses?state=all lists them"
    ))
}
