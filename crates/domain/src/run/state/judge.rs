//! How an attempt ended: which of many failures was the first, and what to call it.
//!
//! One rank fails, and every other follows within milliseconds: connections closed, SIGTERM from the launcher. The root
//! cause is the rank that failed first by its node's clock; the others are the cascade.

use crate::ident::NodeName;
use crate::run::state::advance::stopped;
use crate::run::state::machine::{Attempt, Machine, Wished};
use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport};
use crate::run::state::{Outcome, RankExit};

/// Attempts in a row without a single step before restarting is given up: the next would not come further either.
const ATTEMPTS_WITHOUT_PROGRESS_MAX: usize = 3;

/// The outcome of an attempt of which nothing is left.
pub(super) fn judge(attempt: &Attempt, wished: Wished) -> Outcome {
    if attempt.failing_since_ms.is_none() {
        return if wished == Wished::Run {
            succeeded()
        } else {
            stopped()
        };
    }
    let failures = attempt
        .ranks()
        .filter_map(|(task, rank)| Some((task, rank.exit.as_ref()?)));
    let first = failures
        .filter(|(_, exit)| exit.failed())
        .min_by_key(|(_, exit)| exit.at_ns);
    match (first, &attempt.trouble) {
        (Some((task, exit)), _) => rank_outcome(&task.node, exit),
        (None, Some(trouble)) => trouble.clone(),
        (None, None) => Outcome {
            cause: "exit_code".into(),
            node: None,
            rank: None,
            message: "a rank failed, but how is not known; see the launcher's log".into(),
        },
    }
}

/// Whether another attempt follows.
pub(super) fn may_restart(machine: &Machine, outcome: &Outcome) -> bool {
    const HELPLESS: [&str; 5] = ["succeeded", "stopped", "refused", "prepare_failed", "agent_lost"];
    let used = machine.attempts.len().saturating_sub(1);
    let budget = usize::try_from(machine.spec.max_restarts).unwrap_or(usize::MAX);
    let without_progress = machine
        .attempts
        .iter()
        .rev()
        .take_while(|attempt| !attempt.made_progress())
        .count();
    machine.wished == Wished::Run
        && used < budget
        && !HELPLESS.contains(&outcome.cause.as_str())
        && without_progress < ATTEMPTS_WITHOUT_PROGRESS_MAX
}

/// What went wrong, for reports that are not a rank's exit.
pub(super) fn trouble(node: &NodeName, report: &NodeReport) -> Option<Outcome> {
    let (cause, message) = match report {
        NodeReport::Refused { reason, .. } => ("refused", format!("node {node} refused the run: {reason}")),
        NodeReport::PrepareFailed { message } => {
            ("prepare_failed", format!("node {node} cannot run it: {message}"))
        }
        NodeReport::StartFailed { message } => (
            "start_failed",
            format!("node {node} could not start it: {message}"),
        ),
        NodeReport::Ended(end) => return Some(end_outcome(node, end)),
        _ => return None,
    };
    Some(Outcome {
        cause: cause.into(),
        node: Some(node.to_string()),
        rank: None,
        message,
    })
}

fn end_outcome(node: &NodeName, end: &NodeEnd) -> Outcome {
    let (cause, what) = match (end.cause, end.code, end.signal) {
        (EndCause::ShimDied, ..) => (
            "shim_died",
            "the process that owned the ranks vanished, so how they ended is not known".to_owned(),
        ),
        (_, _, Some(signal)) => (
            "signal",
            format!("the launcher was killed by {}", signal_name(signal)),
        ),
        (_, Some(code), None) => ("exit_code", format!("the launcher exited with {code}")),
        (_, None, None) => ("start_failed", "nothing was started".to_owned()),
    };
    let message = with_detail(format!("node {node}: {what}"), &end.message);
    Outcome {
        cause: cause.into(),
        node: Some(node.to_string()),
        rank: None,
        message,
    }
}

fn rank_outcome(node: &NodeName, exit: &RankExit) -> Outcome {
    let who = format!("rank {} on node {node}", exit.rank);
    let detail = exit.message.as_deref().unwrap_or("");
    let torch_out_of_memory = exit
        .error_type
        .as_deref()
        .is_some_and(|kind| kind.ends_with("OutOfMemoryError"));
    let (cause, message) = match (&exit.error_type, exit.signal, exit.code) {
        _ if exit.out_of_memory => (
            "out_of_memory",
            format!("{who} was killed by the kernel because the host ran out of memory"),
        ),
        (Some(kind), ..) if torch_out_of_memory => (
            "out_of_memory",
            with_detail(format!("{who} ran out of GPU memory ({kind})"), detail),
        ),
        (Some(kind), ..) => ("exception", with_detail(format!("{who} raised {kind}"), detail)),
        (None, Some(signal), _) => (
            "signal",
            with_detail(format!("{who} was killed by {}", signal_name(signal)), detail),
        ),
        (None, None, Some(code)) => (
            "exit_code",
            with_detail(format!("{who} exited with {code}"), detail),
        ),
        (None, None, None) => (
            "exit_code",
            with_detail(format!("{who} ended, how is not known"), detail),
        ),
    };
    Outcome {
        cause: cause.into(),
        node: Some(node.to_string()),
        rank: Some(exit.rank),
        message,
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
    Outcome {
        cause: "succeeded".into(),
        node: None,
        rank: None,
        message: "all ranks ended well".into(),
    }
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
