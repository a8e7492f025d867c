//! `GET /api/runs/{id}/memory`: the GPU memory of a run, measured and planned.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, State};
use domain::api::runs::RunMemory;
use domain::api::session::Role;

use super::ApiResult;
use super::runs::run_id;
use super::table::needs;
use crate::app::App;
use crate::runs::Runs;

pub(super) fn routes() -> ApiRouter<App> {
    let summary = "The measured GPU memory of the current attempt beside its plan";
    ApiRouter::new().api_route(
        "/api/runs/{id}/memory",
        get_with(memory, needs(Role::Viewer, summary)),
    )
}

async fn memory(State(runs): State<Arc<Runs>>, Path(id): Path<String>) -> ApiResult<Json<RunMemory>> {
    Ok(Json(runs.memory_beside_plan(&run_id(&id)?).await?))
}
