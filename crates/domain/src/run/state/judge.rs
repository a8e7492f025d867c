//! How an attempt ended: which of many failures was the first, and what to call it.
//!
//! One rank fails, and every other follows within milliseconds: connections closed, SIGTERM from the launcher. Stamps alone do not
//! tell them apart (a peer may notice before the one that failed has written why), so each exit is weighed by its words first:
//!
//! ```text
//! 1  a failure of the rank's own: exception, OOM, signal          the earliest of these, by its node's clock
//!      unless the run was ended before it for what is in 2
//! 2  what no rank can say: stuck, node lost, shim gone, refused   progress.first_failure
//! 3  time ran out in a collective                                 the earliest
//! 4  an exit code without words
//! 5  a peer was gone: where a rank had exited with 0 before, that rank; where a node is away, that node
//! 6  told to end (SIGTERM)
//! ```
//! Whatever failed and is neither the root nor of the first kind is the cascade.

mod exit;

pub(super) use exit::is_hardware;

use exit::Weight;

use crate::ident::{NodeName, Rank};
use crate::run::state::attempt::Attempt;
use crate::run::state::fault::FaultKind;
use crate::run::state::machine::Wished;
use crate::run::state::node_task::NodeTask;
use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport};
use crate::run::state::{Cause, Outcome, RankExit};

/// Time for the other ranks to end after one has failed; they have nothing left to wait for.
pub(super) const FAILURE_GRACE_MS: u64 = 10_000;
/// A second less than [`FAILURE_GRACE_MS`], for clocks that differ a little.
const KILLED_BY_US_AFTER_MS: i64 = FAILURE_GRACE_MS.cast_signed() - 1_000;

/// The outcome of an attempt of which nothing is left.
pub(super) fn judge(attempt: &Attempt, wished: Wished) -> Outcome {
    if attempt.progress.failing_since_ms.is_none() {
        return if wished == Wished::Run {
            succeeded()
        } else {
            stopped()
        };
    }
    let strong = attempt.progress.first_failure.as_ref().filter(outweighs_exits);
    match (root(attempt), strong, &attempt.progress.first_failure) {
        (Some(root), ..) if root.weight == Weight::TimedOut => {
            exited_early(attempt).unwrap_or_else(|| rank_outcome(&root.task.node, root.exit))
        }
        (Some(root), ..) => rank_outcome(&root.task.node, root.exit),
        (None, Some(trouble), _) => trouble.clone(),
        (None, None, trouble) => {
            let from_exits = exited_early(attempt)
                .or_else(|| node_away(attempt))
                .or_else(|| earliest(attempt));
            from_exits.or_else(|| trouble.clone()).unwrap_or_else(unknown)
        }
    }
}

/// The rank that is the cause, as far as it is known; asked once for all ranks of an attempt.
pub(crate) fn named_rank(attempt: &Attempt) -> Option<Rank> {
    attempt.progress.failing_since_ms?;
    judge(attempt, Wished::Run).rank
}

/// Whether a rank's failure followed from another's, given the rank that is the cause.
pub(crate) fn is_cascade(attempt: &Attempt, named: Option<Rank>, exit: &RankExit) -> bool {
    exit.failed()
        && attempt.progress.failing_since_ms.is_some()
        && named != Some(exit.rank)
        && weigh(attempt, exit) != Weight::Own
}

/// An exit of one of the attempt's ranks.
struct Failure<'a> {
    task: &'a NodeTask,
    exit: &'a RankExit,
    weight: Weight,
}

fn failures(attempt: &Attempt) -> impl Iterator<Item = Failure<'_>> {
    let exits = attempt
        .ranks()
        .filter_map(|(task, rank)| Some((task, rank.exit.as_ref()?)));
    exits
        .filter(|(_, exit)| exit.failed())
        .map(|(task, exit)| Failure {
            task,
            exit,
            weight: weigh(attempt, exit),
        })
}

/// By its words, and by when it was killed: once the grace is over the shim's SIGKILL ends what is left.
fn weigh(attempt: &Attempt, exit: &RankExit) -> Weight {
    let grace_over_ms = attempt
        .progress
        .failing_since_ms
        .map(|since| since + KILLED_BY_US_AFTER_MS);
    let killed = exit.signal == Some(9) && exit.error_type.is_none() && !exit.out_of_memory;
    if killed && grace_over_ms.is_some_and(|over| exit.at_ns / 1_000_000 >= over) {
        Weight::Told
    } else {
        Weight::of(exit)
    }
}

/// The rank where it began, where a rank can say so.
fn root(attempt: &Attempt) -> Option<Failure<'_>> {
    let strong = attempt
        .progress
        .first_failure
        .as_ref()
        .is_some_and(|trouble| outweighs_exits(&trouble));
    let came_first = attempt.progress.first_failure_ms.is_some()
        && attempt.progress.first_failure_ms == attempt.progress.failing_since_ms;
    let before_trouble = |exit: &RankExit| {
        let known_ms = attempt.progress.first_failure_ms.unwrap_or(i64::MAX);
        !came_first || exit.at_ns / 1_000_000 <= known_ms
    };
    let tells = |failure: &Failure<'_>| {
        if strong {
            failure.weight == Weight::Own && before_trouble(failure.exit)
        } else {
            failure.weight <= Weight::Unexplained
        }
    };
    failures(attempt)
        .filter(tells)
        .min_by_key(|failure| (failure.weight, failure.exit.at_ns))
}

/// A peer that had nothing left to do closed its connections, or did not come to the next collective.
fn exited_early(attempt: &Attempt) -> Option<Outcome> {
    let waited = |failure: &Failure<'_>| matches!(failure.weight, Weight::Consequence | Weight::TimedOut);
    failures(attempt).find(waited)?;
    let ended_well = attempt
        .ranks()
        .filter_map(|(task, rank)| Some((task, rank.exit.as_ref().filter(|exit| !exit.failed())?)));
    let (task, exit) = ended_well.min_by_key(|(_, exit)| exit.at_ns)?;
    Some(early(&task.node, exit.rank, exit.last_step))
}

fn node_away(attempt: &Attempt) -> Option<Outcome> {
    failures(attempt).find(|failure| failure.weight == Weight::Consequence)?;
    let given_up = |task: &&NodeTask| {
        task.fault
            .as_ref()
            .is_some_and(|fault| fault.kind == FaultKind::Away)
    };
    let task = attempt.nodes.iter().find(given_up)?;
    Some(node_lost(
        &task.node,
        "its agent is not heard, and the other nodes' ranks lost their connections",
    ))
}

fn earliest(attempt: &Attempt) -> Option<Outcome> {
    let first = failures(attempt).min_by_key(|failure| (failure.weight, failure.exit.at_ns))?;
    Some(rank_outcome(&first.task.node, first.exit))
}

fn outweighs_exits(trouble: &&Outcome) -> bool {
    trouble.cause.outweighs_exits()
}

// === troubles: what is not a rank's exit ===

/// What went wrong, for reports that are not a rank's exit.
pub(super) fn trouble(node: &NodeName, report: &NodeReport) -> Option<Outcome> {
    let (cause, message) = match report {
        NodeReport::Refused { reason, .. } => {
            (Cause::Refused, format!("node {node} refused the run: {reason}"))
        }
        NodeReport::PrepareFailed { message } => (
            Cause::PrepareFailed,
            format!("node {node} cannot run it: {message}"),
        ),
        NodeReport::StartFailed { message } => (
            Cause::StartFailed,
            format!("node {node} could not start it: {message}"),
        ),
        NodeReport::Ended(end) => return Some(end_outcome(node, end)),
        _ => return None,
    };
    Some(Outcome::at_node(cause, node, message))
}

/// A rank that was done before the others.
pub(super) fn early(node: &NodeName, rank: Rank, step: Option<u64>) -> Outcome {
    let after = step.map_or(String::new(), |step| format!(" after step {step}"));
    Outcome {
        rank: Some(rank),
        ..Outcome::at_node(
            Cause::ExitedEarly,
            node,
            format!(
                "rank {rank} on node {node} exited with 0{after} while other ranks went on: they would wait for it for ever; \
                 look whether its data ended sooner than theirs"
            ),
        )
    }
}

/// A node that is gone.
pub(super) fn node_lost(node: &NodeName, what: &str) -> Outcome {
    Outcome::at_node(Cause::NodeLost, node, format!("node {node} was lost: {what}"))
}

fn end_outcome(node: &NodeName, end: &NodeEnd) -> Outcome {
    let (cause, what) = match (&end.cause, end.code, end.signal) {
        (EndCause::ShimDied, ..) => (
            Cause::ShimDied,
            "the process that owned the ranks vanished, so how they ended is not known".to_owned(),
        ),
        _ if exit::port_in_use(&end.message) => (
            Cause::PortInUse,
            "the port for the rendezvous was taken by someone else between its lease and the start"
                .to_owned(),
        ),
        (_, _, Some(signal)) => (
            Cause::Signal,
            format!("the launcher was killed by {}", signal_name(signal)),
        ),
        (_, Some(code), None) => (Cause::ExitCode, format!("the launcher exited with {code}")),
        (EndCause::Other(word), None, None) => (
            Cause::Unknown,
            format!(
                "its agent, which is newer than this collector, says that it ended by `{word}`; upgrade the collector"
            ),
        ),
        (_, None, None) => (Cause::StartFailed, "nothing was started".to_owned()),
    };
    Outcome::at_node(
        cause,
        node,
        with_detail(format!("node {node}: {what}"), &end.message),
    )
}

fn rank_outcome(node: &NodeName, exit: &RankExit) -> Outcome {
    let who = format!("rank {} on node {node}", exit.rank);
    let cause = exit::cause(exit);
    let kind = exit.error_type.as_deref().unwrap_or("");
    let what = match (&cause, exit.signal, exit.code) {
        (Cause::OutOfMemory, ..) => return out_of_memory(&who, node, exit),
        (Cause::CheckpointFailed, ..) if exit::says_disk_is_full(exit) => {
            format!("{who} could not save a checkpoint, its disk is full ({kind})")
        }
        (Cause::CheckpointFailed, ..) => format!("{who} could not save a checkpoint ({kind})"),
        (Cause::CheckpointUnreadable, ..) => format!("{who} could not read a checkpoint ({kind})"),
        (Cause::PortInUse, ..) => {
            format!("{who} could not use the leased port, someone else had taken it ({kind})")
        }
        (Cause::NcclTimeout, ..) => format!("{who} waited too long for a collective of NCCL"),
        _ if !kind.is_empty() => format!("{who} raised {kind}"),
        (_, Some(signal), _) => format!("{who} was killed by {}", signal_name(signal)),
        (_, None, Some(code)) => format!("{who} exited with {code}"),
        (_, None, None) => format!("{who} ended, how is not known"),
    };
    Outcome {
        rank: Some(exit.rank),
        ..Outcome::at_node(
            cause,
            node,
            with_detail(what, exit.message.as_deref().unwrap_or("")),
        )
    }
}

fn out_of_memory(who: &str, node: &NodeName, exit: &RankExit) -> Outcome {
    let message = if exit.out_of_memory {
        format!("{who} was killed by the kernel because the host ran out of memory")
    } else {
        let place = if exit::is_host_memory(exit) { "host" } else { "GPU" };
        let kind = exit.error_type.as_deref().unwrap_or("");
        let sizes = exit.memory.as_ref().map(ToString::to_string);
        // What torch says is the same sizes, and advice that is to fit any of the reasons.
        let detail = sizes
            .filter(|sizes| !sizes.is_empty())
            .or_else(|| exit.message.clone())
            .unwrap_or_default();
        with_detail(format!("{who} ran out of {place} memory ({kind})"), &detail)
    };
    Outcome {
        rank: Some(exit.rank),
        ..Outcome::at_node(Cause::OutOfMemory, node, message)
    }
}

fn with_detail(what: String, detail: &str) -> String {
    if detail.is_empty() {
        what
    } else {
        format!("{what}: {detail}")
    }
}

fn succeeded() -> Outcome {
    Outcome::new(Cause::Succeeded, "all ranks ended well")
}

pub(super) fn stopped() -> Outcome {
    Outcome::new(Cause::Stopped, "stopped as asked")
}

fn unknown() -> Outcome {
    Outcome::new(
        Cause::ExitCode,
        "a rank failed, but how is not known; see the launcher's log",
    )
}

/// As people know them; numbers are Linux's on x86-64 and arm64.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}
