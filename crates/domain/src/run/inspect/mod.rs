//! What can be asked of the ranks of a run while it goes on, and what comes back: stacks, wait counters, the Flight Recorder, traces.
//!
//! ```text
//! collector ─ Question ─▶ agent ─ HTTP on a UNIX socket ─▶ PyTorch's worker server in each rank
//!           ◀─ Answer…, the last one marked ─┘
//! ```
//! Nothing of it is stored or repeated: whoever asked waits for a bounded time, and asks again when he wants to.

mod flight;
mod group;
mod recorder;
mod stacks;

pub use flight::{FlightDigest, GROUP_DIGEST_BYTES_MAX, GROUPS_MAX, GroupDigest, Operation};
pub use group::{StackGroup, group, rank_list};
pub use recorder::{RecorderDump, digest};
pub use stacks::{Frame, Stacks, Thread, parse_threads};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::Rank;

/// How long one rank has to answer, in milliseconds.
pub const ANSWER_WITHIN_MS: u64 = 5_000;
/// The longest text of stacks that is kept of one rank; of a longer one the end, where the main thread is.
pub const STACKS_BYTES_MAX: usize = 256 << 10;
/// The longest JSON taken over from one rank.
pub const JSON_BYTES_MAX: usize = 256 << 10;
/// Entries of the Flight Recorder that are taken over from one rank: the newest.
pub const FLIGHT_ENTRIES_MAX: usize = 200;
/// What `"entries_left_out":N` takes of it.
const LEFT_OUT_BYTES: usize = 64;
/// The largest trace that is kept and fetched.
pub const TRACE_BYTES_MAX: u64 = 256 << 20;
/// The longest piece of a trace in one answer.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// The longest a trace may be recorded, in seconds.
pub const TRACE_SECONDS_MAX: u32 = 30;
/// The most steps a trace may span.
pub const TRACE_STEPS_MAX: u32 = 100;

/// To a node, about its part of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Which of its ranks; all when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// What.
    pub what: What,
}

/// What is asked.
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
    /// Of the Flight Recorder only where the rank is in the operations of each of its process groups.
    FlightDigest,
    /// Record a Kineto trace; answered with the name of its file, which stays on the node.
    Trace(TraceWish),
    /// A piece of such a file.
    TracePiece {
        /// Its name.
        file: String,
        /// From where.
        offset: u64,
    },
}

/// How long a trace is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceWish {
    /// So many seconds from when the rank hears of it.
    Seconds(u32),
    /// So many optimizer steps, from the beginning of one.
    Steps(u32),
}

impl TraceWish {
    /// What is wrong with it, in words.
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

/// What one rank answered, or why not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankAnswer {
    /// Which rank.
    pub rank: Rank,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Stacks, as Python's `faulthandler` writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The text was longer, and its beginning is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Counters, or what the Flight Recorder holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// Where the rank is in the operations of its process groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<FlightDigest>,
    /// A trace's file on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFile>,
    /// Why there is none of these, or what is missing in them, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// What the kernel knows of a process that does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
    /// The pipe that the main thread reads, if no other process has it open: the read cannot end. Only with stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipe_without_writer: Option<String>,
}

/// A file that a rank wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceFile {
    /// Its name.
    pub file: String,
    /// Its size.
    pub bytes: u64,
}

/// A process as `/proc` shows it, as far as the agent may look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessState {
    /// Like `T (stopped)`.
    pub state: String,
    /// The kernel's function it sleeps in; empty where it does not sleep, or may not be seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// The system call it is in, as `/proc/PID/syscall` has it: its number and arguments, or `running`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub syscall: String,
    /// Its stack in the kernel, where the agent is root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_stack: String,
}

/// From a node; a piece of a file travels beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Of one rank.
    Rank(Box<RankAnswer>),
    /// The piece, and how long the file is.
    Piece {
        /// Its length.
        length: u64,
    },
    /// The question cannot be answered at all.
    Failed {
        /// Why, in words.
        message: String,
    },
}

/// The newest entries of what the Flight Recorders of one rank said, as many as fit, in the order of their time, and how many are left
/// out; of the rest (process groups, their members and counts) what any of them says.
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
    fn what_nccl_recorded_stands_among_the_rest_by_its_time() {
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
        for (wish, fine) in [
            (TraceWish::Seconds(0), false),
            (TraceWish::Seconds(30), true),
            (TraceWish::Seconds(31), false),
            (TraceWish::Steps(1), true),
            (TraceWish::Steps(101), false),
        ] {
            assert_eq!(wish.problem().is_none(), fine, "{wish:?}");
        }
    }
}
