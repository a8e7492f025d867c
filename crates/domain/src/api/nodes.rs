//! `GET /api/nodes`, `GET /api/gpus`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::runs::UnknownAttemptView;
use crate::time::TimestampMs;
use crate::topology::{Gpu, Inventory};

/// Connection state of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// The agent is connected.
    Up,
    /// The agent has been disconnected for a while.
    Down,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Name of the node, value of the label `node`.
    pub name: String,
    /// Connection state of its agent.
    pub state: NodeState,
    /// When the collector last received a message from the agent.
    pub seen_ms: TimestampMs,
    /// Version of the agent.
    pub agent_version: String,
    /// Agent's clock minus the collector's clock, measured at the start of the connection.
    pub clock_offset_ms: i64,
    /// Hardware and software of the node.
    pub inventory: Inventory,
    /// Runs on the node now.
    pub runs: Vec<String>,
    /// Attempts on the node that this collector does not know. The node gets no new run until they have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_attempts: Vec<UnknownAttemptView>,
}

/// One GPU of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuView {
    /// Node of the GPU.
    pub node: String,
    /// Properties of the GPU.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// True if the GPU is simulated.
    pub simulated: bool,
}
