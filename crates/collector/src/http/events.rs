//! `GET /api/events`: the event log, newest first.

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

/// Default number of lines.
const LINES: u32 = 200;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/events",
        get_with(events, needs(Role::Viewer, "The event log, newest first")),
    )
}

/// The query parameters `?node=&run=&kind=&severity=&since_ms=&before_ms=&limit=`, all optional.
#[derive(Debug, JsonSchema, Deserialize)]
struct EventsQuery {
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
    Query(query): Query<EventsQuery>,
) -> ApiResult<Json<Vec<Event>>> {
    let limit = query.limit.unwrap_or(LINES);
    let filter = EventFilter {
        node: query.node,
        run: query.run,
        kind: query.kind,
        severity: query.severity,
        since_ms: query.since_ms,
        before_ms: query.before_ms,
    };
    Ok(Json(state.events(&filter, limit).await?))
}
