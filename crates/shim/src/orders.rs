//! Orders in the folder that the ranks read themselves: their probes check for the files at the end of each step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The content of `stop.after`. The ranks' probes check for the file at the end of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// The last step, in the probe's count.
    pub step: u64,
    /// How long the other ranks may continue after one rank has failed past that step, in ms.
    pub grace_ms: u64,
}

/// The content of `knobs.live`. The ranks' probes check for the file at the end of each step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveOrder {
    /// The number of the command that brought the order. A later command has a greater number.
    pub order: u64,
    /// The number of this live change within the attempt.
    pub live: u32,
    /// The value of each knob; `None` restores the script's own value.
    pub set: BTreeMap<String, Option<String>>,
}
