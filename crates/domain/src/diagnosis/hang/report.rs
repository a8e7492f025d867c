//! Findings about a hang, with their witnesses.

use std::collections::BTreeSet;

use super::inactivity::{Inactivity, View};
use super::stacks::AloneActivity;
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, WITNESSED_RANKS_MAX, witness};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::input::Phase;
use crate::diagnosis::members::seconds;
use crate::diagnosis::rank_status::RankStatus;
use crate::diagnosis::statistics::median;
use crate::diagnosis::wait_graph::Unfinished;
use crate::event::Severity;

/// A rank that works alone is a warning after this time, and after this multiple of the longest such time in the run.
const ALONE_S: f64 = 60.0;
const ALONE_TIMES: f64 = 3.0;

/// Ranks that make the others wait, and how this is known.
pub(super) struct Suspects {
    pub(super) places: Vec<usize>,
    pub(super) cause: Cause,
    pub(super) unfinished: Option<Unfinished>,
}

pub(super) fn kernel_finding(view: &View<'_>, inactivity: &Inactivity, suspects: &Suspects) -> DraftFinding {
    let condition = match suspects.cause {
        Cause::Stopped => 1.0,
        Cause::Uninterruptible => 2.0,
        _ => 3.0,
    };
    let reported = suspects.places.iter().take(WITNESSED_RANKS_MAX);
    let mut witnesses: Vec<Witness> = reported
        .map(|place| {
            let node = view.members.node(*place).to_string();
            let source = Source::Kernel { node };
            witness(source, Evidence::ProcessState, condition)
                .detail(format!("rank {}", view.members.rank(*place)))
        })
        .collect();
    witnesses.extend(waiting_peers(view, inactivity, &suspects.places));
    DraftFinding {
        witnesses,
        ..plain_hang(
            view,
            inactivity,
            DraftCulprit::Ranks(suspects.places.clone()),
            suspects.cause.clone(),
        )
    }
}

pub(super) fn alone_finding(
    view: &View<'_>,
    inactivity: &Inactivity,
    suspects: Suspects,
    at: Option<AloneActivity>,
    longest_alone_s: f64,
    stacks: Vec<Witness>,
) -> DraftFinding {
    let limit_s = ALONE_S.max(ALONE_TIMES * longest_alone_s);
    let cause = match at {
        Some(AloneActivity::Saving) => Cause::Saving,
        Some(AloneActivity::Loading) => Cause::Data,
        Some(AloneActivity::HostCode) => Cause::HostCode,
        _ => Cause::Working,
    };
    DraftFinding {
        kind: FindingKind::WorksAlone,
        cause,
        severity: if inactivity.seconds > limit_s {
            Severity::Warning
        } else {
            Severity::Info
        },
        values: vec![
            ("diagnosis_alone_seconds", inactivity.seconds),
            ("diagnosis_alone_longest_seconds", longest_alone_s),
        ],
        ..hang_finding(view, inactivity, suspects, stacks)
    }
}

fn plain_hang(view: &View<'_>, inactivity: &Inactivity, culprit: DraftCulprit, cause: Cause) -> DraftFinding {
    let phase = match &culprit {
        DraftCulprit::Ranks(places) => common_phase(view, places),
        _ => None,
    };
    DraftFinding {
        phase,
        since_step: inactivity.since_step,
        severity: Severity::Critical,
        lost_seconds: inactivity.seconds,
        values: hang_values(inactivity),
        ..DraftFinding::new(FindingKind::Hang, culprit, cause, inactivity.since_ms)
    }
}

pub(super) fn hang_values(inactivity: &Inactivity) -> Vec<(&'static str, f64)> {
    vec![("diagnosis_hang_seconds", inactivity.seconds)]
}

fn common_phase(view: &View<'_>, places: &[usize]) -> Option<Phase> {
    let mut phases = places.iter().map(|place| view.rank_statuses[*place].phase());
    let first = phases.next().flatten()?;
    phases.all(|phase| phase == Some(first)).then_some(first)
}

pub(super) fn hang_finding(
    view: &View<'_>,
    inactivity: &Inactivity,
    suspects: Suspects,
    more: Vec<Witness>,
) -> DraftFinding {
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
    witnesses.extend(waiting_peers(view, inactivity, &suspects.places));
    for place in suspects.places.iter().take(WITNESSED_RANKS_MAX) {
        let status = &view.rank_statuses[*place];
        if let (Some(moved_ms), Some(complete_until_ms), Some(_)) = (
            status.moved_ms,
            view.members.complete_until_ms(*place),
            &status.page,
        ) {
            let source = Source::Rank {
                rank: view.members.rank(*place),
            };
            witnesses.push(
                witness(
                    source,
                    Evidence::SecondsWithoutMove,
                    seconds(complete_until_ms - moved_ms),
                )
                .in_seconds(),
            );
        }
    }
    witnesses.extend(more);
    DraftFinding {
        witnesses,
        ..plain_hang(
            view,
            inactivity,
            DraftCulprit::Ranks(suspects.places),
            suspects.cause,
        )
    }
}

pub(super) fn finding_without_culprit(
    view: &View<'_>,
    inactivity: &Inactivity,
    culprit: DraftCulprit,
    cause: Cause,
    unfinished: Option<&Unfinished>,
) -> DraftFinding {
    let mut witnesses: Vec<Witness> = unfinished.map(unfinished_witness).into_iter().collect();
    witnesses.extend(waiting_peers(view, inactivity, &[]));
    DraftFinding {
        witnesses,
        ..plain_hang(view, inactivity, culprit, cause)
    }
}

fn unfinished_witness(unfinished: &Unfinished) -> Witness {
    let source = Source::Peers {
        ranks: unfinished.waiters.iter().copied().collect(),
    };
    witness(source, Evidence::UnfinishedOperation, unfinished.sequence as f64)
        .detail(format!("{} in group {}", unfinished.operation, unfinished.group))
}

/// Returns the witness for the ranks that wait, without the suspects, and for how long they wait.
fn waiting_peers(view: &View<'_>, inactivity: &Inactivity, suspects: &[usize]) -> Option<Witness> {
    let suspects: BTreeSet<usize> = suspects.iter().copied().collect();
    let peers: Vec<usize> = inactivity
        .waiters
        .iter()
        .copied()
        .filter(|place| !suspects.contains(place))
        .collect();
    let since = |status: &RankStatus| status.page.map(|_| status.phase_since_ms).or(status.moved_ms);
    let mut waits: Vec<f64> = peers
        .iter()
        .filter_map(|place| {
            Some(seconds(
                view.members.complete_until_ms(*place)? - since(&view.rank_statuses[*place])?,
            ))
        })
        .collect();
    let what = if peers.iter().any(|place| view.rank_statuses[*place].waits()) {
        Evidence::WaitsInCollective
    } else {
        Evidence::SecondsWithoutMove
    };
    (!peers.is_empty()).then(|| {
        let ranks = view.rank_set(&peers);
        witness(Source::Peers { ranks }, what, median(&mut waits)).in_seconds()
    })
}
