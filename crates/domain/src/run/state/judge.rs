//! Judges how an attempt ended: which of many failures was the first, and what its cause is.
//!
//! When one rank fails, every other rank follows within milliseconds: connections are closed, the launcher sends SIGTERM. Timestamps alone
//! do not separate them (a peer may notice before the failed rank has written why), so each exit is first weighed by its text:
//!
//! ```text
//! 1  a failure of the rank itself: exception, OOM, signal         the earliest of these, by its node's clock
//!      unless the run ended before it for a cause of group 2
//! 2  what no rank can report: stuck, node lost, shim gone, refused  progress.first_failure
//! 3  a collective timed out                                       the earliest
//! 4  an exit code without text
//! 5  a peer was gone: if a rank had exited with 0 before, that rank; if a node is away, that node
//! 6  told to end (SIGTERM)
//! ```
//! Every failure that is neither the root cause nor in group 1 belongs to the cascade.

mod exit;

pub(super) use exit::is_hardware;

use exit::Weight;

use crate::ident::{NodeName, Rank};
use crate::run::state::attempt::Attempt;
use crate::run::state::fault::FaultKind;
use crate::run::state::machine::DesiredState;
use crate::run::state::node_task::NodeTask;
use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport};
use crate::run::state::{Cause, Outcome, RankExit};

/// Time in milliseconds for the other ranks to end after one has failed; they have nothing left to wait for.
pub(super) const FAILURE_GRACE_MS: u64 = 10_000;
/// One second less than [`FAILURE_GRACE_MS`], because clocks differ a little.
const KILLED_BY_US_AFTER_MS: i64 = FAILURE_GRACE_MS.cast_signed() - 1_000;

/// Returns the outcome of an attempt that has ended on all nodes.
pub(super) fn judge(attempt: &Attempt, desired: DesiredState) -> Outcome {
    if attempt.progress.failing_since_ms.is_none() {
        return if desired == DesiredState::Run {
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

/// Returns the rank that caused the failure, as far as it is known. Called once for all ranks of an attempt.
pub(crate) fn named_rank(attempt: &Attempt) -> Option<Rank> {
    attempt.progress.failing_since_ms?;
    judge(attempt, DesiredState::Run).rank
}

/// Returns true if a rank's failure followed from another rank's failure. `named` is the rank that caused it.
pub(crate) fn is_cascade(attempt: &Attempt, named: Option<Rank>, exit: &RankExit) -> bool {
    exit.failed()
        && attempt.progress.failing_since_ms.is_some()
        && named != Some(exit.rank)
        && weigh(attempt, exit) != Weight::Own
}

/// A failed exit of a rank.
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

/// Weighs an exit by its text, and by the time at which it was killed: after the grace period, the shim's SIGKILL ends the remaining ranks.
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

/// Returns the rank where the failure began, if a rank's exit shows that.
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

/// Returns the rank that exited with 0 and then closed its connections, or did not join the next collective.
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
        "its agent is away, and the other nodes' ranks lost their connections",
    ))
}

fn earliest(attempt: &Attempt) -> Option<Outcome> {
    let first = failures(attempt).min_by_key(|failure| (failure.weight, failure.exit.at_ns))?;
    Some(rank_outcome(&first.task.node, first.exit))
}

fn outweighs_exits(trouble: &&Outcome) -> bool {
    trouble.cause.outweighs_exits()
}

// === failures that are not a rank's exit ===

/// Returns the outcome for a report of a failure that is not a rank's exit.
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

/// Returns the outcome for a rank that finished before the others.
pub(super) fn early(node: &NodeName, rank: Rank, step: Option<u64>) -> Outcome {
    let after = step.map_or(String::new(), |step| format!(" after step {step}"));
    Outcome {
        rank: Some(rank),
        ..Outcome::at_node(
            Cause::ExitedEarly,
            node,
            format!(
                "rank {rank} on node {node} exited with 0{after} while other ranks continued: they would wait for it forever; \
                 check whether its data ended sooner than theirs"
            ),
        )
    }
}

/// Returns the outcome for a lost node.
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
            "another process took the port for the rendezvous between its lease and the start".to_owned(),
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
            format!("{who} could not use the leased port, because another process had taken it ({kind})")
        }
        (Cause::NcclTimeout, ..) => format!("{who} waited too long for a collective of NCCL"),
        _ if !kind.is_empty() => format!("{who} raised {kind}"),
        (_, Some(signal), _) => format!("{who} was killed by {}", signal_name(signal)),
        (_, None, Some(code)) => format!("{who} exited with {code}"),
        (_, None, None) => format!("{who} ended, and how it ended is not known"),
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
        // Torch's own message contains the same sizes, with advice for every possible reason.
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
    Outcome::new(Cause::Succeeded, "all ranks ended successfully")
}

pub(super) fn stopped() -> Outcome {
    Outcome::new(Cause::Stopped, "stopped as asked")
}

fn unknown() -> Outcome {
    Outcome::new(
        Cause::ExitCode,
        "a rank failed, and the cause is not known; see the launcher's log",
    )
}

/// Returns the number and name of a signal. The numbers are those of Linux on x86-64 and arm64.
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
