//! A measurement of the bandwidths between the nodes of an attempt, as it is kept and stored.

use serde::{Deserialize, Serialize};

use crate::run::bandwidth::Figure;
use crate::time::TimestampMs;

/// What was measured between the nodes of an attempt, and how far it has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BandwidthCheck {
    /// The round under way, from 0.
    pub round: u32,
    /// How many there are.
    pub rounds: u32,
    /// When the round began.
    pub since_ms: TimestampMs,
    /// Who has not answered yet in this round, and from whom it receives.
    pub waiting: Vec<(u32, u32)>,
    /// What was measured.
    pub figures: Vec<Figure>,
}
