//! `GET /api/runs/{id}/findings`: the findings of the analysers.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, State};
use domain::api::findings::RunFindings;
use domain::api::session::Role;

use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::analysis::Findings;
use crate::app::App;
use crate::runs::Runs;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/runs/{id}/findings",
        get_with(
            findings,
            needs(
                Role::Viewer,
                "Findings about a run with their witnesses, root causes first",
            ),
        ),
    )
}

async fn findings(
    State(runs): State<Arc<Runs>>,
    State(findings): State<Arc<Findings>>,
    Path(id): Path<String>,
) -> ApiResult<Json<RunFindings>> {
    let run = run_id(&id)?;
    // An unknown run is an error, not a healthy run.
    let _there_is_one = runs.view(&run).await.map_err(ApiError::from)?;
    Ok(Json(findings.of(&run)))
}
