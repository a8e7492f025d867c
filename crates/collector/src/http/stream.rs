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
mod tab;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::any;

use self::credential::Credential;
use super::{ApiError, ApiResult};
use crate::Shared;

pub(crate) use coalesce::Coalesced;

/// Tabs at once; each holds some queries a second.
const TABS_MAX: usize = 512;
/// The largest message from a browser: a query of a few kilobytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/stream", any(open))
        .layer(Extension(Tabs::default()))
        .layer(Extension(Coalesced::default()))
}

async fn open(
    State(app): State<Shared>,
    Extension(tabs): Extension<Tabs>,
    Extension(coalesced): Extension<Coalesced>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> ApiResult<Response> {
    let seat = tabs.take(&app)?;
    let credential = Credential::of(&headers);
    let upgrade = upgrade
        .max_message_size(REQUEST_BYTES_MAX)
        .max_frame_size(REQUEST_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        tab::serve(app, coalesced, credential, socket).await;
        drop(seat);
    }))
}

/// Counts the tabs that are open.
#[derive(Clone, Default)]
struct Tabs(Arc<AtomicUsize>);

impl Tabs {
    fn take(&self, app: &Shared) -> ApiResult<Seat> {
        let took = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < TABS_MAX).then_some(open + 1)
        });
        took.map_err(|open| ApiError::unavailable(format!("{open} tabs are open already; close some")))?;
        app.metrics.tabs.inc();
        Ok(Seat {
            open: Arc::clone(&self.0),
            app: app.clone(),
        })
    }
}

struct Seat {
    open: Arc<AtomicUsize>,
    app: Shared,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.app.metrics.tabs.dec();
    }
}
