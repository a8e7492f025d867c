//! Root causes first: node, then GPU, then rank, then data, then symptom. What a deeper finding explains is marked as a symptom.

use crate::diagnosis::finding::{Cause, FindingKind};
use crate::diagnosis::found::{Found, Who};
use crate::diagnosis::members::Members;
use crate::event::Severity;

/// How deep a finding lies; smaller is deeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Node,
    Gpu,
    Rank,
    Data,
    Symptom,
}

/// Puts together what is one, and marks what another finding explains.
pub(super) fn sort(found: Vec<Found>, members: &Members) -> Vec<Found> {
    let mut found = join_nodes(found, members);
    found.sort_by_key(|found| (!is_hang(found), depth(found, members), found.since_ms));
    let stands_still = found.first().is_some_and(is_hang);
    for at in 1..found.len() {
        let (causes, rest) = found.split_at_mut(at);
        let this = &mut rest[0];
        let is_slow = matches!(this.kind, FindingKind::Straggler | FindingKind::RareStalls);
        this.is_symptom = stands_still && is_slow
            || causes
                .iter()
                .any(|cause| !cause.is_suspect() && explains(cause, this, members));
    }
    // Ranks of a node that is not heard may be the ones that are waited for.
    let is_blind = found.iter().any(|found| found.kind == FindingKind::NodeBlind);
    for hang in found.iter_mut().filter(|found| is_blind && is_hang(found)) {
        hang.is_symptom |= !matches!(hang.who, Who::Ranks(_));
    }
    found
}

fn is_hang(found: &Found) -> bool {
    found.kind == FindingKind::Hang && !found.is_suspect()
}

fn depth(found: &Found, members: &Members) -> Depth {
    if found.whole_node(members).is_some() {
        return Depth::Node;
    }
    match (&found.who, &found.cause) {
        (Who::Unknown | Who::Sides(_), _) => Depth::Symptom,
        (
            _,
            Cause::Throttled
            | Cause::LowClock
            | Cause::OtherProcess
            | Cause::PcieWidth
            | Cause::KernelNotStarted,
        ) => Depth::Gpu,
        (_, Cause::Data) => Depth::Data,
        _ => Depth::Rank,
    }
}

/// Whether one finding is the reason for another: the same ranks are slow in several ways, or a rank of a slow node is slow.
fn explains(cause: &Found, other: &Found, members: &Members) -> bool {
    // What a rank learns from, and how fast it is, do not explain each other.
    let is_about_learning = |found: &Found| found.kind == FindingKind::UnevenLearning;
    if other.kind == FindingKind::NodeBlind
        || is_about_learning(cause)
        || is_about_learning(other)
        || cause.severity == Severity::Info
    {
        return false;
    }
    match (&cause.who, &other.who) {
        (Who::Ranks(of_cause), Who::Ranks(others)) => others.iter().all(|place| of_cause.contains(place)),
        (Who::Node(node), Who::Ranks(others)) => {
            others.iter().all(|place| members.node_place(*place) == *node)
        }
        (Who::Ranks(_) | Who::Node(_), Who::Unknown | Who::Sides(_)) => {
            depth(cause, members) < depth(other, members)
        }
        _ => false,
    }
}

/// Stragglers that are all ranks of one node are that node.
fn join_nodes(found: Vec<Found>, members: &Members) -> Vec<Found> {
    let (stragglers, mut others): (Vec<Found>, Vec<Found>) = found
        .into_iter()
        .partition(|found| found.kind == FindingKind::Straggler && !found.is_suspect());
    let mut by_node: Vec<Vec<Found>> = vec![Vec::new(); members.node_count()];
    for straggler in stragglers {
        match &straggler.who {
            Who::Ranks(places) if places.len() == 1 => by_node[members.node_place(places[0])].push(straggler),
            _ => others.push(straggler),
        }
    }
    for (node, of_node) in by_node.into_iter().enumerate() {
        let is_whole =
            of_node.len() > 1 && of_node.len() == members.ranks_on(node) && members.node_count() > 1;
        if is_whole {
            others.extend(together(of_node));
        } else {
            others.extend(of_node);
        }
    }
    others
}

/// The worst of them, for all their ranks.
fn together(found: Vec<Found>) -> Option<Found> {
    let mut places: Vec<usize> = found
        .iter()
        .flat_map(|found| match &found.who {
            Who::Ranks(places) => places.clone(),
            _ => Vec::new(),
        })
        .collect();
    places.sort_unstable();
    let same_phase = found.windows(2).all(|two| two[0].phase == two[1].phase);
    let same_cause = found.windows(2).all(|two| two[0].cause == two[1].cause);
    let since = found.iter().map(|found| (found.since_ms, found.since_step)).min();
    let worst = found
        .into_iter()
        .max_by(|a, b| a.lost_seconds.total_cmp(&b.lost_seconds))?;
    let (since_ms, since_step) = since?;
    Some(Found {
        who: Who::Ranks(places),
        phase: worst.phase.filter(|_| same_phase),
        cause: if same_cause {
            worst.cause.clone()
        } else {
            Cause::Unknown
        },
        since_ms,
        since_step,
        ..worst
    })
}
