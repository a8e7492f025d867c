//! `/api/runs`: list, submit, show, compare, stop and resume runs.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::api::checkpoints::ResumeRun;
use domain::api::runs::{RunSummary, RunView, StopAfter, StopRun, StopUnknown, UnknownAttemptView};
use domain::api::session::Role;
use domain::ident::{AttemptNo, RunId};
use domain::run::knob::Comparison;
use domain::run::spec::Spec;
use domain::run::state::Event;
use schemars::JsonSchema;
use serde::Deserialize;

use super::description::{answers, body_is_optional};
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::event_log::EventLog;
use crate::runs::{CompareError, ResumeError, RunError, Runs, Submitter};
use crate::tokens::Tokens;

/// Number of runs in a list: the default and the maximum.
const LIST_DEFAULT: u32 = 200;
const LIST_MAX: u32 = 10_000;
/// Time between SIGTERM and SIGKILL: the default and the maximum (one hour: a checkpoint may be large).
const GRACE_MS_DEFAULT: u64 = 30_000;
const GRACE_MS_MAX: u64 = 3_600_000;
/// The default for a stop after a step: time for the other ranks, and for saving, after the first rank has reached the step.
const GRACE_MS_AFTER_STEP: u64 = 120_000;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/runs",
            get_with(list, needs(Role::Viewer, "Runs, newest first")).post_with(
                submit,
                answers::<201, Json<RunView>>(needs(Role::Operator, "Submits a run")),
            ),
        )
        .api_route(
            "/api/runs/compare",
            get_with(compare, needs(Role::Viewer, "Compares two attempts")),
        )
        .api_route(
            "/api/runs/{id}",
            get_with(show, needs(Role::Viewer, "A run with its attempts")),
        )
        .api_route(
            "/api/runs/{id}/stop",
            post_with(
                stop,
                body_is_optional(needs(
                    Role::Operator,
                    "Stops a run, at once or after a step or a checkpoint",
                )),
            ),
        )
        .api_route(
            "/api/runs/{id}/resume",
            post_with(
                resume,
                body_is_optional(needs(Role::Operator, "Resumes an ended run in a new attempt")),
            ),
        )
        .api_route(
            "/api/unknown-attempts",
            get_with(
                unknown_attempts,
                needs(
                    Role::Viewer,
                    "Attempts that nodes hold and that this collector does not know",
                ),
            ),
        )
        .api_route(
            "/api/unknown-attempts/stop",
            post_with(
                stop_unknown,
                needs(Role::Operator, "Stops the unknown attempts of a run"),
            ),
        )
}

#[derive(JsonSchema, Deserialize)]
struct ListQuery {
    limit: Option<u32>,
}

async fn list(
    State(runs): State<Arc<Runs>>,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<Vec<RunSummary>>> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT).min(LIST_MAX);
    Ok(Json(runs.list(limit).await?))
}

#[derive(JsonSchema, Deserialize)]
struct SubmitQuery {
    /// The id of a run from which this specification was copied. Values that its page hides are taken from it. Only an admin and the token
    /// that submitted that run may do this; others get 403 if the specification contains hidden values.
    secrets_from: Option<String>,
}

async fn submit(
    State(runs): State<Arc<Runs>>,
    State(tokens): State<Arc<Tokens>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<SubmitQuery>,
    Json(mut spec): Json<Spec>,
) -> ApiResult<(StatusCode, Json<RunView>)> {
    if let Some(from) = &query.secrets_from {
        runs.restore_hidden_values(&mut spec, &run_id(from)?, &caller.id, caller.role)
            .await?;
    }
    let problems = spec.problems();
    if !problems.is_empty() {
        return Err(ApiError::invalid("the run cannot be submitted", problems));
    }
    events
        .audit(&caller.id, "run_submit", &spec.display_name())
        .await?;
    let by = Submitter {
        name: tokens.name(&caller.id),
        token: caller.id,
    };
    let run = runs.submit(spec, by).await?;
    Ok((StatusCode::CREATED, Json(run)))
}

async fn show(State(runs): State<Arc<Runs>>, Path(id): Path<String>) -> ApiResult<Json<RunView>> {
    Ok(Json(runs.view(&run_id(&id)?).await?))
}

async fn stop(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Option<Json<StopRun>>,
) -> ApiResult<Json<RunView>> {
    let run = runs.stored_view(&run_id(&id)?).await?;
    if run.watched {
        return Err(ApiError::conflict(format!(
            "run {id} is only watched: stop it where `lockstep exec` was started, with Ctrl-C or a signal"
        )));
    }
    if run.summary.state.is_final() {
        return Err(ApiError::conflict(format!(
            "run {id} has ended already: {}",
            run.summary.state.as_str()
        )));
    }
    let request = request.map(|Json(request)| request).unwrap_or_default();
    let after = match request.after {
        None => None,
        Some(after) => Some(runs.stop_point(&run_id(&id)?, after).await?),
    };
    let default_ms = match request.after {
        Some(StopAfter::Step) => GRACE_MS_AFTER_STEP,
        Some(StopAfter::Checkpoint) | None => GRACE_MS_DEFAULT,
    };
    events.audit(&caller.id, "run_stop", &id).await?;
    let event = Event::StopRequested {
        grace_ms: request.grace_ms.unwrap_or(default_ms).min(GRACE_MS_MAX),
        after,
    };
    runs.take(&run_id(&id)?, event).await?;
    Ok(Json(runs.view(&run_id(&id)?).await?))
}

async fn unknown_attempts(State(runs): State<Arc<Runs>>) -> Json<Vec<UnknownAttemptView>> {
    Json(runs.unknown_attempts())
}

/// Stops the unknown attempts of a run that nodes hold, and returns them.
async fn stop_unknown(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Json(asked): Json<StopUnknown>,
) -> ApiResult<Json<Vec<UnknownAttemptView>>> {
    let run = run_id(&asked.run)?;
    if runs.unknown_attempts_of(&run).is_empty() {
        return Err(ApiError::not_found(format!(
            "no node holds an unknown attempt of run {run}; GET /api/unknown-attempts lists them"
        )));
    }
    events
        .audit(&caller.id, "unknown_attempt_stop", &asked.run)
        .await?;
    let grace_ms = asked.grace_ms.unwrap_or(GRACE_MS_DEFAULT).min(GRACE_MS_MAX);
    runs.stop_unknown(&run, grace_ms).await?;
    Ok(Json(runs.unknown_attempts_of(&run)))
}

async fn resume(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Option<Json<ResumeRun>>,
) -> ApiResult<Json<RunView>> {
    let run = run_id(&id)?;
    let request = request.map(|Json(request)| request).unwrap_or_default();
    let event = runs.resumption(&run, &request).await?;
    events.audit(&caller.id, "run_resume", &id).await?;
    runs.take(&run, event).await?;
    Ok(Json(runs.view(&run).await?))
}

#[derive(JsonSchema, Deserialize)]
struct CompareQuery {
    a: String,
    b: String,
}

async fn compare(
    State(runs): State<Arc<Runs>>,
    Query(query): Query<CompareQuery>,
) -> ApiResult<Json<Comparison>> {
    let (a, b) = (attempt_of(&query.a)?, attempt_of(&query.b)?);
    Ok(Json(runs.compare((&a.0, a.1), (&b.0, b.1)).await?))
}

/// Parses `RUN` or `RUN@ATTEMPT`.
fn attempt_of(text: &str) -> ApiResult<(RunId, Option<AttemptNo>)> {
    match text.split_once('@') {
        None => Ok((run_id(text)?, None)),
        Some((run, attempt)) => {
            let attempt = attempt.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "{attempt:?} is not an attempt number; write for example {run}@1"
                ))
            })?;
            Ok((run_id(run)?, Some(AttemptNo(attempt))))
        }
    }
}

pub(super) fn run_id(id: &str) -> ApiResult<RunId> {
    RunId::new(id).map_err(|error| ApiError::bad_request(error.to_string()))
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Unknown(_) => Self::not_found(error.to_string()),
            RunError::HiddenValues { .. } => Self::forbidden(error.to_string()),
            RunError::RemovalChanged(ref removes) => {
                Self::conflict(error.to_string()).with_removes(removes.clone())
            }
            RunError::Busy(_)
            | RunError::CannotWait { .. }
            | RunError::NotInAttempt { .. }
            | RunError::HeldUnknown { .. } => Self::conflict(error.to_string()),
            RunError::State(error) => error.into(),
            RunError::Stored { .. } => Self::internal("reading a run", &error),
            RunError::Secrets(_) => Self::internal("storing a run's secrets", &error),
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

impl From<CompareError> for ApiError {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Run(error) => error.into(),
            CompareError::NoAttempt { .. } => Self::not_found(error.to_string()),
        }
    }
}
