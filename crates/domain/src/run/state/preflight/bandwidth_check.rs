//! The bandwidth check between the nodes of an attempt, as it is kept and stored.

use serde::{Deserialize, Serialize};

use crate::run::bandwidth::PairMeasurement;
use crate::time::TimestampMs;

/// The measurements between the nodes of an attempt, and their progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BandwidthCheck {
    /// The current round, from 0.
    pub round: u32,
    /// Number of rounds.
    pub rounds: u32,
    /// When the round began.
    pub since_ms: TimestampMs,
    /// Pairs (node, peer): nodes that have not answered in this round yet, each with the node that it receives from.
    pub waiting: Vec<(u32, u32)>,
    /// The measurements so far.
    pub figures: Vec<PairMeasurement>,
}
