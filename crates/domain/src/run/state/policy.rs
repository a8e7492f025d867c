//! What follows an attempt that has ended.
//!
//! In this order: a person's stop; a cause that no restart mends; the budget; no progress. Whatever passes all of them is tried again
//! after a pause, on other nodes where the cause was a node. Each count begins anew when a person resumes the run.

use crate::run::state::attempt::Attempt;
use crate::run::state::fault::{Exclusion, Fault, FaultKind};
use crate::run::state::judge::is_hardware;
use crate::run::state::machine::{Machine, Wished};
use crate::run::state::node_task::NodeTask;
use crate::run::state::{Cause, Outcome};
use crate::time::TimestampMs;

/// Attempts in a row without a single step before restarting is given up: the next would not come further either.
const ATTEMPTS_WITHOUT_STEP_MAX: usize = 3;
/// Attempts in a row that end at the same step: the second shows that it was no accident.
const ATTEMPTS_AT_SAME_STEP_MAX: usize = 2;
/// A port that was taken is nobody's failure and costs no restart; but a node where this goes on has another trouble.
const PORT_RETRIES_MAX: usize = 3;
/// The pause before the first restart; doubled each time, so that a broken run does not hammer its nodes.
const RESTART_PAUSE_MS: i64 = 1_000;
/// The longest pause before a restart.
const RESTART_PAUSE_MAX_MS: i64 = 60_000;

/// What is to follow.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt.
    RestartAt(TimestampMs),
    /// Nothing; with the reason where it needs one.
    End(Option<String>),
}

/// Decides when all of the current attempt has ended.
pub(super) fn next(machine: &Machine, outcome: &Outcome, now_ms: TimestampMs) -> Next {
    if machine.wished != Wished::Run || outcome.cause.is_definite() {
        return Next::End(None);
    }
    if let Some(attempt) = machine.unknown_attempt {
        return Next::End(Some(format!(
            "it is not restarted, because a node holds attempt {attempt} of it, which is not known here"
        )));
    }
    let tried = since_asked(machine, outcome);
    if let Some(reason) = over_budget(machine, &tried).or_else(|| no_progress(&tried)) {
        return Next::End(reason);
    }
    Next::RestartAt(now_ms + pause_ms(tried.len()))
}

/// Whether a restart could follow if the current attempt failed now for a lost node.
pub(super) fn has_budget(machine: &Machine) -> bool {
    let lost = Outcome::new(Cause::NodeLost, "");
    over_budget(machine, &since_asked(machine, &lost)).is_none()
}

/// Nodes that the next attempt is not given: those of before, and those that failed this one.
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

/// An attempt with how it ended.
type Tried<'a> = (&'a Attempt, &'a Outcome);

/// Attempts since a person last asked for one, oldest first; the current one with its outcome-to-be.
fn since_asked<'a>(machine: &'a Machine, outcome: &'a Outcome) -> Vec<Tried<'a>> {
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

/// `Some` when no restart is left, with words where there had been some.
fn over_budget(machine: &Machine, tried: &[Tried<'_>]) -> Option<Option<String>> {
    let port = |(_, outcome): &&Tried<'_>| outcome.cause == Cause::PortInUse;
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

fn no_progress(tried: &[Tried<'_>]) -> Option<Option<String>> {
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

/// The last step before a failure that the training itself may have brought about, as the ranks' exits tell it. Steps seen from afar
/// are seconds old, and would be the same by chance.
fn end_step((attempt, outcome): &Tried<'_>) -> Option<u64> {
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
