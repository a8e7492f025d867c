//! `GET /api/stream`: one WebSocket a browser tab. What the pages show comes unasked; queries, logs and runs are watched.
//!
//! ```text
//! changes ─▶ dirty lists ─┐ every 250 ms                              ┌▶ outbox (bounded) ─▶ writer ─▶ tab
//! requests ─▶ watches ────┴▶ due queries ─▶ coalesce ─▶ evaluator ─▶ frames
//! ```
//! A tab that does not read fills its outbox and is cut off with a reason; it connects again and starts from whole lists. The
//! collector never waits for a browser.

mod coalesce;
mod credential;
mod frame;
mod outbox;
mod seats;
mod sources;
mod tab;
mod watch;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::any;

use self::credential::Credential;
use self::seats::Seats;
use self::sources::Sources;
use super::{ApiResult, Caller};
use crate::app::App;

pub(crate) use coalesce::Coalesced;

/// The largest message from a browser: a query of a few kilobytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/stream", any(open))
        .layer(Extension(Seats::default()))
        .layer(Extension(Coalesced::default()))
}

async fn open(
    State(sources): State<Sources>,
    Extension(seats): Extension<Seats>,
    Extension(caller): Extension<Caller>,
    Extension(coalesced): Extension<Coalesced>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> ApiResult<Response> {
    let seat = seats.take(&sources.metrics, &caller.id)?;
    let credential = Credential::of(&headers);
    let upgrade = upgrade
        .max_message_size(REQUEST_BYTES_MAX)
        .max_frame_size(REQUEST_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        tab::serve(sources, coalesced, credential, socket).await;
        drop(seat);
    }))
}
