//! One datagram of nccl-probe, as docs/nccl-probe.md has it: what one rank did on one communicator so far. Absent is unknown.

use serde::Deserialize;

/// Functions that become series; a word that is none of them comes from no probe of ours.
const FUNCTIONS: [&str; 12] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
    "Other",
];

/// What one rank said of one communicator.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    /// The version of NCCL.
    pub(crate) nccl: Option<String>,
    /// The version of its profiler interface.
    pub(crate) abi: u8,
    pub(crate) dropped: u64,
    pub(crate) unsent: u64,
    pub(crate) untimed: u64,
    pub(crate) refused: u64,
    /// The communicator's hash: sixteen hexadecimal digits, the same on all its ranks.
    pub(crate) comm: String,
    pub(crate) comm_name: Option<String>,
    /// It has ended; these are its last totals.
    pub(crate) closed: bool,
    pub(crate) functions: Vec<Totals>,
    pub(crate) arrivals: Vec<Told>,
}

/// One function's totals since the communicator began.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) function: String,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) sequence: Option<u64>,
    /// How many were timed, and for how long in all.
    pub(crate) timed: u64,
    pub(crate) timed_ns: u64,
    pub(crate) bus_bytes: f64,
}

/// Function, sequence number, time of putting into the stream, duration on the GPU or 0.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct Told(pub(crate) String, pub(crate) u64, pub(crate) i64, pub(crate) u64);

impl Report {
    /// Losses of the rank's process so far, of all kinds.
    pub(crate) fn lost(&self) -> u64 {
        [self.dropped, self.unsent, self.untimed, self.refused]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// The word for a function as it is kept, when it is one.
pub(crate) fn known_function(word: &str) -> Option<&'static str> {
    FUNCTIONS.into_iter().find(|known| *known == word)
}
