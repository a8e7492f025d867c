//! Things that happened on a node or to a run, for people to read in order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Look at it in working hours.
    Warning,
    /// Look at it now.
    Critical,
}

/// One line of the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When it happened, by the clock of the node that saw it.
    pub at_ms: TimestampMs,
    /// How bad.
    pub severity: Severity,
    /// A stable word for programs: `agent_connected`, `nvml_unresponsive`, `xid`, `run_state`, …
    pub kind: String,
    /// The node concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The GPU index concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The run concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A sentence.
    pub message: String,
}
