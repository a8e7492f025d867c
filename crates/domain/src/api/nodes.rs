//! `GET /api/nodes`, `GET /api/gpus`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::runs::UnknownAttemptView;
use crate::time::TimestampMs;
use crate::topology::{Gpu, Inventory};

/// Whether a node's agent is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Connected.
    Up,
    /// Not heard for a while.
    Down,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its name, the label `node`.
    pub name: String,
    /// Whether its agent is heard.
    pub state: NodeState,
    /// When its agent was last heard.
    pub seen_ms: TimestampMs,
    /// The agent's version.
    pub agent_version: String,
    /// The agent's clock minus the collector's, as seen at the hello.
    pub clock_offset_ms: i64,
    /// Hardware and software.
    pub inventory: Inventory,
    /// Runs on it now.
    pub runs: Vec<String>,
    /// Attempts it holds that this collector does not know. It gets no run until they are over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_attempts: Vec<UnknownAttemptView>,
}

/// A GPU of the cluster, flat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuView {
    /// The node it sits in.
    pub node: String,
    /// What it is.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Whether it is simulated.
    pub simulated: bool,
}
