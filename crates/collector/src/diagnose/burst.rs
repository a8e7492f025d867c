//! What an alert that fires asks nodes for: the last minutes of their GPUs at ten readings a second, which they keep and send to nobody
//! unasked.

use domain::api::alerts::AlertView;
use domain::event::Severity;
use domain::ident::{NodeName, RunId};

use super::engine::Engine;

/// A rule's word on it: `true` or `false`. Without one, critical alerts ask.
const ANNOTATION: &str = "burst";
/// Nodes asked for one alert of a whole run; what happened to all of them shows on these.
const NODES_OF_A_RUN_MAX: usize = 16;

/// Asks the node an alert names, else the nodes of the run it names. Waits for no node.
pub(super) async fn ask(engine: &Engine, alert: &AlertView) {
    if !wants(alert) {
        return;
    }
    for node in concerned(engine, alert).await {
        engine.runs.agents.want_burst(&node, &alert.rule);
    }
}

fn wants(alert: &AlertView) -> bool {
    match alert.annotations.get(ANNOTATION) {
        Some("true") => true,
        Some("false") => false,
        _ => alert.severity == Severity::Critical,
    }
}

async fn concerned(engine: &Engine, alert: &AlertView) -> Vec<NodeName> {
    if let Some(node) = alert.labels.get("node") {
        return NodeName::new(node).into_iter().collect();
    }
    let Some(run) = alert.labels.get("run").and_then(|run| RunId::new(run).ok()) else {
        return Vec::new();
    };
    // A run that is not ours, or cannot be read, has no nodes to ask.
    let mut nodes = engine.runs.nodes_of(&run).await.unwrap_or_default();
    nodes.truncate(NODES_OF_A_RUN_MAX);
    nodes
}
