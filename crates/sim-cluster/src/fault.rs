//! What goes wrong in the cluster. A fault is tied to the first attempt of a workload, so that an attempt after it shows whether the fix helped.

/// A fault of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Seconds after the first step of the first attempt.
    pub after_s: f64,
    /// What happens.
    pub kind: FaultKind,
}

/// What happens. Ranks are those of the first attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// The power brake of the rank's GPU is asserted from now on: its clock falls, whoever uses it.
    PowerBrake {
        /// The rank whose GPU it is.
        rank: u32,
    },
    /// The rank's process is stopped, as by SIGSTOP, and stays so.
    StopProcess {
        /// Which rank.
        rank: u32,
    },
    /// The rank's GPU reports Xid 95 (uncontained memory error), and the rank dies of it.
    MemoryError {
        /// Which rank.
        rank: u32,
    },
}
