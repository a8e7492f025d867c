//! One datagram of nccl-probe, in the format of docs/nccl-probe.md: the activity of one rank on one communicator so far. Missing values are
//! unknown.

use serde::Deserialize;

/// The functions that have series. nccl-probe sends no other names.
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

/// The report of one rank about one communicator.
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
    /// The communicator's hash: 16 hexadecimal digits, the same on all its ranks.
    pub(crate) comm: String,
    pub(crate) comm_name: Option<String>,
    /// True if the communicator has ended. These are then its last totals.
    pub(crate) closed: bool,
    pub(crate) functions: Vec<Totals>,
    pub(crate) arrivals: Vec<ArrivalRecord>,
}

/// The totals of one function since the communicator was created.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) function: String,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) sequence: Option<u64>,
    /// The number of timed collectives, and their total duration in nanoseconds.
    pub(crate) timed: u64,
    pub(crate) timed_ns: u64,
    pub(crate) bus_bytes: f64,
}

/// The function, sequence number, time of enqueueing, and duration on the GPU or 0 (times in nanoseconds).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct ArrivalRecord(pub(crate) String, pub(crate) u64, pub(crate) i64, pub(crate) u64);

impl Report {
    /// Returns the number of losses of the rank's process so far, of all kinds.
    pub(crate) fn lost(&self) -> u64 {
        [self.dropped, self.unsent, self.untimed, self.refused]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Returns the static name of a function, or `None` if it is not known.
pub(crate) fn known_function(word: &str) -> Option<&'static str> {
    FUNCTIONS.into_iter().find(|known| *known == word)
}
