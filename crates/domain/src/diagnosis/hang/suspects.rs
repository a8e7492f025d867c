//! Who keeps the others waiting, by the kernel, by pages and by operations that all ranks have enqueued.

use super::report::{Suspects, nameless};
use super::still::{Still, View};
use crate::diagnosis::finding::{Cause, Evidence, Source};
use crate::diagnosis::found::{Found, WITNESSED_RANKS_MAX, Who, witness};
use crate::diagnosis::input::{Phase, ProcessCondition};
use crate::diagnosis::wait_graph::Unfinished;
use crate::ident::Rank;

/// The first operations send whole models around: without a culprit nothing is said for this long.
const FIRST_NAMELESS_S: f64 = 120.0;
/// Network errors per second that count as a fault of the network.
const NETWORK_ERRORS_MIN: f64 = 1.0;

pub(super) fn by_kernel(view: &View<'_>, still: &Still) -> Option<Suspects> {
    // At the end of a run ranks end one after the other, and some of them save for long.
    let waits_by_page = still
        .waiters
        .iter()
        .any(|place| view.seats[*place].page.is_some());
    let causes = [
        (ProcessCondition::Ended, Cause::Ended),
        (ProcessCondition::Stopped, Cause::Stopped),
        (ProcessCondition::Uninterruptible, Cause::Uninterruptible),
    ];
    causes.into_iter().find_map(|(condition, cause)| {
        if condition == ProcessCondition::Ended && !waits_by_page {
            return None;
        }
        let places: Vec<usize> = (0..view.seats.len())
            .filter(|place| {
                let seat = &view.seats[*place];
                // Checkpoints and models are written and read for long.
                let is_storage = condition == ProcessCondition::Uninterruptible
                    && (seat.phase() == Some(Phase::Save) || seat.is_before_first_step());
                seat.condition == condition
                    && !is_storage
                    && !view.members.is_blind(view.members.node_place(*place))
            })
            .collect();
        (!places.is_empty()).then_some(Suspects {
            places,
            cause,
            unfinished: None,
        })
    })
}

/// Without Flight Recorders: the ranks that do not wait while others do.
pub(super) fn by_pages(view: &View<'_>, still: &Still) -> Result<Suspects, Option<Box<Found>>> {
    let waits = |place: &usize| view.seats[*place].waits();
    let waits_hidden = |place: &usize| matches!(view.seats[*place].phase(), Some(Phase::Backward) | None);
    if !still
        .waiters
        .iter()
        .any(|place| waits(place) || waits_hidden(place))
    {
        return Err(None);
    }
    if still.others.is_empty() {
        // All may be in the backward pass, which takes its time when it is compiled.
        if view.median_step_s.is_none() || !still.waiters.iter().any(waits) {
            return Err(None);
        }
        let who = Who::Unknown;
        return Err(Some(Box::new(nameless(view, still, who, Cause::Unknown, None))));
    }
    Ok(Suspects {
        places: still.others.clone(),
        cause: Cause::NotEnqueued,
        unfinished: None,
    })
}

pub(super) fn all_enqueued(
    view: &View<'_>,
    still: &Still,
    not_started: &[Rank],
    silent: &[Rank],
    unfinished: &Unfinished,
) -> Result<Suspects, Option<Box<Found>>> {
    let apart: Vec<usize> = view
        .places(silent)
        .into_iter()
        .filter(|place| still.others.contains(place))
        .collect();
    let (places, cause) = if !not_started.is_empty() {
        (view.places(not_started), Cause::KernelNotStarted)
    } else {
        (apart, Cause::NotEnqueued)
    };
    if !places.is_empty() {
        return Ok(Suspects {
            places,
            cause,
            unfinished: Some(unfinished.clone()),
        });
    }
    if view.median_step_s.is_none() && still.seconds < FIRST_NAMELESS_S {
        return Err(None);
    }
    if silent.is_empty()
        && let Some(found) = by_network(view, still, unfinished)
    {
        return Err(Some(Box::new(found)));
    }
    let who = Who::Unknown;
    Err(Some(Box::new(nameless(
        view,
        still,
        who,
        Cause::Unknown,
        Some(unfinished),
    ))))
}

/// The nodes whose counters show errors while all ranks wait in one operation.
fn by_network(view: &View<'_>, still: &Still, unfinished: &Unfinished) -> Option<Found> {
    let errors = |node: usize| {
        view.usage
            .network_errors(node)
            .filter(|rate| *rate >= NETWORK_ERRORS_MIN)
    };
    let bad: Vec<(usize, f64)> = (0..view.members.node_count())
        .filter_map(|node| errors(node).map(|rate| (node, rate)))
        .collect();
    let most = bad.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.0;
    let who = if bad.len() < view.members.node_count() {
        Who::Node(most)
    } else {
        Who::Unknown
    };
    let mut found = nameless(view, still, who, Cause::Network, Some(unfinished));
    let nics = bad.into_iter().take(WITNESSED_RANKS_MAX).map(|(node, rate)| {
        let node = view.members.node_name(node).to_string();
        witness(Source::Nic { node }, Evidence::NetworkErrors, rate)
    });
    found.witnesses.splice(0..0, nics);
    Some(found)
}
