//! The faults of the cluster. A fault belongs to the first attempt of a workload, so a later attempt shows whether the fix
//! helped.

/// A fault of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// The time after the first step of the first attempt, in seconds.
    pub after_s: f64,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The kind of a fault. Ranks are those of the first attempt.
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
}
