//! Decides what follows an attempt that has ended.
//!
//! The checks, in this order: a person's stop; a cause that no restart can repair; an unknown attempt on a node; the restart budget; lack
//! of progress. If an attempt passes all of them, another one follows after a pause, without the nodes that caused the failure. Each count
//! starts again when a person resumes the run.

use crate::run::state::attempt::Attempt;
use crate::run::state::fault::{Exclusion, Fault, FaultKind};
use crate::run::state::judge::is_hardware;
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::node_task::NodeTask;
use crate::run::state::{Cause, Outcome};
use crate::time::TimestampMs;

/// Attempts in a row without a single step after which the run is not restarted: the next attempt would not come further either.
const ATTEMPTS_WITHOUT_STEP_MAX: usize = 3;
/// Attempts in a row that end at the same step after which the run is not restarted: the second shows that it was no coincidence.
const ATTEMPTS_AT_SAME_STEP_MAX: usize = 2;
/// Attempts whose port was taken, after which the run is not restarted. A taken port is not a failure of the run and does not count as a
/// restart; but if it happens this often, the node has another problem.
const PORT_RETRIES_MAX: usize = 3;
/// The pause before the first restart. It doubles each time, so that a broken run does not overload its nodes.
const RESTART_PAUSE_MS: i64 = 1_000;
/// The longest pause before a restart.
const RESTART_PAUSE_MAX_MS: i64 = 60_000;

/// What follows an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt, at this time.
    RestartAt(TimestampMs),
    /// No other attempt; with the reason where one is needed.
    End(Option<String>),
}

/// Decides what follows when the current attempt has ended on all nodes.
pub(super) fn next(machine: &Machine, outcome: &Outcome, now_ms: TimestampMs) -> Next {
    if machine.desired != DesiredState::Run || outcome.cause.is_definite() {
        return Next::End(None);
    }
    if let Some(attempt) = machine.unknown_attempt {
        return Next::End(Some(format!(
            "it is not restarted, because a node holds attempt {attempt} of it, which is not known here"
        )));
    }
    let tried = since_requested(machine, outcome);
    if let Some(reason) = over_budget(machine, &tried).or_else(|| no_progress(&tried)) {
        return Next::End(reason);
    }
    Next::RestartAt(now_ms + pause_ms(tried.len()))
}

/// Returns true if a restart could follow if the current attempt failed now because of a lost node.
pub(super) fn has_budget(machine: &Machine) -> bool {
    let lost = Outcome::new(Cause::NodeLost, "");
    over_budget(machine, &since_requested(machine, &lost)).is_none()
}

/// Returns the nodes that the next attempt runs without: those excluded before, and those that failed this attempt.
pub(super) fn exclusions(attempt: &Attempt) -> Vec<Exclusion> {
    let mut excluded = attempt.placement.excluded.clone();
    for task in &attempt.nodes {
        if let Some(fault) = task.fault.clone().or_else(|| hardware_fault(task)) {
            excluded.retain(|exclusion| exclusion.node != task.node);
            excluded.push(Exclusion {
                node: task.node.clone(),
                fault,
            });
        }
    }
    excluded
}

/// An attempt with its outcome.
type EndedAttempt<'a> = (&'a Attempt, &'a Outcome);

/// Returns the attempts since the last one that a person requested, oldest first; the current one with the given outcome.
fn since_requested<'a>(machine: &'a Machine, outcome: &'a Outcome) -> Vec<EndedAttempt<'a>> {
    let first = machine
        .attempts
        .iter()
        .rposition(|attempt| attempt.requested_by_user)
        .unwrap_or(0);
    let (current, earlier) = machine.attempts[first..]
        .split_last()
        .expect("a run is made with its first attempt");
    let earlier = earlier
        .iter()
        .filter_map(|attempt| Some((attempt, attempt.outcome.as_ref()?)));
    earlier.chain([(current, outcome)]).collect()
}

/// Returns `Some` if no restart is left. It contains the reason as text, or `None` if the run had no restarts.
fn over_budget(machine: &Machine, tried: &[EndedAttempt<'_>]) -> Option<Option<String>> {
    let port = |(_, outcome): &&EndedAttempt<'_>| outcome.cause == Cause::PortInUse;
    let ports = tried.iter().filter(port).count();
    if tried.last().is_some_and(|last| port(&last)) {
        return (ports > PORT_RETRIES_MAX).then(|| {
            Some(format!(
                "the port was taken in {ports} attempts, so it is not tried again"
            ))
        });
    }
    let budget = machine.spec.max_restarts;
    let used = tried.len() - ports - 1;
    (used >= usize::try_from(budget).unwrap_or(usize::MAX)).then(|| match budget {
        0 => None,
        1 => Some("the one restart it had is used up".to_owned()),
        _ => Some(format!("all {budget} restarts are used up")),
    })
}

fn no_progress(tried: &[EndedAttempt<'_>]) -> Option<Option<String>> {
    let without_step = tried
        .iter()
        .rev()
        .filter(|(_, outcome)| outcome.cause != Cause::PortInUse)
        .take_while(|(attempt, _)| !attempt.made_progress())
        .count();
    if without_step >= ATTEMPTS_WITHOUT_STEP_MAX {
        return Some(Some(format!(
            "{without_step} attempts in a row ended without a single step, so it is not tried again"
        )));
    }
    let step = tried.last().and_then(end_step)?;
    let at_same = tried
        .iter()
        .rev()
        .take_while(|tried| end_step(tried) == Some(step))
        .count();
    (at_same >= ATTEMPTS_AT_SAME_STEP_MAX).then(|| {
        Some(format!(
            "{at_same} attempts in a row failed after the same step, {step}, so it is not tried again"
        ))
    })
}

/// Returns the last step before a failure that the training itself may have caused, from the ranks' exits. The steps that the collector
/// sees are seconds old, and could be equal by coincidence.
fn end_step((attempt, outcome): &EndedAttempt<'_>) -> Option<u64> {
    if outcome.cause.is_external() {
        return None;
    }
    let exits = || attempt.ranks().filter_map(|(_, rank)| rank.exit.as_ref());
    let culprit = exits().find(|exit| Some(exit.rank) == outcome.rank);
    culprit
        .and_then(|exit| exit.last_step)
        .or_else(|| exits().filter_map(|exit| exit.last_step).max())
}

fn hardware_fault(task: &NodeTask) -> Option<Fault> {
    let exits = task.ranks.values().filter_map(|rank| rank.exit.as_ref());
    let broken = exits
        .filter(|exit| exit.failed())
        .find(|exit| is_hardware(exit))?;
    Some(Fault {
        kind: FaultKind::Hardware,
        reason: format!("its hardware failed under rank {}: {broken}", broken.rank),
    })
}

fn pause_ms(attempts: usize) -> i64 {
    let doublings = u32::try_from(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(16);
    (RESTART_PAUSE_MS << doublings).min(RESTART_PAUSE_MAX_MS)
}
