//! `GET /api/stream`: one WebSocket per browser tab. Lists are pushed without a request; queries, logs and runs are pushed when they are
//! watched.
//!
//! ```text
//! changes ─▶ lists, read once for all tabs ─┐ every 250 ms                              ┌▶ outbox (bounded) ─▶ writer ─▶ tab
//! requests ─▶ watches ──────────────────────┴▶ due queries ─▶ coalesce ─▶ evaluator ─▶ frames
//! ```
//! A tab that does not read fills its outbox and is disconnected with a reason. It reconnects and starts from complete lists. The collector
//! never waits for a browser.

mod coalesce;
mod credential;
mod frame;
mod lists;
mod outbox;
mod recent_results;
mod slots;
mod sources;
mod tab;
mod versioned_list;
mod watch;

use aide::openapi::PathItem;
use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Extension, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::any;
use domain::api::session::Role;
use domain::api::stream::FrameEncoding;
use serde::Deserialize;

use self::credential::Credential;
use self::lists::{Lists, TabLists};
use self::slots::StreamSlots;
use self::sources::Sources;
use self::versioned_list::ListForm;
use super::description::{opens_websocket, operation, takes};
use super::table::needs;
use super::{ApiResult, Caller};
use crate::app::App;

pub(crate) use coalesce::Coalesced;

/// Maximum size of a message from a browser, in bytes. A query has a few kilobytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/stream", any(open))
        .layer(Extension(StreamSlots::default()))
        .layer(Extension(Shared::default()))
}

/// Describes the stream. Its messages are not HTTP, so the description contains only its parameters.
pub(super) fn description() -> PathItem {
    let summary =
        "A WebSocket with the lists of the dashboard, and the queries, logs and runs that the client watches";
    let parameters = takes(&["lists", "frames"], needs(Role::Viewer, summary));
    PathItem {
        get: Some(operation(opens_websocket(parameters))),
        ..PathItem::default()
    }
}

/// What all tabs share.
#[derive(Clone, Default)]
struct Shared {
    coalesced: Coalesced,
    lists: Lists,
}

/// The parameters of the stream.
#[derive(Deserialize)]
struct StreamParams {
    #[serde(default)]
    lists: ListForm,
    #[serde(default)]
    frames: FrameEncoding,
}

async fn open(
    State(sources): State<Sources>,
    Extension(slots): Extension<StreamSlots>,
    Extension(caller): Extension<Caller>,
    Extension(shared): Extension<Shared>,
    Query(params): Query<StreamParams>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> ApiResult<Response> {
    let slot = slots.take(&sources.metrics, &caller.id)?;
    let credential = Credential::of(&headers);
    let lists = TabLists::new(shared.lists, params.lists);
    let upgrade = upgrade
        .max_message_size(REQUEST_BYTES_MAX)
        .max_frame_size(REQUEST_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        tab::serve(
            sources,
            shared.coalesced,
            lists,
            credential,
            params.frames,
            socket,
        )
        .await;
        drop(slot);
    }))
}
