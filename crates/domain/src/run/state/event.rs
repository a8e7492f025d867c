//! The events of a run.

use std::collections::BTreeSet;

use crate::ident::{AttemptNo, NodeName};
use crate::run::checkpoint::{RemovalOrder, ResumedFrom};
use crate::run::knob::Verdict;
use crate::run::state::change::KnobRequest;
use crate::run::state::divergence::Divergence;
use crate::run::state::protocol::NodeReport;
use crate::run::state::stop::StopPoint;
use crate::time::TimestampMs;

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "events are handled one by one and not stored in bulk"
)]
pub enum Event {
    /// Nodes were found for an attempt, in order of node rank.
    Placed {
        /// The attempt that the nodes are for.
        attempt: AttemptNo,
        /// The nodes.
        nodes: Vec<NodeName>,
    },
    /// There are no nodes for the run now.
    CannotPlace {
        /// What the run waits for.
        reason: String,
        /// True if there would be too few nodes without the excluded ones even if all nodes were free.
        permanent: bool,
    },
    /// A node sent a report.
    Reported {
        /// The attempt that the report is about.
        attempt: AttemptNo,
        /// The node that sent it.
        node: NodeName,
        /// The report.
        report: NodeReport,
    },
    /// A person requests a stop.
    StopRequested {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
        /// The stop point to wait for; `None` to stop at once.
        after: Option<StopPoint>,
    },
    /// A person resumes a run that has ended.
    ResumeRequested {
        /// The checkpoint to resume from; `None` for the last complete one.
        from: Option<ResumedFrom>,
        /// Start from the beginning instead.
        from_start: bool,
    },
    /// A change of knobs is requested, by a person or because of a verdict.
    KnobsChanged {
        /// The requested change.
        request: KnobRequest,
        /// Time between SIGTERM and SIGKILL for running processes.
        grace_ms: u64,
        /// The stop point to wait for; `None` to stop at once.
        after: Option<StopPoint>,
    },
    /// The verdict on an attempt's change of knobs, as far as it can be computed from the series now.
    KnobsJudged {
        /// The attempt that made the change.
        attempt: AttemptNo,
        /// Number of the change in place, from 1; 0 for the change that the attempt was made for.
        live: u32,
        /// The verdict.
        verdict: Box<Verdict>,
    },
    /// The loss of an attempt has begun to diverge, or is good again.
    LossDiverged {
        /// The attempt.
        attempt: AttemptNo,
        /// The divergence; `None` if the loss is good again.
        divergence: Option<Divergence>,
    },
    /// No larger batch can be tried after a change that was kept.
    NoLargerBatch {
        /// The attempt that made the change.
        attempt: AttemptNo,
        /// Why not.
        why: String,
    },
    /// A rank of the attempt reached this step, the highest of all its ranks.
    Stepped {
        /// The attempt.
        attempt: AttemptNo,
        /// The step.
        step: u64,
    },
    /// The collector started. Silence of nodes before this moment says nothing about the nodes.
    CollectorStarted,
    /// A person pins a checkpoint, or removes the pin.
    CheckpointPinned {
        /// Path of the checkpoint.
        path: String,
        /// True to pin it, false to remove the pin.
        pinned: bool,
    },
    /// Which of the run's checkpoints other runs have pinned by path.
    PinnedByOthers {
        /// Their paths. The set replaces the previous one.
        paths: BTreeSet<String>,
    },
    /// A person requests that checkpoints are removed that no rule keeps; also after the end of the run.
    PruneRequested {
        /// Keep this many of the last checkpoints, instead of what the run's spec says.
        keep_last: Option<u32>,
        /// Paths of the checkpoints that the person has seen in the list. No other is removed, even if no rule keeps it.
        seen: BTreeSet<String>,
    },
    /// An order to remove checkpoints was dropped before its node accepted it: it has expired, or one of its checkpoints must be kept now.
    RemovalDropped {
        /// The node.
        node: NodeName,
        /// The order.
        order: RemovalOrder,
    },
    /// The agent of a node lost its connection.
    NodeLost {
        /// The node.
        node: NodeName,
    },
    /// The agent of a node is connected.
    NodeBack {
        /// The node.
        node: NodeName,
        /// True if the agent still has the current attempt.
        holds: bool,
    },
    /// The collector's state was restored from a backup.
    Restored {
        /// When that was. The same restore a second time changes nothing.
        restored_ms: TimestampMs,
    },
    /// A node holds an attempt that the collector does not know.
    UnknownAttempt {
        /// The node.
        node: NodeName,
        /// Number of the attempt.
        attempt: AttemptNo,
    },
    /// Time passed.
    Tick,
}
