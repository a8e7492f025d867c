//! `GET /api/events`: what happened, newest first.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Query, State};
use domain::api::session::Role;
use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use schemars::JsonSchema;
use serde::Deserialize;
use store::StateStore;
use store::state::events::EventFilter;

use super::ApiResult;
use super::table::needs;
use crate::app::App;

/// Lines when nobody says how many.
const LINES: u32 = 200;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/events",
        get_with(events, needs(Role::Viewer, "The event log, newest first")),
    )
}

/// `?node=&run=&kind=&severity=&since_ms=&before_ms=&limit=`, all optional.
#[derive(Debug, JsonSchema, Deserialize)]
struct Wanted {
    node: Option<String>,
    run: Option<String>,
    kind: Option<String>,
    severity: Option<Severity>,
    since_ms: Option<TimestampMs>,
    before_ms: Option<TimestampMs>,
    limit: Option<u32>,
}

async fn events(
    State(state): State<StateStore>,
    Query(wanted): Query<Wanted>,
) -> ApiResult<Json<Vec<Event>>> {
    let limit = wanted.limit.unwrap_or(LINES);
    let filter = EventFilter {
        node: wanted.node,
        run: wanted.run,
        kind: wanted.kind,
        severity: wanted.severity,
        since_ms: wanted.since_ms,
        before_ms: wanted.before_ms,
    };
    Ok(Json(state.events(&filter, limit).await?))
}
