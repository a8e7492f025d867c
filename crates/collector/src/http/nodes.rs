//! `GET /api/nodes` and `GET /api/gpus`.

use std::sync::Arc;

use super::table::needs;
use crate::app::App;
use crate::clock;
use crate::live::Live;
use crate::runs::Runs;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::State;
use domain::api::nodes::{GpuView, NodeView};
use domain::api::session::Role;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route("/api/nodes", get_with(nodes, needs(Role::Viewer, "All nodes")))
        .api_route("/api/gpus", get_with(gpus, needs(Role::Viewer, "All GPUs")))
}

async fn nodes(State(live): State<Arc<Live>>, State(runs): State<Arc<Runs>>) -> Json<Vec<NodeView>> {
    Json(views(&runs, &live))
}

async fn gpus(State(live): State<Arc<Live>>) -> Json<Vec<GpuView>> {
    Json(live.gpus())
}

/// Returns all nodes with the runs on them, as the API and the event stream show them.
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
