//! Events: what happened on a node or to a run, in order of time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// Severity of an event or alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information; needs no action.
    Info,
    /// Needs attention during working hours.
    Warning,
    /// Needs attention now.
    Critical,
}

/// One entry of the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When the event happened, by the clock of the node that saw it.
    pub at_ms: TimestampMs,
    /// Severity of the event.
    pub severity: Severity,
    /// Stable identifier for programs: `agent_connected`, `nvml_unresponsive`, `xid`, `run_state`, …
    pub kind: String,
    /// Node of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// NVML index of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Run of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// One sentence for people.
    pub message: String,
}

impl Event {
    /// Returns an event of no node, GPU or run.
    #[must_use]
    pub fn new(at_ms: TimestampMs, severity: Severity, kind: &str, message: String) -> Self {
        Self {
            at_ms,
            severity,
            kind: kind.to_owned(),
            node: None,
            gpu: None,
            run: None,
            message,
        }
    }
}
