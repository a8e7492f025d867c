//! The faults of a scenario. A fault belongs to the first attempt of a run, so a later attempt shows whether the fix helped.

use domain::diagnosis::input::Phase;

/// A fault of a scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// The time after the first step of the first attempt, in seconds.
    pub after_s: f64,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The kind of a fault. Ranks are those of the first attempt. Each fault changes only what the nodes measure and report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// The power brake of the rank's GPU is asserted from now on: its clock falls for every user of the GPU.
    PowerBrake {
        /// The rank on that GPU.
        rank: u32,
    },
    /// The rank's process is stopped, as by SIGSTOP, and stays stopped.
    StopProcess {
        /// The rank.
        rank: u32,
    },
    /// The rank's GPU reports Xid 95 (uncontained memory error), and the rank dies from it.
    MemoryError {
        /// The rank.
        rank: u32,
    },
    /// The rank stays in a phase, and all other ranks wait for it.
    Hold {
        /// The rank.
        rank: u32,
        /// The phase in which it stays. For [`Hold::OtherOperation`], this is not used.
        phase: Phase,
        /// What its process does there.
        hold: Hold,
    },
    /// A part of each step takes longer.
    Slow {
        /// The rank; all ranks if it is `None`.
        rank: Option<u32>,
        /// The part.
        part: Part,
        /// Additional time as a fraction of the usual step.
        ratio: f64,
    },
    /// A part of one step takes longer, again and again.
    Stall {
        /// The rank.
        rank: u32,
        /// The part.
        part: Part,
        /// Additional time of that step in seconds.
        stall_s: f64,
        /// Time from one stall to the next, in seconds.
        period_s: f64,
    },
    /// The rank computes larger batches.
    LargerBatch {
        /// The rank.
        rank: u32,
        /// The additional samples as a fraction of the usual batch.
        ratio: f64,
    },
    /// Other programs use the rank's processor.
    BusyProcessor {
        /// The rank.
        rank: u32,
        /// The share of the time in which the rank waits for its processor.
        share: f64,
    },
    /// The rank uses another learning rate than its peers.
    LearningRate {
        /// The rank.
        rank: u32,
        /// The factor of the peers' rate.
        factor: f64,
    },
    /// The rank computes a value that is NaN. One step later, all ranks have it.
    NotFinite {
        /// The rank.
        rank: u32,
        /// The value.
        value: LearnedValue,
    },
    /// All saves of the rank fail because its file system is full.
    FailSaves {
        /// The rank.
        rank: u32,
    },
    /// The rank ends.
    Exit {
        /// The rank.
        rank: u32,
        /// How it ends.
        exit: Exit,
    },
    /// All processes on the rank's node end at once, including the agent.
    LoseNode {
        /// A rank on the node.
        rank: u32,
    },
}

/// What the process of a rank does that stays in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is stopped by a signal.
    Stopped,
    /// It waits in the kernel.
    Uninterruptible,
    /// It computes in an endless loop.
    Spins,
    /// It computes in an endless loop and holds Python's interpreter lock, so that it answers no requests.
    HoldsInterpreter,
    /// It sleeps for ever.
    Sleeps,
    /// It waits in another collective than its peers.
    OtherOperation,
}

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The wait for the data loader.
    Data,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The step of the optimizer.
    Optimizer,
    /// Code of the script between steps.
    Host,
    /// A checkpoint is saved.
    Save,
    /// The forward pass, the backward pass, the optimizer and the code between steps, in equal parts.
    Everything,
}

/// A value that can become NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LearnedValue {
    /// The loss of the rank.
    Loss,
    /// The gradients, after a loss that was finite.
    Gradient,
}

/// How a rank ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By an exception in the script.
    Exception,
    /// By SIGKILL.
    Killed,
}
