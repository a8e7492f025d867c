//! What no page shows on purpose, each with its reason.

use std::fmt;

use Reason::{Command, Elsewhere, ForPrograms, InWords};

/// An endpoint that no page requests.
pub(super) struct Endpoint {
    /// Method and path.
    pub(super) endpoint: &'static str,
    pub(super) reason: Reason,
}

/// Fields of a type that no page reads.
pub(super) struct Fields {
    pub(super) of: &'static str,
    pub(super) fields: &'static [&'static str],
    pub(super) reason: Reason,
}

/// Why something is left out.
pub(super) enum Reason {
    /// A page shows the same from another source.
    Elsewhere(&'static str),
    /// A function of `domain` makes a sentence of it, which a page shows.
    InWords(&'static str),
    /// Programs use it, for this.
    ForPrograms(&'static str),
    /// This command does it.
    Command(&'static str),
}

pub(super) static ENDPOINTS: [Endpoint; 6] = [
    endpoint(
        "GET /api/gpus",
        Elsewhere("the stream sends the nodes with their GPUs"),
    ),
    endpoint("GET /api/nodes", Elsewhere("the stream sends them")),
    endpoint(
        "GET /api/unknown-attempts",
        Elsewhere("the stream sends them with their node and run"),
    ),
    endpoint("POST /api/runs/{id}/flight", Command("lockstep run flight")),
    endpoint(
        "POST /api/runs/{id}/flight-digest",
        ForPrograms("the analysers read it"),
    ),
    endpoint(
        "POST /api/runs/{id}/wait-counters",
        ForPrograms("a raw answer of PyTorch"),
    ),
];

pub(super) static FIELDS: [Fields; 15] = [
    fields("Change", &["follows", "reverts"], InWords("Change::cause")),
    fields(
        "Change",
        &["reverts_live"],
        ForPrograms("the number of the reverted change"),
    ),
    fields(
        "DiagnosisBundle",
        &["chart_values", "events", "made_ms"],
        Elsewhere("the page of the diagnosis downloads the whole bundle"),
    ),
    fields("FindingView", &["phase"], InWords("Finding::sentence")),
    fields("Frame", &["function"], InWords("Frame::fmt")),
    fields("How", &["flag", "variables"], InWords("How::words")),
    fields(
        "InPlaceChange",
        &["orders"],
        ForPrograms("numbers of its actions"),
    ),
    fields(
        "LogPiece",
        &["missing"],
        Elsewhere("the text of the piece says so"),
    ),
    fields(
        "Memory",
        &[
            "device",
            "inactive_split_bytes",
            "largest_free_bytes",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "process_bytes",
            "requested_bytes",
            "retries",
            "total_bytes",
            "top",
            "unallocated_bytes",
        ],
        Elsewhere("the outcome of the attempt explains it"),
    ),
    fields(
        "NodeTaskView",
        &["node_rank"],
        Elsewhere("the command line of the node has it"),
    ),
    fields(
        "RankExit",
        &["at_ns"],
        ForPrograms("the order of failures; pages mark the first"),
    ),
    fields("RankExit", &["error_type"], InWords("RankExit::fmt")),
    fields(
        "RankStacks",
        &["threads"],
        Elsewhere("the groups have the stack of the main thread"),
    ),
    fields(
        "Verdict",
        &["losses", "missing_steps", "recovery"],
        Elsewhere("`summary` has them in words"),
    ),
    fields("Witness", &["compared_with"], InWords("Witness::words")),
];

const fn endpoint(endpoint: &'static str, reason: Reason) -> Endpoint {
    Endpoint { endpoint, reason }
}

const fn fields(of: &'static str, fields: &'static [&'static str], reason: Reason) -> Fields {
    Fields { of, fields, reason }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(what) => write!(f, "shown from elsewhere: {what}"),
            Self::InWords(function) => write!(f, "shown in words: `{function}`"),
            Self::ForPrograms(what) => write!(f, "for programs: {what}"),
            Self::Command(command) => write!(f, "`{command}`"),
        }
    }
}
