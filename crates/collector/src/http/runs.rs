//! `/api/runs`: listing, submitting, looking at, stopping, resuming, and reading logs.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use domain::api::checkpoints::ResumeRun;
use domain::api::runs::{LogPiece, LogSource, RunSummary, RunView, StopAfter, StopRun};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::spec::Spec;
use domain::run::state::Event;
use serde::Deserialize;

use super::{ApiError, ApiResult, Caller};
use crate::app::Shared;
use crate::runs::{LogError, PIECE_BYTES_MAX, ResumeError, RunError};

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
        .route("/api/runs/{id}/logs", get(logs))
}

#[derive(Deserialize)]
struct ListQuery {
    limit: Option<u32>,
}

async fn list(State(app): State<Shared>, Query(query): Query<ListQuery>) -> ApiResult<Json<Vec<RunSummary>>> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT).min(LIST_MAX);
    Ok(Json(app.runs.list(limit).await?))
}

async fn submit(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Json(spec): Json<Spec>,
) -> ApiResult<(StatusCode, Json<RunView>)> {
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

#[derive(Deserialize)]
struct LogsQuery {
    attempt: Option<u32>,
    node: Option<String>,
    rank: Option<u32>,
    stream: Option<String>,
    offset: Option<u64>,
    limit: Option<u64>,
}

/// Without a rank it is the launcher's log; without a node, that of the rank's node or the first.
async fn logs(
    State(app): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query<LogsQuery>,
) -> ApiResult<Json<LogPiece>> {
    let run = app.runs.stored_view(&run_id(&id)?).await?;
    let attempt = AttemptNo(query.attempt.unwrap_or(run.summary.attempt.0));
    let found = run.attempts.iter().find(|view| view.attempt == attempt);
    let Some(found) = found else {
        return Err(ApiError::not_found(format!("run {id} has no attempt {attempt}")));
    };
    let rank = query.rank.map(Rank);
    let has_rank =
        |rank: Rank| move |node: &&domain::api::runs::NodeTaskView| node.ranks.iter().any(|r| r.rank == rank);
    let node = match (query.node, rank) {
        (Some(node), _) => Some(node),
        (None, Some(rank)) => found
            .nodes
            .iter()
            .find(has_rank(rank))
            .map(|node| node.node.clone()),
        (None, None) => found.nodes.first().map(|node| node.node.clone()),
    };
    let stream = query.stream.unwrap_or_else(|| "stdout".to_owned());
    // Before it is placed a run has no nodes, and its logs are empty.
    let Some(node) = node else {
        let source = LogSource {
            attempt,
            node: String::new(),
            rank,
            stream,
        };
        return Ok(Json(LogPiece {
            source,
            offset: 0,
            next_offset: 0,
            length: 0,
            text: String::new(),
        }));
    };
    let source = LogSource {
        attempt,
        node,
        rank,
        stream,
    };
    let (offset, limit) = (query.offset.unwrap_or(0), query.limit.unwrap_or(PIECE_BYTES_MAX));
    Ok(Json(app.runs.log(&run_id(&id)?, &source, offset, limit).await?))
}

fn run_id(id: &str) -> ApiResult<RunId> {
    RunId::new(id).map_err(|error| ApiError::bad_request(error.to_string()))
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Unknown(_) => Self::not_found(error.to_string()),
            RunError::Busy(_) | RunError::CannotWait { .. } => Self::conflict(error.to_string()),
            RunError::State(error) => error.into(),
            RunError::Stored { .. } => Self::internal("reading a run", &error),
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

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Name => Self::not_found(error.to_string()),
            LogError::Io(_) => Self::internal("reading a log", &error),
        }
    }
}
