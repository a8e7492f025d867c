//! `POST /api/runs/check`: checks a specification without starting a run.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Json;
use axum::extract::{DefaultBodyLimit, State};
use domain::api::runs::{CheckedSpec, SpecDraft};
use domain::api::session::Role;

use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::live::Live;
use crate::runs::Runs;
use crate::spec_draft::{self, Cluster};

/// Maximum size of a draft in bytes: twice the arguments, variables and settings that a run may have. A form sends one after each pause in
/// typing, so the limit is smaller than that of other requests.
const BODY_BYTES_MAX: usize = 256 << 10;

pub(super) fn routes() -> ApiRouter<App> {
    let summary = "Checks a specification and converts it between JSON and TOML; starts nothing";
    ApiRouter::new()
        .api_route("/api/runs/check", post_with(check, needs(Role::Viewer, summary)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// A draft with errors is answered with 200: the errors are the result.
async fn check(
    State(live): State<Arc<Live>>,
    State(runs): State<Arc<Runs>>,
    Json(draft): Json<SpecDraft>,
) -> ApiResult<Json<CheckedSpec>> {
    let cluster = Cluster {
        smallest_gpu: live.smallest_gpu(),
        place: &|spec| runs.placement_preview(spec),
    };
    let checked = spec_draft::check(draft, &cluster);
    Ok(Json(checked.map_err(ApiError::bad_request)?))
}
