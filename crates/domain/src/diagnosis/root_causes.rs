//! Orders findings, root causes first: node, then GPU, then rank, then data, then symptom. A finding that a deeper one explains is marked
//! as a symptom.

use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding};
use crate::diagnosis::finding::{Cause, FindingKind};
use crate::diagnosis::members::Members;
use crate::event::Severity;

/// Depth of a finding; smaller is deeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Node,
    Gpu,
    Rank,
    Data,
    Symptom,
}

/// Merges findings with the same culprit, and marks findings that another one explains.
pub(super) fn sort(found: Vec<DraftFinding>, members: &Members) -> Vec<DraftFinding> {
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
    // The ranks that the others wait for may be on a blind node, unless all nodes were seen when the hang was found.
    let is_blind = found.iter().any(|found| found.kind == FindingKind::NodeBlind);
    for hang in found
        .iter_mut()
        .filter(|found| is_blind && is_hang(found) && !found.is_kept)
    {
        hang.is_symptom |= !matches!(hang.culprit, DraftCulprit::Ranks(_));
    }
    found
}

fn is_hang(found: &DraftFinding) -> bool {
    found.kind == FindingKind::Hang && !found.is_suspect()
}

fn depth(found: &DraftFinding, members: &Members) -> Depth {
    if found.whole_node(members).is_some() {
        return Depth::Node;
    }
    match (&found.culprit, &found.cause) {
        (DraftCulprit::Unknown | DraftCulprit::Sides(_), _) => Depth::Symptom,
        (_, Cause::Throttled | Cause::PcieWidth | Cause::KernelNotStarted) => Depth::Gpu,
        (_, Cause::Data) => Depth::Data,
        _ => Depth::Rank,
    }
}

/// Returns true if one finding explains the other: the same ranks are slow in several ways, or a rank is on a slow node.
fn explains(cause: &DraftFinding, other: &DraftFinding, members: &Members) -> bool {
    // The data or parameters of a rank and its speed do not explain each other.
    let is_about_learning = |found: &DraftFinding| {
        matches!(
            found.kind,
            FindingKind::UnevenLearning | FindingKind::ReplicasDiffer
        )
    };
    if other.kind == FindingKind::NodeBlind
        || is_about_learning(cause)
        || is_about_learning(other)
        || cause.severity == Severity::Info
    {
        return false;
    }
    match (&cause.culprit, &other.culprit) {
        (DraftCulprit::Ranks(of_cause), DraftCulprit::Ranks(others)) => {
            others.iter().all(|place| of_cause.contains(place))
        }
        (DraftCulprit::Node(node), DraftCulprit::Ranks(others)) => {
            others.iter().all(|place| members.node_place(*place) == *node)
        }
        (DraftCulprit::Ranks(_) | DraftCulprit::Node(_), DraftCulprit::Unknown | DraftCulprit::Sides(_)) => {
            depth(cause, members) < depth(other, members)
        }
        _ => false,
    }
}

/// Merges the stragglers of a node into one finding about the node, if all its ranks are stragglers.
fn join_nodes(found: Vec<DraftFinding>, members: &Members) -> Vec<DraftFinding> {
    let (stragglers, mut others): (Vec<DraftFinding>, Vec<DraftFinding>) = found
        .into_iter()
        .partition(|found| found.kind == FindingKind::Straggler && !found.is_suspect());
    let mut by_node: Vec<Vec<DraftFinding>> = vec![Vec::new(); members.node_count()];
    for straggler in stragglers {
        match &straggler.culprit {
            DraftCulprit::Ranks(places) if places.len() == 1 => {
                by_node[members.node_place(places[0])].push(straggler)
            }
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

/// Returns the finding with the highest cost, for the ranks of all of them.
fn together(found: Vec<DraftFinding>) -> Option<DraftFinding> {
    let mut places: Vec<usize> = found
        .iter()
        .flat_map(|found| match &found.culprit {
            DraftCulprit::Ranks(places) => places.clone(),
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
    Some(DraftFinding {
        culprit: DraftCulprit::Ranks(places),
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
