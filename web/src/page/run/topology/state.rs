//! How a rank stands, in a word and a colour.

use std::collections::BTreeSet;

use domain::api::runs::{AttemptView, RankView};
use domain::ident::Rank;
use domain::run::state::{Cause, RankExit};

/// From worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// It failed, and not because another one had.
    Failed,
    /// It fell with another.
    Fell,
    /// It was ended, as all were told to stop.
    Stopped,
    /// Its node is not heard.
    Lost,
    /// It stands still.
    Stuck,
    /// Others wait for it.
    Late,
    /// Its process is not there yet.
    Awaited,
    /// It runs.
    Well,
    /// It ended well.
    Done,
}

/// What is known of ranks beyond the attempt itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Around {
    /// Nodes that are not heard.
    pub(super) down: BTreeSet<String>,
    /// Ranks that a diagnosis calls stuck.
    pub(super) stuck: BTreeSet<Rank>,
    /// Ranks that a diagnosis calls late.
    pub(super) late: BTreeSet<Rank>,
}

/// A rank of the attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standing {
    /// Where it is.
    pub(super) node: String,
    /// How it stands.
    pub(super) state: State,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Fell => "fell with it",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
            Self::Stuck => "stuck",
            Self::Late => "late",
            Self::Awaited => "not there yet",
            Self::Well => "runs",
            Self::Done => "done",
        }
    }

    /// The cell's colours; its text keeps the page's own, which can be read on all of them.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Failed | Self::Lost => "bg-error/25 border-error",
            Self::Stuck => "bg-warning/35 border-warning",
            Self::Late => "bg-warning/15 border-warning border-dashed",
            Self::Fell | Self::Stopped | Self::Awaited => "bg-base-100 border-base-300 border-dashed",
            Self::Well => "bg-base-100 border-base-300",
            Self::Done => "bg-success/15 border-success/60",
        }
    }

    /// Whether it is worth a word in the cell.
    pub(super) fn stands_out(self) -> bool {
        self != Self::Well
    }
}

/// Each rank of an attempt.
pub(super) fn standings(attempt: &AttemptView, around: &Around) -> Vec<(Rank, Standing)> {
    let ended = attempt.ended_ms.is_some();
    let outcome = attempt.outcome.as_ref();
    let stopped = outcome.is_some_and(|outcome| outcome.cause == Cause::Stopped);
    let nodes = attempt.nodes.iter();
    nodes
        .flat_map(|node| {
            node.ranks.iter().map(move |rank| {
                let down = !ended && around.down.contains(&node.node);
                let standing = Standing {
                    node: node.node.clone(),
                    state: state(rank, down, stopped, around),
                };
                (rank.rank, standing)
            })
        })
        .collect()
}

/// Ended by a signal, or by its own handler of SIGTERM, but not by the kernel for memory.
fn was_told(exit: &RankExit) -> bool {
    !exit.out_of_memory && (exit.signal.is_some() || exit.code == Some(128 + 15))
}

/// `down`: its node is not heard; `stopped`: all were told to end, and did.
fn state(rank: &RankView, down: bool, stopped: bool, around: &Around) -> State {
    match &rank.exit {
        Some(exit) if stopped && was_told(exit) => State::Stopped,
        Some(_) if rank.cascade => State::Fell,
        Some(exit) if exit.failed() => State::Failed,
        Some(_) => State::Done,
        None if down => State::Lost,
        None if rank.stall.is_some() || around.stuck.contains(&rank.rank) => State::Stuck,
        None if around.late.contains(&rank.rank) => State::Late,
        None if rank.pid.is_none() => State::Awaited,
        None => State::Well,
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
        let late = Around {
            late: BTreeSet::from([Rank(3)]),
            ..Around::default()
        };
        let well = Around::default();
        let runs = rank(Some(7), None, false, false);
        for (rank, down, around, expected) in [
            (&runs, false, &well, State::Well),
            (&runs, false, &late, State::Late),
            (&runs, true, &late, State::Lost),
            (&rank(Some(7), None, false, true), false, &late, State::Stuck),
            (&rank(None, None, false, false), false, &well, State::Awaited),
            (&rank(Some(7), Some(0), false, false), true, &late, State::Done),
            (&rank(Some(7), Some(1), false, false), false, &well, State::Failed),
            (&rank(Some(7), Some(1), true, false), false, &well, State::Fell),
        ] {
            assert_eq!(state(rank, down, false, around), expected, "{rank:?}");
        }
    }

    #[test]
    fn a_rank_killed_as_the_run_was_stopped_did_not_fail() {
        let mut killed = rank(Some(7), None, false, false);
        killed.exit = Some(RankExit {
            signal: Some(9),
            ..RankExit::default()
        });
        let around = Around::default();
        assert_eq!(state(&killed, false, true, &around), State::Stopped);
        assert_eq!(state(&killed, false, false, &around), State::Failed);
        let ended = rank(Some(7), Some(143), false, false);
        assert_eq!(state(&ended, false, true, &around), State::Stopped);
        let threw = rank(Some(7), Some(1), false, false);
        assert_eq!(state(&threw, false, true, &around), State::Failed);
    }
}
