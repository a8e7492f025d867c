//! `GET /api/nodes` and `GET /api/gpus`.

use std::sync::Arc;

use crate::app::App;
use crate::clock;
use crate::live::Live;
use crate::runs::Runs;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use domain::api::nodes::{GpuView, NodeView};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/nodes", get(nodes))
        .route("/api/gpus", get(gpus))
}

async fn nodes(State(live): State<Arc<Live>>, State(runs): State<Arc<Runs>>) -> Json<Vec<NodeView>> {
    Json(views(&runs, &live))
}

async fn gpus(State(live): State<Arc<Live>>) -> Json<Vec<GpuView>> {
    Json(live.gpus())
}

/// All nodes with the runs on them, as the API and the event stream show them.
pub(super) fn views(runs: &Runs, live: &Live) -> Vec<NodeView> {
    let running = runs.by_node();
    let mut views = live.views(clock::now_ms(), |node| {
        running.get(node).cloned().unwrap_or_default()
    });
    for unknown in runs.unknown_attempts() {
        if let Some(view) = views.iter_mut().find(|view| view.name == unknown.node) {
            view.unknown_attempts.push(unknown);
        }
    }
    views
}
