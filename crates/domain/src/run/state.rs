//! The state machine of a run: its state, and the actions that follow from an event.
//!
//! [`advance`] is the only entry point. It is a pure function, so that every transition is a row of a test. [`Machine`] contains all facts
//! about a run; [`RunState`] is derived from them after each event and never set directly:
//!
//! ```text
//!  submit ──▶ Queued ──Placed──▶ Preparing ──all Prepared──▶ Starting ──RankStarted──▶ Running ──all Ended──▶ Succeeded
//!               ▲                    │       and agreed         │                      │    ▲
//!               │                    │                          │          node away   ▼    │ node back
//!               │ Tick, after        │                          │                       Lost
//!               │ a pause            │ a rank, node or check fails, a timeout expires, or StopRequested
//!               │                    ▼                          ▼                      ▼
//!          Restarting ◀─ policy ── Stopping (each node that may hold processes gets one Stop) ──all Ended──▶ Failed
//!               └──StopRequested──▶ Stopped ◀── stop requested ─────┘
//!
//!          Succeeded, Failed, Stopped ──ResumeRequested──▶ Queued, as a new attempt
//!          any ──KnobsChanged──▶ Stopping, unless it has ended ──all Ended──▶ Queued, as a new attempt; or in place, see [`in_place`]
//! ```
//!
//! The requested state ([`DesiredState`]) is kept apart from the actual state. An attempt ends only when each of its nodes reports that
//! nothing of it is left, or is given up. Only then may the next attempt begin, and not on a node that was given up: two attempts never
//! share a GPU. A run that is only watched has its own diagram, in [`watched`].
//!
//! | file | contents |
//! |---|---|
//! | `event` | the events |
//! | `advance` | events from users and from placement |
//! | `transition` | actions, and how an event collects them |
//! | `report` | reports of a node |
//! | `report_parsing` | reports of other agent versions |
//! | `report_bounds` | the size limit of a report |
//! | `timeouts` | how long a run waits, and what follows then |
//! | `follow_up` | the commands that follow from the new situation, and the derived state |
//! | `memory` | why memory was too little |
//! | `preflight` | whether the nodes can run the attempt together |
//! | `judge` | how an attempt ended: root cause and cascade |
//! | `policy` | whether another attempt follows, and without which nodes |
//! | `change` | attempts with changed knobs, and their revert |
//! | `in_place` | knobs that ranks change in place |
//! | `larger_batch` | the automatic trial of a doubled batch |
//! | `divergence` | when a loss began to diverge |
//! | `symptom` | what a change repairs |
//! | `restore` | attempts that a restored backup does not contain |

mod advance;
mod attempt;
mod change;
mod divergence;
mod event;
mod fault;
mod follow_up;
mod in_place;
mod judge;
mod larger_batch;
mod machine;
mod memory;
mod node_task;
mod outcome;
mod policy;
mod preflight;
mod protocol;
mod report;
mod report_bounds;
mod report_parsing;
mod restore;
mod series;
mod stop;
mod symptom;
mod timeouts;
mod transition;
mod watched;

pub use advance::advance;
pub use attempt::{Attempt, AttemptKnobs, Findings, Placement, Progress};
pub use change::{CannotChange, KnobRequest};
pub use divergence::{Divergence, LossSample, RECOVERED_SAMPLES};
pub use event::Event;
pub use fault::{Exclusion, Fault, FaultKind};
pub(crate) use judge::{is_cascade, named_rank};
pub use machine::{DesiredState, Machine};
pub use memory::{Memory, Shortage};
pub use node_task::{Looked, NodePhase, NodeTask, RankTask, Stall};
pub use outcome::{Cause, Explanation, Outcome};
pub use preflight::BandwidthCheck;
pub use protocol::{
    EndCause, Measure, Measured, Nic, NodeCommand, NodeEnd, NodeReport, Prepared, StallCause, Start, Watched,
};
pub use report_parsing::{ReadReport, read_report, report_kind};
pub use restore::{ATTEMPT_MAX, HeldAttempt, SKIPPED_ATTEMPTS};
pub use series::StallsBefore;
pub use stop::{StopPlan, StopPoint, agreed_step};
pub use timeouts::{ABANDON_AFTER_MS, ALL_AWAY_MS, LOST_AFTER_MS, PREPARE_TIMEOUT_MS};
pub(in crate::run) use transition::Transition;
pub use transition::{Action, Task};

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Not submitted yet; a user still edits it.
    Draft,
    /// Waits for nodes.
    Queued,
    /// Nodes run the preflight checks and lease ports.
    Preparing,
    /// Processes are being started.
    Starting,
    /// At least one rank runs.
    Running,
    /// The run was told to stop; its processes are ending.
    Stopping,
    /// A person stopped the run.
    Stopped,
    /// An attempt failed; the next one follows.
    Restarting,
    /// All ranks ended with exit code 0.
    Succeeded,
    /// The run failed; the outcome says why.
    Failed,
    /// The agent of a node cannot be reached, so the state of its ranks is not known.
    Lost,
}

impl RunState {
    /// Returns true if the run has ended. Only a resume or a change of knobs starts it again.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stopped | Self::Succeeded | Self::Failed)
    }

    /// Returns the word for the API and the dashboard.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Restarting => "restarting",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// How one rank ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RankExit {
    /// The rank.
    pub rank: Rank,
    /// The exit code, if the rank exited by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended the rank, for example 9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// True if the kernel killed the rank because memory ran out.
    pub out_of_memory: bool,
    /// Type of the exception that ended the rank, for example `RuntimeError`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Message of that exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of its traceback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
    /// Memory of the rank at its end, if memory was the cause and the rank could still report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Box<Memory>>,
    /// The last step that the rank finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// When the node first saw the rank fail, in nanoseconds since the epoch by the node's clock. It separates the first failure from the
    /// cascade.
    pub at_ns: i64,
}

/// A short text for a table cell.
impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error_type, self.signal, self.code) {
            _ if self.out_of_memory => f.write_str("killed by the kernel: out of memory"),
            (Some(kind), ..) => write!(f, "{kind}: {}", self.message.as_deref().unwrap_or_default()),
            (None, Some(signal), _) => write!(f, "signal {signal}"),
            (None, None, Some(code)) => write!(f, "exit code {code}"),
            (None, None, None) => f.write_str("ended"),
        }
    }
}

impl RankExit {
    /// Returns true unless the rank exited with 0.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.code != Some(0)
    }
}
