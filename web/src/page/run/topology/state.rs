//! The state of a rank, as a word and a colour.

use std::collections::BTreeSet;

use domain::api::runs::{AttemptView, RankView};
use domain::ident::Rank;
use domain::run::state::{Cause, RankExit};

use crate::language::tr;

/// From worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The rank failed first.
    Failed,
    /// The rank failed because another one had failed.
    Cascaded,
    /// The rank was stopped with all others.
    Stopped,
    /// The node is down.
    Lost,
    /// The rank is stuck.
    Stuck,
    /// A straggler: other ranks wait for it.
    Late,
    /// The process has not started.
    NotStarted,
    /// The rank is running.
    Running,
    /// The rank ended successfully.
    Done,
}

/// State of ranks from outside the attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RankContext {
    /// Nodes that are down.
    pub(super) down: BTreeSet<String>,
    /// Ranks that a diagnosis calls stuck.
    pub(super) stuck: BTreeSet<Rank>,
    /// Ranks that a diagnosis calls late.
    pub(super) late: BTreeSet<Rank>,
}

/// A rank of the attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankStatus {
    /// The node of the rank.
    pub(super) node: String,
    /// The state of the rank.
    pub(super) state: State,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Failed => tr("failed"),
            Self::Cascaded => tr("secondary failure"),
            Self::Stopped => tr("stopped"),
            Self::Lost => tr("lost"),
            Self::Stuck => tr("stuck"),
            Self::Late => tr("late"),
            Self::NotStarted => tr("not started"),
            Self::Running => tr("runs"),
            Self::Done => tr("done"),
        }
    }

    /// Returns the CSS classes of the cell. Its text keeps the page's colour, which is readable on all of them.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Failed | Self::Lost => "bg-error/25 border-error",
            Self::Stuck => "bg-warning/35 border-warning",
            Self::Late => "bg-warning/15 border-warning border-dashed",
            Self::Cascaded | Self::Stopped | Self::NotStarted => "bg-base-100 border-base-300 border-dashed",
            Self::Running => "bg-base-100 border-base-300",
            Self::Done => "bg-success/15 border-success/60",
        }
    }

    /// Returns true if the cell shows the state as a word.
    pub(super) fn stands_out(self) -> bool {
        self != Self::Running
    }
}

/// Returns the state of each rank of an attempt.
pub(super) fn rank_statuses(attempt: &AttemptView, context: &RankContext) -> Vec<(Rank, RankStatus)> {
    let ended = attempt.ended_ms.is_some();
    let outcome = attempt.outcome.as_ref();
    let stopped = outcome.is_some_and(|outcome| outcome.cause == Cause::Stopped);
    let nodes = attempt.nodes.iter();
    nodes
        .flat_map(|node| {
            node.ranks.iter().map(move |rank| {
                let down = !ended && context.down.contains(&node.node);
                let status = RankStatus {
                    node: node.node.clone(),
                    state: state(rank, down, stopped, context),
                };
                (rank.rank, status)
            })
        })
        .collect()
}

/// Returns true if a signal or its own handler of SIGTERM ended the rank, but not the kernel's OOM killer.
fn was_told(exit: &RankExit) -> bool {
    !exit.out_of_memory && (exit.signal.is_some() || exit.code == Some(128 + 15))
}

/// `down`: its node is down; `stopped`: all ranks were told to end, and ended.
fn state(rank: &RankView, down: bool, stopped: bool, context: &RankContext) -> State {
    match &rank.exit {
        Some(exit) if stopped && was_told(exit) => State::Stopped,
        Some(_) if rank.cascade => State::Cascaded,
        Some(exit) if exit.failed() => State::Failed,
        Some(_) => State::Done,
        None if down => State::Lost,
        None if rank.stall.is_some() || context.stuck.contains(&rank.rank) => State::Stuck,
        None if context.late.contains(&rank.rank) => State::Late,
        None if rank.pid.is_none() => State::NotStarted,
        None => State::Running,
    }
}

#[cfg(test)]
mod tests {
    use domain::run::state::{Stall, StallCause};

    use super::*;

    fn rank(pid: Option<u32>, code: Option<i32>, cascade: bool, stalls: bool) -> RankView {
        let exit = code.map(|code| RankExit {
            code: Some(code),
            ..RankExit::default()
        });
        let stall = stalls.then_some(Stall {
            since_ms: 0,
            step: None,
            cause: StallCause::Stopped,
        });
        RankView {
            rank: Rank(3),
            local_rank: 0,
            pid,
            step: None,
            exit,
            stall,
            cascade,
        }
    }

    #[test]
    fn the_worst_that_is_known_of_a_rank_counts() {
        let late = RankContext {
            late: BTreeSet::from([Rank(3)]),
            ..RankContext::default()
        };
        let well = RankContext::default();
        let runs = rank(Some(7), None, false, false);
        for (rank, down, context, expected) in [
            (&runs, false, &well, State::Running),
            (&runs, false, &late, State::Late),
            (&runs, true, &late, State::Lost),
            (&rank(Some(7), None, false, true), false, &late, State::Stuck),
            (&rank(None, None, false, false), false, &well, State::NotStarted),
            (&rank(Some(7), Some(0), false, false), true, &late, State::Done),
            (&rank(Some(7), Some(1), false, false), false, &well, State::Failed),
            (
                &rank(Some(7), Some(1), true, false),
                false,
                &well,
                State::Cascaded,
            ),
        ] {
            assert_eq!(state(rank, down, false, context), expected, "{rank:?}");
        }
    }

    #[test]
    fn a_rank_killed_as_the_run_was_stopped_did_not_fail() {
        let mut killed = rank(Some(7), None, false, false);
        killed.exit = Some(RankExit {
            signal: Some(9),
            ..RankExit::default()
        });
        let context = RankContext::default();
        assert_eq!(state(&killed, false, true, &context), State::Stopped);
        assert_eq!(state(&killed, false, false, &context), State::Failed);
        let ended = rank(Some(7), Some(143), false, false);
        assert_eq!(state(&ended, false, true, &context), State::Stopped);
        let threw = rank(Some(7), Some(1), false, false);
        assert_eq!(state(&threw, false, true, &context), State::Failed);
    }
}
