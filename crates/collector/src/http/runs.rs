//! `/api/runs`: listing, submitting, looking at, stopping, resuming.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use domain::api::checkpoints::ResumeRun;
use domain::api::runs::{RunSummary, RunView, StopAfter, StopRun};
use domain::ident::RunId;
use domain::run::spec::Spec;
use domain::run::state::Event;
use serde::Deserialize;

use super::{ApiError, ApiResult, Caller};
use crate::app::Shared;
use crate::runs::{ResumeError, RunError};

/// Runs listed when the request does not say, and at most.
const LIST_DEFAULT: u32 = 200;
const LIST_MAX: u32 = 10_000;
/// Time between SIGTERM and SIGKILL when the request does not say, and at most (an hour: a checkpoint may be large).
const GRACE_MS_DEFAULT: u64 = 30_000;
const GRACE_MS_MAX: u64 = 3_600_000;
/// The same for a stop after a step: time for the others, and to save, once the first rank has come there.
const GRACE_MS_AFTER_STEP: u64 = 120_000;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/runs", get(list).post(submit))
        .route("/api/runs/{id}", get(show))
        .route("/api/runs/{id}/stop", post(stop))
        .route("/api/runs/{id}/resume", post(resume))
}

#[derive(Deserialize)]
struct ListQuery {
    limit: Option<u32>,
}

async fn list(State(app): State<Shared>, Query(query): Query<ListQuery>) -> ApiResult<Json<Vec<RunSummary>>> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT).min(LIST_MAX);
    Ok(Json(app.runs.list(limit).await?))
}

#[derive(Deserialize)]
struct SubmitQuery {
    /// A run whose spec this one was copied from: what its page does not show is taken from it.
    secrets_from: Option<String>,
}

async fn submit(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<SubmitQuery>,
    Json(mut spec): Json<Spec>,
) -> ApiResult<(StatusCode, Json<RunView>)> {
    if let Some(from) = &query.secrets_from {
        app.runs.fill_in(&mut spec, &run_id(from)?).await?;
    }
    let problems = spec.problems();
    if !problems.is_empty() {
        return Err(ApiError::invalid("the run cannot be submitted", problems));
    }
    app.audit(&caller.id, "run_submit", &spec.display_name()).await?;
    let run = app.runs.submit(&app, spec).await?;
    Ok((StatusCode::CREATED, Json(run)))
}

async fn show(State(app): State<Shared>, Path(id): Path<String>) -> ApiResult<Json<RunView>> {
    Ok(Json(app.runs.view(&run_id(&id)?).await?))
}

async fn stop(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    wish: Option<Json<StopRun>>,
) -> ApiResult<Json<RunView>> {
    let run = app.runs.stored_view(&run_id(&id)?).await?;
    if run.watched {
        return Err(ApiError::conflict(format!(
            "run {id} is only watched: end it where `lockstep exec` was started, by Ctrl-C or a signal"
        )));
    }
    if run.summary.state.is_final() {
        return Err(ApiError::conflict(format!(
            "run {id} has ended already: {}",
            run.summary.state.as_str()
        )));
    }
    let wish = wish.map(|Json(wish)| wish).unwrap_or_default();
    let (default_ms, after) = match wish.after {
        None => (GRACE_MS_DEFAULT, None),
        Some(after) => {
            let point = app.runs.stop_point(&run_id(&id)?, after).await?;
            let default_ms = if after == StopAfter::Step {
                GRACE_MS_AFTER_STEP
            } else {
                GRACE_MS_DEFAULT
            };
            (default_ms, Some(point))
        }
    };
    app.audit(&caller.id, "run_stop", &id).await?;
    let event = Event::StopRequested {
        grace_ms: wish.grace_ms.unwrap_or(default_ms).min(GRACE_MS_MAX),
        after,
    };
    app.runs.take(&app, &run_id(&id)?, &event, None).await?;
    Ok(Json(app.runs.view(&run_id(&id)?).await?))
}

async fn resume(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    wish: Option<Json<ResumeRun>>,
) -> ApiResult<Json<RunView>> {
    let run = run_id(&id)?;
    let wish = wish.map(|Json(wish)| wish).unwrap_or_default();
    let event = app.runs.resumption(&run, &wish).await?;
    app.audit(&caller.id, "run_resume", &id).await?;
    app.runs.take(&app, &run, &event, None).await?;
    Ok(Json(app.runs.view(&run).await?))
}

pub(super) fn run_id(id: &str) -> ApiResult<RunId> {
    RunId::new(id).map_err(|error| ApiError::bad_request(error.to_string()))
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Unknown(_) => Self::not_found(error.to_string()),
            RunError::Busy(_) | RunError::CannotWait { .. } => Self::conflict(error.to_string()),
            RunError::State(error) => error.into(),
            RunError::Stored { .. } => Self::internal("reading a run", &error),
            RunError::Secrets(_) => Self::internal("keeping a run's secrets", &error),
        }
    }
}

impl From<ResumeError> for ApiError {
    fn from(error: ResumeError) -> Self {
        match error {
            ResumeError::Run(error) => error.into(),
            ResumeError::NotEnded { .. } | ResumeError::NoCheckpoint(_) | ResumeError::Incomplete { .. } => {
                Self::conflict(error.to_string())
            }
            ResumeError::NotAbsolute(_) | ResumeError::Both => Self::bad_request(error.to_string()),
        }
    }
}
