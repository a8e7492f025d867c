//! Requests bursts when an alert fires: the last minutes of a node's GPUs at ten samples per second. Nodes keep these samples and send them
//! only on request.

use domain::api::alerts::AlertView;
use domain::event::Severity;
use domain::ident::{NodeName, RunId};

use super::engine::Engine;

/// The annotation of a rule that enables or disables it: `true` or `false`. Without it, critical alerts request bursts.
const ANNOTATION: &str = "burst";
/// Maximum number of nodes requested for an alert about a whole run. What happened to all nodes shows on these.
const NODES_OF_A_RUN_MAX: usize = 16;

/// Requests a burst from the node that an alert names, otherwise from the nodes of the run that it names. Does not wait for the nodes.
pub(super) async fn request(engine: &Engine, alert: &AlertView) {
    if !wants(alert) {
        return;
    }
    for node in concerned(engine, alert).await {
        engine.runs.agents.request_burst(&node, &alert.rule);
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
    // A run that is unknown or cannot be read has no nodes to request bursts from.
    let mut nodes = engine.runs.nodes_of(&run).await.unwrap_or_default();
    nodes.truncate(NODES_OF_A_RUN_MAX);
    nodes
}
