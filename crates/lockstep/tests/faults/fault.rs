//! A fault: how its run is set up, what is done to the run, and what must be true afterwards.

use anyhow::Result;

use crate::fault_run::FaultRun;

/// Steps of a whole run. Few enough that the agent keeps each step as a separate sample.
pub(crate) const STEPS: u64 = 24;
/// Number of steps from one checkpoint to the next.
pub(crate) const SAVE_EVERY: u64 = 4;
/// Faults from outside come after this step has ended and before the next one begins.
pub(crate) const HOLD_AT: u64 = 10;
/// The step of the newest checkpoint at that time.
pub(crate) const SAVED_AT: u64 = 8;
/// The rank that faults are done to. It is not rank 0, which is special to torchrun, and not on the first node.
pub(crate) const VICTIM: u64 = 3;
/// The node of the victim.
pub(crate) const VICTIMS_NODE: &str = "b";

/// One row of the matrix.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    /// Name of the fault: the value of `--only`, and the row in the table.
    pub(crate) name: &'static str,
    /// How the run is set up.
    pub(crate) set_up: SetUp,
    /// Causes the fault. Called when the run is submitted; returns when only waiting for the end is left.
    pub(crate) inflict: fn(&mut FaultRun) -> Result<()>,
    /// What must be true when the run has ended.
    pub(crate) expected: Expected,
}

/// How the run of a fault is set up.
#[derive(Clone, Copy, Default)]
pub(crate) struct SetUp {
    /// Faults that the script itself causes.
    pub(crate) script: &'static [&'static str],
    /// Maximum number of restarts of the run.
    pub(crate) restarts: u32,
    /// True if there is a third, spare node and the second node is a separate machine, behind a link that can go down.
    pub(crate) separate_machine: bool,
    /// True if checkpoints are on a small separate file system.
    pub(crate) small_disk: bool,
}

/// What must be true after a fault.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    /// The final state of the run.
    pub(crate) state: &'static str,
    /// Total number of attempts.
    pub(crate) attempts: usize,
    /// Expected cause of the first attempt's end; `None` if it succeeds.
    pub(crate) cause: Option<Cause>,
    /// The step of the checkpoint that the second attempt resumes from.
    pub(crate) resumed_at: Option<u64>,
    /// Text that the run's final message must contain, in lower case.
    pub(crate) final_message: &'static str,
}

/// A root cause: its name and its culprit.
#[derive(Clone, Copy)]
pub(crate) struct Cause {
    /// Accepted names of the cause.
    pub(crate) words: &'static [&'static str],
    /// The node that must be named.
    pub(crate) node: Option<&'static str>,
    /// The rank that must be named.
    pub(crate) rank: Option<u64>,
    /// Text that its message must contain, in lower case.
    pub(crate) says: &'static str,
}

impl Expected {
    /// The run was not disturbed: one attempt, with the same processes from beginning to end.
    pub(crate) const UNDISTURBED: Self = Self {
        state: "succeeded",
        attempts: 1,
        cause: None,
        resumed_at: None,
        final_message: "",
    };

    /// The first attempt ended with this cause. The second resumed from the newest checkpoint and succeeded.
    pub(crate) const fn resumed(cause: Cause) -> Self {
        Self {
            state: "succeeded",
            attempts: 2,
            cause: Some(cause),
            resumed_at: Some(SAVED_AT),
            final_message: "",
        }
    }
}

impl Cause {
    /// A cause with the victim as its culprit.
    pub(crate) const fn victims(word: &'static [&'static str]) -> Self {
        Self {
            words: word,
            node: Some(VICTIMS_NODE),
            rank: Some(VICTIM),
            says: "",
        }
    }
}
