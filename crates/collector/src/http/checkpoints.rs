//! `/api/runs/{id}/checkpoints`: list, pin, prune.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use domain::api::checkpoints::{CheckpointList, PinCheckpoint, PruneAnswer, PruneCheckpoints};
use domain::api::session::Role;
use domain::run::checkpoint::PINS_MAX;
use domain::run::state::Event;

use super::description::body_is_optional;
use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::event_log::EventLog;
use crate::runs::Runs;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/runs/{id}/checkpoints",
            get_with(
                list,
                needs(Role::Viewer, "Checkpoints of a run, newest step first"),
            ),
        )
        .api_route(
            "/api/runs/{id}/checkpoints/pin",
            post_with(pin, needs(Role::Operator, "Pins or unpins a checkpoint")),
        )
        .api_route(
            "/api/runs/{id}/checkpoints/prune",
            post_with(
                prune,
                body_is_optional(needs(
                    Role::Operator,
                    "Removes checkpoints of the run that no rule or pin keeps",
                )),
            ),
        )
}

async fn list(State(runs): State<Arc<Runs>>, Path(id): Path<String>) -> ApiResult<Json<CheckpointList>> {
    Ok(Json(runs.checkpoints(&run_id(&id)?).await?))
}

/// Only a known checkpoint can be pinned. Any pin can be removed, also of a checkpoint that no longer exists.
async fn pin(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<PinCheckpoint>,
) -> ApiResult<Json<CheckpointList>> {
    let run = run_id(&id)?;
    let before = runs.checkpoints(&run).await?;
    if request.pinned && before.checkpoints.iter().all(|one| one.path != request.path) {
        return Err(ApiError::not_found(format!(
            "run {id} has no checkpoint {:?}; GET /api/runs/{id}/checkpoints lists them",
            request.path
        )));
    }
    let word = if request.pinned {
        "checkpoint_pin"
    } else {
        "checkpoint_unpin"
    };
    events
        .audit(&caller.id, word, &format!("{id} {}", request.path))
        .await?;
    let event = Event::CheckpointPinned {
        path: request.path.clone(),
        pinned: request.pinned,
    };
    runs.take(&run, event).await?;
    let after = runs.checkpoints(&run).await?;
    let is_pinned = after
        .checkpoints
        .iter()
        .any(|one| one.path == request.path && one.pinned);
    if request.pinned && !is_pinned {
        return Err(ApiError::conflict(format!(
            "the checkpoint could not be pinned: it no longer exists, or run {id} already has {PINS_MAX} pins"
        )));
    }
    Ok(Json(after))
}

async fn prune(
    State(runs): State<Arc<Runs>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Option<Json<PruneCheckpoints>>,
) -> ApiResult<Json<PruneAnswer>> {
    let request = request.map(|Json(request)| request).unwrap_or_default();
    Ok(Json(runs.prune(&run_id(&id)?, &request, &caller.id).await?))
}
