//! Timeouts: what a run waits for, how long, and what follows when it does not happen.
//!
//! ```text
//! preflight of a node              PREPARE_TIMEOUT_MS              → prepare_failed
//! its answer to a measurement      the measurement's own time + 30 s  → prepare_failed
//! a node whose agent is away       spec.node_timeout_s since its last message and the run's last step  → node_lost
//!   … all nodes of the run         ALL_AWAY_MS, and only if a restart is left: more likely the collector is disconnected than all of them
//!   … while the run stops          ABANDON_AFTER_MS                → given up; the next attempt runs elsewhere
//! a step                           spec.stall_timeout_s            → stuck, with the rank that the others wait for
//!   … of a stopped process         at most STOPPED_PROCESS_TIMEOUT_MS
//! the ranks beside one that exited with 0                 EARLY_EXIT_MS without a step → exited_early
//! ```
//! The ranks of a node whose agent is away may still run. As long as the other ranks make steps, they do, and nothing happens. A node that
//! was given up and comes back is told to stop what it holds before it gets anything new.

use crate::ident::{NodeName, Rank};
use crate::run::state::attempt::Attempt;
use crate::run::state::fault::NodeFailure;
use crate::run::state::fault::{Exclusion, Fault, FaultKind};
use crate::run::state::judge::{early, node_lost};
use crate::run::state::machine::Machine;
use crate::run::state::node_task::{Looked, NodePhase, NodeTask, RankTask, Stall};
use crate::run::state::policy::has_budget;
use crate::run::state::{Cause, Outcome, StallCause};
use crate::time::TimestampMs;

/// An agent that is away for longer makes the run `Lost`. Long enough for several reconnects with back-off.
pub const LOST_AFTER_MS: i64 = 30_000;
/// While the run stops, a node that is away for longer is given up, because the run must end.
pub const ABANDON_AFTER_MS: i64 = 120_000;
/// If all nodes of a run are away, the collector is probably disconnected itself, so this limit is long. But a single machine may really be
/// gone.
pub const ALL_AWAY_MS: i64 = 600_000;
/// Longest preflight of a node. Importing PyTorch from a busy network file system takes minutes, but not more.
pub const PREPARE_TIMEOUT_MS: i64 = 300_000;
/// Limit for a process that a signal stopped; only another signal continues it. A person who debugs it has this long, or sets the stall
/// timeout to 0.
const STOPPED_PROCESS_TIMEOUT_MS: i64 = 60_000;
/// Limit for ranks that run on after another one exited with 0. The ranks of a run end within seconds of each other; this leaves time for
/// work that one rank does alone at the end (rank 0 saves).
const EARLY_EXIT_MS: i64 = 120_000;

impl Machine {
    /// Fails the attempt, or gives up nodes, when a timeout has expired.
    pub(super) fn check_timeouts(&mut self, now_ms: TimestampMs) {
        if self.current().ended_ms.is_some() {
            return;
        }
        if self.is_stopping() {
            self.abandon_silent_nodes(now_ms);
            return;
        }
        let overdue = self
            .lost_node(now_ms)
            .or_else(|| self.overdue_preflight(now_ms))
            .or_else(|| self.overdue_measurement(now_ms))
            .or_else(|| self.stuck(now_ms))
            .or_else(|| self.left_alone(now_ms));
        if let Some(failure) = overdue {
            self.fail_at_node(failure, now_ms);
        }
    }

    /// Gives up nodes that are away while the run stops. What they may still run keeps them out of this run's next attempt, but does not
    /// prevent the run's end.
    fn abandon_silent_nodes(&mut self, now_ms: TimestampMs) {
        let patience_ms = self
            .spec
            .node_timeout_ms()
            .unwrap_or(ABANDON_AFTER_MS)
            .min(ABANDON_AFTER_MS);
        let silent = |task: &&mut NodeTask| task.is_silent(now_ms, patience_ms);
        for task in self.current_mut().nodes.iter_mut().filter(silent) {
            task.end_unreported(FaultKind::Away, away_reason(patience_ms));
        }
    }

    /// Returns the failure if a node is away and the other nodes make no step.
    fn lost_node(&self, now_ms: TimestampMs) -> Option<NodeFailure> {
        let attempt = self.current();
        let patience_ms = self.spec.node_timeout_ms()?;
        let away = |task: &NodeTask| task.phase == NodePhase::Ended || task.away_since_ms.is_some();
        let all_away = attempt.nodes.iter().all(away);
        let may_run = attempt.nodes.iter().any(|task| task.phase >= NodePhase::Starting);
        let patience_ms = match (all_away && may_run, has_budget(self)) {
            (true, true) => patience_ms.max(ALL_AWAY_MS),
            (true, false) => return None,
            (false, _) => patience_ms,
        };
        let moved_ms = attempt.progress.last_progress_ms.unwrap_or(i64::MIN);
        let no_step = now_ms.saturating_sub(moved_ms) > patience_ms;
        let silent = |task: &&NodeTask| no_step && task.is_silent(now_ms, patience_ms);
        let task = attempt.nodes.iter().find(silent)?;
        let reason = away_reason(patience_ms);
        Some(NodeFailure {
            outcome: node_lost(&task.node, &format!("{reason}, and no step was seen since")),
            exclusion: Some(Exclusion::away(&task.node, reason)),
        })
    }

    fn overdue_preflight(&self, now_ms: TimestampMs) -> Option<NodeFailure> {
        let attempt = self.current();
        let asked_ms = attempt.placement.placed_ms.unwrap_or(attempt.started_ms);
        if now_ms - asked_ms <= PREPARE_TIMEOUT_MS {
            return None;
        }
        let late = |task: &&NodeTask| {
            task.phase == NodePhase::Preparing
                || task.phase == NodePhase::Prepared && task.sees_first == Some(Looked::Asked)
        };
        let task = attempt.nodes.iter().find(late)?;
        let reason = format!(
            "it did not finish its preflight checks in {}",
            span(PREPARE_TIMEOUT_MS)
        );
        Some(given_up(task, reason))
    }

    /// Blames a node whose agent is away before one that only does not answer.
    fn overdue_measurement(&self, now_ms: TimestampMs) -> Option<NodeFailure> {
        let attempt = self.current();
        let check = attempt.findings.bandwidth.as_ref()?;
        if !check.is_late(&self.spec, now_ms) {
            return None;
        }
        let waiting = check
            .waiting
            .iter()
            .filter_map(|(node, _)| attempt.nodes.get(*node as usize));
        let task = waiting.min_by_key(|task| task.away_since_ms.is_none())?;
        let reason = "it did not answer when the bandwidth to another node was measured".to_owned();
        Some(given_up(task, reason))
    }

    /// Returns the failure if there was no step for too long. The culprit is a rank whose process is stopped or hangs in the kernel,
    /// otherwise the rank that is furthest behind. If several ranks are equally far, none is blamed, because they wait for each other.
    fn stuck(&self, now_ms: TimestampMs) -> Option<NodeFailure> {
        let timeout_ms = self.spec.stall_timeout_ms()?;
        let attempt = self.current();
        let moved_ms = attempt.progress.last_progress_ms.unwrap_or(i64::MIN);
        let is_due = |stall: &Stall| match stall.cause {
            StallCause::Stopped => now_ms - stall.since_ms >= timeout_ms.min(STOPPED_PROCESS_TIMEOUT_MS),
            StallCause::Uninterruptible => now_ms - stall.since_ms >= timeout_ms,
            StallCause::NoStep | StallCause::Other(_) => now_ms - stall.since_ms.max(moved_ms) >= timeout_ms,
        };
        if !stalls(attempt, Reporters::Connected).any(|stalled| is_due(stalled.stall)) {
            return None;
        }
        let suspects = suspects(attempt, Reporters::Connected);
        let first = suspects.iter().min_by_key(|suspect| {
            let is_stopped = suspect.stall.cause == StallCause::Stopped;
            (!is_stopped, suspect.stall.step, suspect.rank)
        })?;
        if first.is_held() {
            return Some(first.overdue(now_ms));
        }
        let outcome = match first_to_exit(attempt) {
            Some(outcome) => outcome,
            None if suspects.len() > 1 => unknown_culprit(first, suspects.len(), now_ms),
            None => return Some(first.overdue(now_ms)),
        };
        Some(NodeFailure {
            outcome,
            exclusion: None,
        })
    }

    /// Returns the failure if a rank exited with 0 and the others wait for it without a step. A script that never steps (inference over
    /// uneven parts) and one that does its last work on rank 0 alone are not affected.
    fn left_alone(&self, now_ms: TimestampMs) -> Option<NodeFailure> {
        let patience_ms = self.spec.stall_timeout_ms()?.min(EARLY_EXIT_MS);
        let attempt = self.current();
        let goes_on =
            |(task, rank): (&NodeTask, &RankTask)| rank.exit.is_none() && task.phase != NodePhase::Ended;
        let left: Vec<u32> = attempt
            .nodes
            .iter()
            .flat_map(|task| task.ranks.iter().map(move |(local, rank)| (task, *local, rank)))
            .filter(|(task, _, rank)| goes_on((task, rank)))
            .map(|(task, local, _)| task.first_rank + local)
            .collect();
        let last_work = left.is_empty() || left == [0];
        let quiet = attempt
            .progress
            .last_progress_ms
            .is_some_and(|moved| now_ms - moved >= patience_ms);
        if last_work || !quiet || !attempt.made_progress() {
            return None;
        }
        first_to_exit(attempt).map(|outcome| NodeFailure {
            outcome,
            exclusion: None,
        })
    }
}

/// A rank that makes no progress, with its node.
pub(super) struct StalledRank<'a> {
    pub(super) node: &'a NodeName,
    pub(super) rank: Rank,
    pub(super) stall: &'a Stall,
}

fn given_up(task: &NodeTask, reason: String) -> NodeFailure {
    NodeFailure {
        outcome: Outcome::at_node(
            Cause::PrepareFailed,
            &task.node,
            format!("node {} was given up: {reason}", task.node),
        ),
        exclusion: Some(Exclusion::away(&task.node, reason)),
    }
}

/// The nodes whose reports of stalls count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reporters {
    /// Nodes whose agents are connected: while a node is away, its report that a rank makes progress again would not arrive.
    Connected,
    /// All nodes, as if those that are away had nothing new to report.
    All,
}

/// Returns the stalled ranks.
fn stalls(attempt: &Attempt, reporters: Reporters) -> impl Iterator<Item = StalledRank<'_>> {
    let ranks = attempt
        .nodes
        .iter()
        .flat_map(|task| task.ranks.iter().map(move |(local, rank)| (task, *local, rank)));
    let is_all = reporters == Reporters::All;
    ranks
        .filter(move |(task, _, rank)| (is_all || task.away_since_ms.is_none()) && rank.exit.is_none())
        .filter_map(|(task, local, rank)| {
            Some(StalledRank {
                node: &task.node,
                rank: Rank(task.first_rank + local),
                stall: rank.stall.as_ref()?,
            })
        })
}

fn unknown_culprit(one: &StalledRank<'_>, ranks: usize, now_ms: TimestampMs) -> Outcome {
    let after = one.after();
    let waits = span(now_ms - one.stall.since_ms);
    let message = format!(
        "no rank has made a step for {waits}; {ranks} ranks are equally far, {after}, so which one keeps the others waiting is unknown"
    );
    Outcome::new(Cause::Stuck, message)
}

/// Returns the ranks that the others may be waiting for: all ranks that the kernel holds, otherwise all ranks that are furthest behind. If
/// there are several of the latter, it is not known which one it is.
pub(super) fn suspects(attempt: &Attempt, reporters: Reporters) -> Vec<StalledRank<'_>> {
    let mut suspects: Vec<StalledRank<'_>> = stalls(attempt, reporters).collect();
    if suspects.iter().any(StalledRank::is_held) {
        suspects.retain(StalledRank::is_held);
    } else {
        let furthest_behind = suspects.iter().map(|suspect| suspect.stall.step).min();
        suspects.retain(|suspect| Some(suspect.stall.step) == furthest_behind);
    }
    suspects
}

impl StalledRank<'_> {
    /// Returns the position of the rank in the training, as text.
    fn after(&self) -> String {
        let step = self.stall.step;
        step.map_or("before their first step".to_owned(), |step| {
            format!("after step {step}")
        })
    }

    /// Returns true if the kernel reports the rank as stopped or uninterruptible, so that it does not merely wait for another rank.
    pub(super) fn is_held(&self) -> bool {
        matches!(
            self.stall.cause,
            StallCause::Stopped | StallCause::Uninterruptible
        )
    }

    fn overdue(&self, now_ms: TimestampMs) -> NodeFailure {
        let (who, waits) = (
            format!("rank {} on node {}", self.rank, self.node),
            span(now_ms - self.stall.since_ms),
        );
        let after = self
            .stall
            .step
            .map_or("before its first step".to_owned(), |step| {
                format!("after step {step}")
            });
        let message = match &self.stall.cause {
            StallCause::Stopped => format!(
                "{who} was stopped by a signal (process state T) {after} and has done nothing for {waits}; the other ranks wait for it"
            ),
            StallCause::Uninterruptible => format!(
                "{who} hangs in the kernel (process state D) {after}, for {waits}; a disk, a network file system or a driver does not \
                 answer it"
            ),
            StallCause::NoStep => format!("{who} is stuck {after}: no step for {waits}"),
            StallCause::Other(cause) => {
                format!("{who} is stuck {after}: no step for {waits} (its agent says `{cause}`)")
            }
        };
        let hardware = self.stall.cause == StallCause::Uninterruptible;
        let exclusion = hardware.then(|| Exclusion {
            node: self.node.clone(),
            fault: Fault {
                kind: FaultKind::Hardware,
                reason: format!("rank {} hung in its kernel", self.rank),
            },
        });
        NodeFailure {
            outcome: Outcome {
                rank: Some(self.rank),
                ..Outcome::at_node(Cause::Stuck, self.node, message)
            },
            exclusion,
        }
    }
}

fn first_to_exit(attempt: &Attempt) -> Option<Outcome> {
    let well = attempt
        .ranks()
        .filter_map(|(task, rank)| Some((task, rank.exit.as_ref().filter(|exit| !exit.failed())?)));
    let (task, exit) = well.min_by_key(|(_, exit)| exit.at_ns)?;
    Some(early(&task.node, exit.rank, exit.last_step))
}

fn away_reason(patience_ms: i64) -> String {
    format!("its agent has not been heard for {}", span(patience_ms))
}

fn span(ms: i64) -> String {
    match ms / 1_000 {
        seconds if seconds >= 120 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} seconds"),
    }
}
