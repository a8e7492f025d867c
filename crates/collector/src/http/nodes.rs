//! `GET /api/nodes` and `GET /api/gpus`.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use domain::api::nodes::{GpuView, NodeView};

use crate::Shared;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/nodes", get(nodes))
        .route("/api/gpus", get(gpus))
}

async fn nodes(State(app): State<Shared>) -> Json<Vec<NodeView>> {
    Json(views(&app).await)
}

async fn gpus(State(app): State<Shared>) -> Json<Vec<GpuView>> {
    Json(app.live.gpus())
}

/// All nodes with the runs on them, as the API and the event stream show them.
pub(super) async fn views(app: &Shared) -> Vec<NodeView> {
    let running = app.runs.by_node();
    let mut views = app.live.views(app.now_ms(), |node| {
        running.get(node).cloned().unwrap_or_default()
    });
    for unknown in app.runs.unknown_attempts() {
        if let Some(view) = views.iter_mut().find(|view| view.name == unknown.node) {
            view.unknown_attempts.push(unknown);
        }
    }
    views
}
