//! Finds the ranks that make the others wait: from the kernel, from pages, and from operations that all ranks have enqueued.

use super::inactivity::{Inactivity, View};
use super::report::{Suspects, finding_without_culprit};
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding};
use crate::diagnosis::finding::Cause;
use crate::diagnosis::input::{Phase, ProcessCondition};
use crate::diagnosis::members::seconds;
use crate::diagnosis::wait_graph::Unfinished;
use crate::ident::Rank;

/// The first operations transfer whole models: a finding without a culprit is made only after this time.
const FIRST_WITHOUT_CULPRIT_S: f64 = 120.0;
/// For this long, a process in the kernel may write files between steps.
const SCRIPT_FILES_S: f64 = 30.0;

/// Returns the ranks whose processes have ended, are stopped or wait in the kernel. `named` are the culprits of this hang that are already
/// known. No rank has moved since, so that a rank that was stopped or ended later is none of them: a debugger may have stopped it.
pub(super) fn by_kernel(view: &View<'_>, inactivity: &Inactivity, named: &[usize]) -> Option<Suspects> {
    let is_later = |place: &usize| !named.is_empty() && !named.contains(place);
    let causes = [
        (ProcessCondition::Ended, Cause::Ended),
        (ProcessCondition::Stopped, Cause::Stopped),
        (ProcessCondition::Uninterruptible, Cause::Uninterruptible),
    ];
    causes.into_iter().find_map(|(condition, cause)| {
        let mut places = in_condition(view, inactivity, condition);
        places.retain(|place| match condition {
            ProcessCondition::Ended => !is_later(place) && !ended_earlier(view, inactivity, *place),
            ProcessCondition::Stopped => !is_later(place),
            ProcessCondition::Uninterruptible | ProcessCondition::Alive => true,
        });
        suspects_of(places, cause)
    })
}

/// Returns the ranks that ended while others still moved. If no other culprit can be named, the others wait for these.
pub(super) fn by_earlier_end(view: &View<'_>, inactivity: &Inactivity) -> Option<Suspects> {
    let mut places = in_condition(view, inactivity, ProcessCondition::Ended);
    places.retain(|place| ended_earlier(view, inactivity, *place));
    suspects_of(places, Cause::Ended)
}

fn in_condition(view: &View<'_>, inactivity: &Inactivity, condition: ProcessCondition) -> Vec<usize> {
    // At the end of a run, ranks end one after the other, and some of them save for a long time.
    let waits_by_page = inactivity
        .waiters
        .iter()
        .any(|place| view.rank_statuses[*place].page.is_some());
    if condition == ProcessCondition::Ended && !waits_by_page {
        return Vec::new();
    }
    let places = 0..view.rank_statuses.len();
    places
        .filter(|place| {
            let status = &view.rank_statuses[*place];
            // Checkpoints and models take long to write and read, and batches may. Not each save is known: a script may write files in
            // any way.
            let may_be_storage = condition == ProcessCondition::Uninterruptible
                && (inactivity.seconds < view.stuck_after_s()
                    || status.phase() == Some(Phase::Save)
                    || status.is_in_script() && inactivity.seconds < SCRIPT_FILES_S
                    || status.is_before_first_step());
            status.condition == condition
                && !may_be_storage
                && !view.members.is_blind(view.members.node_place(*place))
        })
        .collect()
}

/// Returns true if others trained for long after the rank had ended. It may have had less to do than they, so that they do not wait for it.
/// Before the first steps, ranks move without the others: they import torch, and load files until they meet.
fn ended_earlier(view: &View<'_>, inactivity: &Inactivity, place: usize) -> bool {
    if view.median_step_s.is_none() {
        return false;
    }
    let ended_ms = view.rank_statuses[place].ended_ms;
    let until_ms = view.members.complete_until_ms(place);
    ended_ms.zip(until_ms).is_some_and(|(ended_ms, until_ms)| {
        seconds(until_ms - ended_ms) > inactivity.seconds + view.suspicion_after_s()
    })
}

fn suspects_of(places: Vec<usize>, cause: Cause) -> Option<Suspects> {
    (!places.is_empty()).then_some(Suspects {
        places,
        cause,
        unfinished: None,
    })
}

/// Returns the ranks that others wait for, according to the Flight Recorders. One of them may wait in an operation that its recorder does
/// not show, for example for a message on Gloo. Then it is the culprit only if all other ranks wait too. With NCCL, a rank that has enqueued
/// the operation waits for its GPU wherever its page is.
pub(super) fn by_flight(
    view: &View<'_>,
    inactivity: &Inactivity,
    ranks: &[Rank],
    cause: &Cause,
    unfinished: &Unfinished,
) -> Suspects {
    let mut places = view.places(ranks);
    let mut unfinished = unfinished.clone();
    if matches!(cause, Cause::NotEnqueued) {
        let waits = |place: &usize| view.rank_statuses[*place].waits();
        let (hidden, working): (Vec<usize>, Vec<usize>) = places.into_iter().partition(waits);
        let has_enqueued = |place: usize| unfinished.waiters.contains(&view.members.rank(place));
        let mut others = inactivity.others.clone();
        others.retain(|place| unfinished.backend != "nccl" || !has_enqueued(*place));
        places = match (working.is_empty(), others.is_empty()) {
            (false, _) => working,
            (true, false) => others,
            (true, true) => hidden,
        };
        let named: Vec<Rank> = places.iter().map(|place| view.members.rank(*place)).collect();
        unfinished.last_enqueued.retain(|(rank, _)| named.contains(rank));
    }
    Suspects {
        places,
        cause: cause.clone(),
        unfinished: Some(unfinished),
    }
}

/// Without Flight Recorders, returns the ranks that do not wait while others do. On a GPU, most waits are hidden: the page shows the phase in
/// which the host waits for the GPU, whose stream waits for other ranks. Such a rank is not named.
pub(super) fn by_pages(
    view: &View<'_>,
    inactivity: &Inactivity,
) -> Result<Suspects, Option<Box<DraftFinding>>> {
    let waits = |place: &usize| view.rank_statuses[*place].waits();
    let waits_hidden =
        |place: &usize| matches!(view.rank_statuses[*place].phase(), Some(Phase::Backward) | None);
    if !inactivity
        .waiters
        .iter()
        .any(|place| waits(place) || waits_hidden(place))
    {
        return Err(None);
    }
    let is_shown = inactivity.waiters.iter().any(waits);
    let mut places = inactivity.others.clone();
    places.retain(|place| is_shown || !may_wait_for_gpu(view, *place));
    if places.is_empty() {
        // All ranks may be in the backward pass, which takes long when it is compiled.
        if view.median_step_s.is_none() || !is_shown {
            return Err(None);
        }
        let culprit = DraftCulprit::Unknown;
        return Err(Some(Box::new(finding_without_culprit(
            view,
            inactivity,
            culprit,
            Cause::Unknown,
            None,
        ))));
    }
    Ok(Suspects {
        places,
        cause: Cause::NotEnqueued,
        unfinished: None,
    })
}

/// Returns true if the rank uses a GPU and is in a phase in which its host may wait for the GPU.
fn may_wait_for_gpu(view: &View<'_>, place: usize) -> bool {
    let phase = view.rank_statuses[place].phase();
    view.usage.gpu(place).is_some()
        && matches!(
            phase,
            Some(Phase::Forward | Phase::Backward | Phase::Optimizer | Phase::Host | Phase::Save)
        )
}

pub(super) fn all_enqueued(
    view: &View<'_>,
    inactivity: &Inactivity,
    not_started: &[Rank],
    silent: &[Rank],
    unfinished: &Unfinished,
) -> Result<Suspects, Option<Box<DraftFinding>>> {
    let apart: Vec<usize> = view
        .places(silent)
        .into_iter()
        .filter(|place| inactivity.others.contains(place))
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
    if view.median_step_s.is_none() && inactivity.seconds < FIRST_WITHOUT_CULPRIT_S {
        return Err(None);
    }
    let culprit = DraftCulprit::Unknown;
    Err(Some(Box::new(finding_without_culprit(
        view,
        inactivity,
        culprit,
        Cause::Unknown,
        Some(unfinished),
    ))))
}
