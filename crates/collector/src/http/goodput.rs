//! `GET /api/goodput`: how much of the time for which runs held GPUs was productive.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::State;
use domain::api::goodput::Goodput;
use domain::api::session::Role;

use super::description::takes;
use super::query::Params;
use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::runs::{GoodputError, Runs};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/goodput",
        get_with(
            goodput,
            takes(
                &["start", "end", "run"],
                needs(Role::Viewer, "Productive and lost time of runs, by cause"),
            ),
        ),
    )
}

async fn goodput(State(runs): State<Arc<Runs>>, params: Params) -> ApiResult<Json<Goodput>> {
    let run = params.get("run").map(run_id).transpose()?;
    let (start_ms, end_ms) = (params.time("start")?, params.time("end")?);
    Ok(Json(runs.goodput(run.as_ref(), start_ms, end_ms).await?))
}

impl From<GoodputError> for ApiError {
    fn from(error: GoodputError) -> Self {
        match error {
            GoodputError::Period => Self::bad_request(error.to_string()),
            GoodputError::Run(error) => error.into(),
            GoodputError::Query(error) => error.into(),
        }
    }
}
