//! What can happen to a run.

use std::collections::BTreeSet;

use crate::ident::{AttemptNo, NodeName};
use crate::run::checkpoint::ResumedFrom;
use crate::run::knob::Verdict;
use crate::run::state::change::Wish;
use crate::run::state::protocol::NodeReport;
use crate::run::state::stop::StopPoint;
use crate::time::TimestampMs;

/// Something happened to a run.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "events are taken one by one; none is kept in numbers"
)]
pub enum Event {
    /// Nodes were found for an attempt, by node rank.
    Placed {
        /// The attempt they were looked for.
        attempt: AttemptNo,
        /// The nodes.
        nodes: Vec<NodeName>,
    },
    /// There are no nodes for it now.
    CannotPlace {
        /// What it waits for.
        reason: String,
        /// Were all nodes free, there would still be too few without those that are excluded.
        hopeless: bool,
    },
    /// A node reports.
    Reported {
        /// The attempt the report is about.
        attempt: AttemptNo,
        /// Who reports.
        node: NodeName,
        /// What.
        report: NodeReport,
    },
    /// A person wants it to stop.
    StopRequested {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
        /// The moment to wait for; none to stop at once.
        after: Option<StopPoint>,
    },
    /// A person wants a run that has ended to go on.
    ResumeRequested {
        /// The checkpoint to go on from; the last complete one when empty.
        from: Option<ResumedFrom>,
        /// Begin anew instead.
        from_start: bool,
    },
    /// Other knobs are wished: by a person, or for a verdict.
    KnobsChanged {
        /// Which.
        wish: Wish,
        /// Time between SIGTERM and SIGKILL for what runs.
        grace_ms: u64,
        /// The step to stop it after; none to stop it at once.
        after: Option<StopPoint>,
    },
    /// What became of an attempt's change of knobs, as far as series tell now.
    KnobsJudged {
        /// The attempt that made the change.
        attempt: AttemptNo,
        /// Which of its changes in place, from 1; 0 for the one it was made for.
        live: u32,
        /// What became of it.
        verdict: Box<Verdict>,
    },
    /// No larger batch can be tried after a change that was kept.
    NoLargerBatch {
        /// The attempt that made the change.
        attempt: AttemptNo,
        /// Why not.
        why: String,
    },
    /// A rank of the attempt reached this step, the highest of all.
    Stepped {
        /// The attempt.
        attempt: AttemptNo,
        /// The step.
        step: u64,
    },
    /// The collector was away itself: that nothing was heard meanwhile says nothing about nodes.
    CollectorStarted,
    /// A person wants a checkpoint kept, or no longer.
    CheckpointPinned {
        /// Which one.
        path: String,
        /// Keep it.
        pinned: bool,
    },
    /// Which of the run's checkpoints other runs have pinned by their path.
    PinnedByOthers {
        /// Their paths: all of them, in the place of those before.
        paths: BTreeSet<String>,
    },
    /// A person wants checkpoints removed that no rule keeps; also after the end of the run.
    PruneRequested {
        /// Keep this many of the last ones instead of what the run says.
        keep_last: Option<u32>,
    },
    /// A node's agent lost its connection.
    NodeLost {
        /// The node.
        node: NodeName,
    },
    /// A node's agent is connected.
    NodeBack {
        /// The node.
        node: NodeName,
        /// Whether it still knows the current attempt.
        holds: bool,
    },
    /// The collector's state went back to that of a backup.
    Restored {
        /// When that was; the same restore again changes nothing.
        restored_ms: TimestampMs,
    },
    /// A node holds an attempt that is not known here.
    UnknownAttempt {
        /// The node.
        node: NodeName,
        /// The attempt's number.
        attempt: AttemptNo,
    },
    /// Time passed.
    Tick,
}
