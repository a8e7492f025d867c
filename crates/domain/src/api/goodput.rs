//! `GET /api/goodput`: how much of the time for which runs held GPUs was productive, and what the rest was lost to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::goodput::{Breakdown, Counted, LossCause};
use crate::time::TimestampMs;

/// Goodput of a run, or of all runs together, in a period.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goodput {
    /// Start of the period.
    pub start_ms: TimestampMs,
    /// End of the period.
    pub end_ms: TimestampMs,
    /// Goodput in words, with the largest causes of lost time: of the runs that use GPUs, or of the others if there are none. It has no
    /// percentage if each run held nodes for less than 10 minutes. Of several runs, it names the one that lost the most time. Absent if no run
    /// held nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Time of the GPUs of all runs.
    pub gpus: TimeUse,
    /// Time of the ranks of all runs that use no GPUs.
    pub ranks: TimeUse,
    /// Runs that held nodes in the period, those with the most lost time first; at most 100.
    pub runs: Vec<RunGoodput>,
    /// True if so many runs were submitted in the period that the oldest are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Goodput of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunGoodput {
    /// Id of the run.
    pub run: String,
    /// What its time is counted for.
    pub counted: Counted,
    /// Its time.
    pub time: TimeUse,
}

/// Time by what became of it, in seconds times GPUs or ranks. `productive_seconds`, `unknown_seconds` and all of `lost` add up to
/// `allocated_seconds`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeUse {
    /// Time from the placement of each attempt to its end.
    pub allocated_seconds: f64,
    /// Time of steps that count towards the final state, without what was lost during them.
    pub productive_seconds: f64,
    /// Time without data.
    pub unknown_seconds: f64,
    /// Lost time by cause, the largest first.
    pub lost: Vec<LostTime>,
    /// Productive share of the time that is not unknown. Absent if all of it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// Time that was lost to one cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LostTime {
    /// The cause.
    pub cause: LossCause,
    /// The lost time.
    pub seconds: f64,
}

impl From<&Breakdown> for TimeUse {
    fn from(breakdown: &Breakdown) -> Self {
        let lost = breakdown.causes().into_iter();
        Self {
            allocated_seconds: breakdown.allocated_s(),
            productive_seconds: breakdown.productive_s,
            unknown_seconds: breakdown.unknown_s,
            lost: lost.map(|(cause, seconds)| LostTime { cause, seconds }).collect(),
            ratio: breakdown.ratio(),
        }
    }
}
