//! Orders in the folder that ranks read for themselves: their probes look for the files at the end of a step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What `stop.after` holds. The ranks' probes look for it at the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// The last step, as the probe counts.
    pub step: u64,
    /// Time for the other ranks once one has failed behind that step.
    pub grace_ms: u64,
}

/// What `knobs.live` holds. The ranks' probes look for it at the end of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveOrder {
    /// The command that brought it: a later one is greater.
    pub order: u64,
    /// Which of the attempt's changes in place it is.
    pub live: u32,
    /// Knob and value; none for what the script itself has.
    pub set: BTreeMap<String, Option<String>>,
}
