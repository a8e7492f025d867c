//! `/api/runs/{id}/checkpoints`: listing, pinning, pruning.

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use domain::api::checkpoints::{CheckpointList, PinCheckpoint, PruneAnswer, PruneCheckpoints};
use domain::run::checkpoint::PINS_MAX;
use domain::run::state::Event;

use super::runs::run_id;
use super::{ApiError, ApiResult, Caller};
use crate::app::Shared;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/runs/{id}/checkpoints", get(list))
        .route("/api/runs/{id}/checkpoints/pin", post(pin))
        .route("/api/runs/{id}/checkpoints/prune", post(prune))
}

async fn list(State(app): State<Shared>, Path(id): Path<String>) -> ApiResult<Json<CheckpointList>> {
    Ok(Json(app.runs.checkpoints(&app, &run_id(&id)?).await?))
}

/// Only what is known can be pinned; any pin can be taken away, also of what is not seen any more.
async fn pin(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wish): Json<PinCheckpoint>,
) -> ApiResult<Json<CheckpointList>> {
    let run = run_id(&id)?;
    let before = app.runs.checkpoints(&app, &run).await?;
    if wish.pinned && before.checkpoints.iter().all(|one| one.path != wish.path) {
        return Err(ApiError::not_found(format!(
            "run {id} has no checkpoint {:?}; GET /api/runs/{id}/checkpoints lists them",
            wish.path
        )));
    }
    let word = if wish.pinned {
        "checkpoint_pin"
    } else {
        "checkpoint_unpin"
    };
    app.audit(&caller.id, word, &format!("{id} {}", wish.path))
        .await?;
    let event = Event::CheckpointPinned {
        path: wish.path.clone(),
        pinned: wish.pinned,
    };
    app.runs.take(&app, &run, event).await?;
    let after = app.runs.checkpoints(&app, &run).await?;
    let is_pinned = after
        .checkpoints
        .iter()
        .any(|one| one.path == wish.path && one.pinned);
    if wish.pinned && !is_pinned {
        return Err(ApiError::conflict(format!(
            "it could not be pinned: it is gone, or run {id} has {PINS_MAX} pins already"
        )));
    }
    Ok(Json(after))
}

async fn prune(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    wish: Option<Json<PruneCheckpoints>>,
) -> ApiResult<Json<PruneAnswer>> {
    let wish = wish.map(|Json(wish)| wish).unwrap_or_default();
    if !wish.dry_run {
        let rule = wish
            .keep_last
            .map_or_else(String::new, |last| format!(" keep_last={last}"));
        app.audit(&caller.id, "checkpoint_prune", &format!("{id}{rule}"))
            .await?;
    }
    Ok(Json(app.runs.prune(&app, &run_id(&id)?, &wish).await?))
}
