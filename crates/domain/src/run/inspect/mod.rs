//! Requests to the ranks of a running run, and their results: stacks, wait counters, the Flight Recorder, traces.
//!
//! ```text
//! collector ─ Question ─▶ agent ─ HTTP on a UNIX socket ─▶ PyTorch's worker server in each rank
//!           ◀─ Answer…, the last one marked ─┘
//! ```
//! Nothing is stored or repeated: the caller waits for a bounded time, and may request it again.

mod flight;
mod group;
mod lanes;
mod recorder;
mod spans;
mod stacks;
mod trace;

pub use flight::{FlightDigest, GROUP_DIGEST_BYTES_MAX, GROUPS_MAX, GroupDigest, Operation};
pub use group::{StackGroup, group, rank_list};
pub use lanes::{Lane, LaneKind, LaneSource, LanesAnswer, StepLanes, TraceLanes};
pub use recorder::{RecorderDump, digest};
pub use stacks::{Frame, Stacks, Thread, parse_threads};
pub use trace::{LanesError, read_lanes};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::Rank;

/// Time in which one rank must answer, in milliseconds.
pub const ANSWER_WITHIN_MS: u64 = 5_000;
/// Maximum size of the stacks that are kept of one rank, in bytes; of a longer text the end is kept, where the main thread is.
pub const STACKS_BYTES_MAX: usize = 256 << 10;
/// Maximum size of the JSON accepted from one rank, in bytes.
pub const JSON_BYTES_MAX: usize = 256 << 10;
/// Maximum number of entries of the Flight Recorder accepted from one rank: the newest.
pub const FLIGHT_ENTRIES_MAX: usize = 200;
/// Space for `"entries_left_out":N` within that size.
const LEFT_OUT_BYTES: usize = 64;
/// Maximum size of a trace that is kept and fetched, in bytes.
pub const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Maximum size of a piece of a trace in one answer, in bytes.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Maximum duration of a trace, in seconds.
pub const TRACE_SECONDS_MAX: u32 = 30;
/// Maximum number of steps of a trace.
pub const TRACE_STEPS_MAX: u32 = 100;

/// A request to a node about its task of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The rank; all of the node's ranks if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// What is requested.
    pub what: What,
}

/// What is requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The stacks of all Python threads.
    #[default]
    Stacks,
    /// How often and how long the rank has waited, by place.
    WaitCounters,
    /// The last collectives.
    Flight,
    /// From the Flight Recorder, only the position of the rank in the operations of each of its process groups.
    FlightDigest,
    /// Record a Kineto trace. The answer contains the name of its file, which stays on the node.
    Trace(TraceLength),
    /// A piece of such a file.
    TracePiece {
        /// Name of the file.
        file: String,
        /// Offset of the piece in the file, in bytes.
        offset: u64,
    },
    /// The lanes of such a file.
    TraceLanes {
        /// Name of the file.
        file: String,
    },
}

/// The length of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceLength {
    /// This many seconds from the moment when the rank receives the request.
    Seconds(u32),
    /// This many optimizer steps, from the beginning of a step.
    Steps(u32),
}

impl TraceLength {
    /// Returns what is wrong with the length, as text; `None` if it is valid.
    #[must_use]
    pub fn problem(self) -> Option<String> {
        match self {
            Self::Seconds(n) if !(1..=TRACE_SECONDS_MAX).contains(&n) => {
                Some(format!("record 1 to {TRACE_SECONDS_MAX} seconds"))
            }
            Self::Steps(n) if !(1..=TRACE_STEPS_MAX).contains(&n) => {
                Some(format!("record 1 to {TRACE_STEPS_MAX} steps"))
            }
            _ => None,
        }
    }
}

/// The answer of one rank, or why there is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankAnswer {
    /// The rank.
    pub rank: Rank,
    /// Its process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Stacks, as Python's `faulthandler` writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// True if the text was longer and its beginning was left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Counters, or the contents of the Flight Recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// Position of the rank in the operations of its process groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<FlightDigest>,
    /// The file of a trace on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFile>,
    /// Why there is none of these, or what is missing in them, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The kernel's information about a process that does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
    /// The pipe that the main thread reads, if no other process has it open: then the read cannot end. Only with stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipe_without_writer: Option<String>,
}

/// A file that a rank wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceFile {
    /// Name of the file.
    pub file: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The state of a process as `/proc` shows it, as far as the agent may read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessState {
    /// State of the process, for example `T (stopped)`.
    pub state: String,
    /// The kernel function in which it sleeps; empty if it does not sleep, or if the agent may not read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// The current system call, as in `/proc/PID/syscall`: its number and arguments, or `running`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub syscall: String,
    /// Its stack in the kernel, if the agent runs as root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_stack: String,
}

/// An answer from a node. The bytes of a piece are sent beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer of one rank.
    Rank(Box<RankAnswer>),
    /// A piece of a file, and the length of the file.
    Piece {
        /// Length of the file in bytes.
        length: u64,
    },
    /// The lanes of a trace.
    Lanes(Box<LanesAnswer>),
    /// The request cannot be answered at all.
    Failed {
        /// Why not, as text.
        message: String,
    },
}

/// Merges the Flight Recorders of one rank: returns the newest entries that fit, in order of time, and the number of entries left out. For
/// the other fields (process groups, their members and counts) the result contains what any recorder says.
#[must_use]
pub fn newest_entries(recorders: Vec<Value>) -> Value {
    let mut all = Value::Null;
    for recorder in recorders {
        match (&mut all, recorder) {
            (Value::Object(all), Value::Object(more)) => {
                more.into_iter()
                    .for_each(|(key, more)| match (all.get_mut(&key), more) {
                        (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                        (Some(Value::Object(map)), Value::Object(more)) => map.extend(more),
                        (Some(_), _) => {}
                        (None, more) => _ = all.insert(key, more),
                    })
            }
            (all @ Value::Null, more) => *all = more,
            _ => {}
        }
    }
    let entries = all.get_mut("entries").and_then(Value::as_array_mut);
    let Some(mut entries) = entries.map(std::mem::take) else {
        return all;
    };
    entries.sort_by_key(|entry| entry["time_created_ns"].as_u64());
    let room = JSON_BYTES_MAX.saturating_sub(all.to_string().len() + LEFT_OUT_BYTES);
    let mut bytes = 0;
    let fits = |entry: &&Value| {
        bytes += entry.to_string().len() + 1;
        bytes <= room
    };
    let kept = entries
        .iter()
        .rev()
        .take(FLIGHT_ENTRIES_MAX)
        .take_while(fits)
        .count();
    let surplus = entries.len() - kept;
    entries.drain(..surplus);
    all["entries"] = entries.into();
    if surplus > 0 {
        all["entries_left_out"] = surplus.into();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_collectives_the_newest_are_kept() {
        let entries: Vec<Value> = (0..1_000).map(|n| serde_json::json!({"record_id": n})).collect();
        let kept = newest_entries(vec![serde_json::json!({"version": "2.10", "entries": entries})]);
        let ids: Vec<_> = kept["entries"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| &entry["record_id"])
            .collect();
        assert_eq!(
            (ids.len(), ids[0], &kept["entries_left_out"]),
            (200, &800.into(), &800.into())
        );
        let large = |n: u64| serde_json::json!({"time_created_ns": n, "input_sizes": "x".repeat(50_000)});
        let kept = newest_entries(vec![
            serde_json::json!({"entries": (0..20).map(large).collect::<Vec<_>>()}),
        ]);
        assert_eq!(
            (&kept["entries"][0]["time_created_ns"], &kept["entries_left_out"]),
            (&15.into(), &15.into())
        );
        assert!(kept.to_string().len() <= JSON_BYTES_MAX);
        for other in [
            serde_json::json!({"pg_status": {}}),
            serde_json::json!([1]),
            serde_json::json!({"entries": 7}),
        ] {
            assert_eq!(newest_entries(vec![other.clone()]), other);
        }
    }

    #[test]
    fn records_of_nccl_are_sorted_among_the_others_by_time() {
        let recorder = |backend: &str, times: [u64; 2]| {
            let entry = |time: u64| serde_json::json!({"profiling_name": backend, "time_created_ns": time});
            serde_json::json!({"version": "2.10", "pg_config": {backend: {"ranks": "[0, 1]"}}, "entries": times.map(entry)})
        };
        let all = newest_entries(vec![recorder("gloo", [1, 4]), recorder("nccl", [2, 3])]);
        let names: Vec<_> = all["entries"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| &entry["profiling_name"])
            .collect();
        assert_eq!(names, ["gloo", "nccl", "nccl", "gloo"]);
        assert_eq!(all["pg_config"].as_object().map(serde_json::Map::len), Some(2));
        assert_eq!(all["version"], "2.10");
        assert_eq!(newest_entries(Vec::new()), Value::Null);
    }

    #[test]
    fn a_trace_has_bounds() {
        for (trace_length, fine) in [
            (TraceLength::Seconds(0), false),
            (TraceLength::Seconds(30), true),
            (TraceLength::Seconds(31), false),
            (TraceLength::Steps(1), true),
            (TraceLength::Steps(101), false),
        ] {
            assert_eq!(trace_length.problem().is_none(), fine, "{trace_length:?}");
        }
    }
}
