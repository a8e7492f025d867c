//! Findings of a hang, with their witnesses.

use std::collections::BTreeSet;

use super::stacks::AloneAt;
use super::still::{Still, View};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::found::{Found, WITNESSED_RANKS_MAX, Who, witness};
use crate::diagnosis::input::Phase;
use crate::diagnosis::members::seconds;
use crate::diagnosis::seat::Seat;
use crate::diagnosis::spread::median;
use crate::diagnosis::wait_graph::Unfinished;
use crate::event::Severity;

/// A rank that works alone is a warning after this long, or after this many times the longest such time of the run.
const ALONE_S: f64 = 60.0;
const ALONE_TIMES: f64 = 3.0;

/// Ranks that keep the others waiting, and by what that is known.
pub(super) struct Suspects {
    pub(super) places: Vec<usize>,
    pub(super) cause: Cause,
    pub(super) unfinished: Option<Unfinished>,
}

pub(super) fn kernel_finding(view: &View<'_>, still: &Still, suspects: &Suspects) -> Found {
    let condition = match suspects.cause {
        Cause::Stopped => 1.0,
        Cause::Uninterruptible => 2.0,
        _ => 3.0,
    };
    let told = suspects.places.iter().take(WITNESSED_RANKS_MAX);
    let mut witnesses: Vec<Witness> = told
        .map(|place| {
            let node = view.members.node(*place).to_string();
            let source = Source::Kernel { node };
            witness(source, Evidence::ProcessState, condition)
                .detail(format!("rank {}", view.members.rank(*place)))
        })
        .collect();
    witnesses.extend(waiting_peers(view, still, &suspects.places));
    Found {
        witnesses,
        ..plain_hang(
            view,
            still,
            Who::Ranks(suspects.places.clone()),
            suspects.cause.clone(),
        )
    }
}

pub(super) fn alone_finding(
    view: &View<'_>,
    still: &Still,
    suspects: Suspects,
    at: Option<AloneAt>,
    longest_alone_s: f64,
    stacks: Vec<Witness>,
) -> Found {
    let limit_s = ALONE_S.max(ALONE_TIMES * longest_alone_s);
    let cause = match at {
        Some(AloneAt::Saving) => Cause::Saving,
        Some(AloneAt::HostCode) => Cause::HostCode,
        _ => Cause::Working,
    };
    Found {
        kind: FindingKind::WorksAlone,
        cause,
        severity: if still.seconds > limit_s {
            Severity::Warning
        } else {
            Severity::Info
        },
        values: vec![
            ("diagnosis_alone_seconds", still.seconds),
            ("diagnosis_alone_longest_seconds", longest_alone_s),
        ],
        ..hang_finding(view, still, suspects, stacks)
    }
}

fn plain_hang(view: &View<'_>, still: &Still, who: Who, cause: Cause) -> Found {
    let phase = match &who {
        Who::Ranks(places) => common_phase(view, places),
        _ => None,
    };
    Found {
        kind: FindingKind::Hang,
        who,
        phase,
        cause,
        since_ms: still.since_ms,
        since_step: still.since_step,
        witnesses: Vec::new(),
        severity: Severity::Critical,
        lost_seconds: still.seconds,
        values: vec![("diagnosis_hang_seconds", still.seconds)],
        is_symptom: false,
    }
}

fn common_phase(view: &View<'_>, places: &[usize]) -> Option<Phase> {
    let mut phases = places.iter().map(|place| view.seats[*place].phase());
    let first = phases.next().flatten()?;
    phases.all(|phase| phase == Some(first)).then_some(first)
}

pub(super) fn hang_finding(view: &View<'_>, still: &Still, suspects: Suspects, more: Vec<Witness>) -> Found {
    let mut witnesses = Vec::new();
    if let Some(unfinished) = &suspects.unfinished {
        witnesses.push(unfinished_witness(unfinished));
        for (rank, enqueued) in unfinished.last_enqueued.iter().take(WITNESSED_RANKS_MAX) {
            let source = Source::Rank { rank: *rank };
            let last = enqueued.map_or(0.0, |last| last as f64);
            witnesses.push(
                witness(source, Evidence::LastEnqueued, last)
                    .against(unfinished.sequence as f64)
                    .detail(format!("group {}", unfinished.group)),
            );
        }
    }
    witnesses.extend(waiting_peers(view, still, &suspects.places));
    for place in suspects.places.iter().take(WITNESSED_RANKS_MAX) {
        let seat = &view.seats[*place];
        if let (Some(moved_ms), Some(heard_ms), Some(_)) =
            (seat.moved_ms, view.members.heard_ms(*place), &seat.page)
        {
            let source = Source::Rank {
                rank: view.members.rank(*place),
            };
            witnesses.push(
                witness(source, Evidence::SecondsWithoutMove, seconds(heard_ms - moved_ms)).in_seconds(),
            );
        }
    }
    witnesses.extend(more);
    Found {
        witnesses,
        ..plain_hang(view, still, Who::Ranks(suspects.places), suspects.cause)
    }
}

pub(super) fn nameless(
    view: &View<'_>,
    still: &Still,
    who: Who,
    cause: Cause,
    unfinished: Option<&Unfinished>,
) -> Found {
    let mut witnesses: Vec<Witness> = unfinished.map(unfinished_witness).into_iter().collect();
    witnesses.extend(waiting_peers(view, still, &[]));
    Found {
        witnesses,
        ..plain_hang(view, still, who, cause)
    }
}

fn unfinished_witness(unfinished: &Unfinished) -> Witness {
    let source = Source::Peers {
        ranks: unfinished.waiters.iter().copied().collect(),
    };
    witness(source, Evidence::UnfinishedOperation, unfinished.sequence as f64)
        .detail(format!("{} in group {}", unfinished.operation, unfinished.group))
}

/// The ranks that wait, without the suspects, and for how long.
fn waiting_peers(view: &View<'_>, still: &Still, suspects: &[usize]) -> Option<Witness> {
    let suspects: BTreeSet<usize> = suspects.iter().copied().collect();
    let peers: Vec<usize> = still
        .waiters
        .iter()
        .copied()
        .filter(|place| !suspects.contains(place))
        .collect();
    let since = |seat: &Seat| seat.page.map(|_| seat.phase_since_ms).or(seat.moved_ms);
    let mut waits: Vec<f64> = peers
        .iter()
        .filter_map(|place| {
            Some(seconds(
                view.members.heard_ms(*place)? - since(&view.seats[*place])?,
            ))
        })
        .collect();
    let what = if peers.iter().any(|place| view.seats[*place].waits()) {
        Evidence::WaitsInCollective
    } else {
        Evidence::SecondsWithoutMove
    };
    (!peers.is_empty()).then(|| {
        let ranks = view.rank_set(&peers);
        witness(Source::Peers { ranks }, what, median(&mut waits)).in_seconds()
    })
}
