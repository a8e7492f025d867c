//! Where a run stands, and what to do when something happens to it.
//!
//! [`advance`] is the whole of it: pure, so that every transition is a row of a test. What a run *is* lies in
//! [`Machine`]; [`RunState`] is derived from it after each event, never set by hand:
//!
//! ```text
//!  submit ──▶ Queued ──Placed──▶ Preparing ──all Prepared──▶ Starting ──RankStarted──▶ Running ──all Ended──▶ Succeeded
//!               ▲                    │       and agreed         │                      │    ▲
//!               │                    │                          │          node away   ▼    │ node back
//!               │ Tick, after        │                          │                       Lost
//!               │ a pause            │ a rank, node, check or patience fails, or StopRequested
//!               │                    ▼                          ▼                      ▼
//!          Restarting ◀─ policy ── Stopping (each node that may hold processes is told, once) ──all Ended──▶ Failed
//!               └──StopRequested──▶ Stopped ◀── a stop was wished ──┘
//!
//!          Succeeded, Failed, Stopped ──ResumeRequested──▶ Queued, as another attempt
//!          any ──KnobsChanged──▶ Stopping, unless it has ended ──all Ended──▶ Queued, as another attempt; or in place, as [`live`]
//! ```
//!
//! The wished state ([`Wished`]) is kept apart from what is. An attempt ends only when each of its nodes reports that
//! nothing of it is left, or is given up; only then may the next begin, and not on a node that was given up: two attempts never
//! share a GPU. A run that is only watched has a drawing of its own, in [`watched`].
//!
//! | file | what it decides |
//! |---|---|
//! | `event` | what can happen |
//! | `advance` | what a person or the placement brings |
//! | `transition` | what actions are, and how an event makes them |
//! | `report` | what a node says |
//! | `reading` | what a report of another version says |
//! | `bounded` | how large a report may be |
//! | `patience` | what has been waited for too long |
//! | `settle` | who is told what, and which state that is |
//! | `memory` | why memory was too little |
//! | `preflight` | whether nodes can run it together |
//! | `judge` | how an attempt ended: root cause and cascade |
//! | `policy` | whether another attempt follows, and without which nodes |
//! | `change` | attempts with other knobs, and back |
//! | `live` | knobs that ranks take over in place |
//! | `larger_batch` | a doubled batch tried by itself |
//! | `restore` | attempts that a restored backup does not know |

mod advance;
mod attempt;
mod bounded;
mod change;
mod event;
mod fault;
mod judge;
mod larger_batch;
mod live;
mod machine;
mod memory;
mod node_task;
mod outcome;
mod patience;
mod policy;
mod preflight;
mod protocol;
mod reading;
mod report;
mod restore;
mod series;
mod settle;
mod stop;
mod transition;
mod watched;

pub use advance::advance;
pub use attempt::{Attempt, AttemptKnobs, Findings, Placement, Progress};
pub use change::{CannotChange, Wish};
pub use event::Event;
pub use fault::{Exclusion, Fault, FaultKind};
pub(crate) use judge::{is_cascade, named_rank};
pub use machine::{Machine, Wished};
pub use memory::{Memory, Shortage};
pub use node_task::{Looked, NodePhase, NodeTask, RankTask, Stall};
pub use outcome::{Cause, Explanation, Outcome};
pub use patience::{ABANDON_AFTER_MS, ALL_AWAY_MS, LOST_AFTER_MS, PREPARE_TIMEOUT_MS};
pub use preflight::BandwidthCheck;
pub use protocol::{
    EndCause, Measure, Measured, Nic, NodeCommand, NodeEnd, NodeReport, Prepared, StallCause, Start, Watched,
};
pub use reading::{ReadReport, read_report, report_kind};
pub use restore::{ATTEMPT_MAX, Held, SKIPPED_ATTEMPTS};
pub use stop::{StopPlan, StopPoint, agreed_step};
pub(in crate::run) use transition::Transition;
pub use transition::{Action, Task};

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Being written; not asked for yet.
    Draft,
    /// Waits for nodes.
    Queued,
    /// Nodes check what the run needs and lease ports.
    Preparing,
    /// Processes are being started.
    Starting,
    /// At least one rank runs.
    Running,
    /// Asked to stop; processes are ending.
    Stopping,
    /// Ended because a person asked for it.
    Stopped,
    /// An attempt failed; the next one follows.
    Restarting,
    /// All ranks ended well.
    Succeeded,
    /// Ended badly; the outcome says why.
    Failed,
    /// Its node cannot be reached, so how it ended is not known.
    Lost,
}

impl RunState {
    /// Whether nothing will change any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stopped | Self::Succeeded | Self::Failed)
    }

    /// The word in the API and on the page.
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
    /// Which rank.
    pub rank: Rank,
    /// Its exit code, when it exited by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it, like 9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the kernel killed it for memory.
    pub out_of_memory: bool,
    /// Type of the exception that ended it, like `RuntimeError`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Message of that exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of its traceback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
    /// Its memory at the end, where that was the trouble and the rank could still tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Box<Memory>>,
    /// The last step it finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// When it was first seen to fail, nanoseconds since the epoch by its node's clock: tells the first failure from the cascade.
    pub at_ns: i64,
}

/// In a few words, for a table's cell.
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
    /// Whether the rank did anything but end well.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.code != Some(0)
    }
}
