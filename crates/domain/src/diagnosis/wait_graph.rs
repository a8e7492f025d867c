//! The graph of which rank waits for which, from the Flight Recorders of all ranks.
//!
//! ```text
//! group 0, operation 41:   enqueued by 0, 1, 3        rank 2 has enqueued only 40: it is missing, and 0, 1 and 3 wait for it
//! group 1, operation 7:    enqueued by 2              rank 5 is missing, and 2 waits for it: the culprit is 5, not 2
//! ```
//! A rank that others wait for and that waits for no other rank is the culprit. If there is none, the ranks wait in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnosis::finding::Cause;
use crate::diagnosis::input::FlightAnswer;
use crate::ident::Rank;
use crate::run::inspect::{FlightDigest, GroupDigest, Operation};
use crate::run::ranks::RankSet;

/// Result of all answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum WaitGraphResult {
    /// No rank answered with a digest.
    NoAnswers,
    /// No rank has an unfinished operation: none waits.
    Nothing,
    /// These ranks make the others wait.
    Culprits {
        ranks: Vec<Rank>,
        cause: Cause,
        unfinished: Unfinished,
    },
    /// The ranks disagree, and no side has a majority.
    Sides {
        sides: Vec<Vec<Rank>>,
        cause: Cause,
        unfinished: Unfinished,
    },
    /// No rank is known to be behind. As far as known, all ranks have enqueued the operation, or each waits for a message of another one, or
    /// they wait for a rank without information.
    AllEnqueued {
        /// Ranks whose kernel has not started, if this is known of all ranks.
        not_started: Vec<Rank>,
        /// Members that did not answer.
        silent: Vec<Rank>,
        unfinished: Unfinished,
    },
}

/// The operation in which ranks wait.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Unfinished {
    pub(super) group: String,
    pub(super) sequence: u64,
    /// Name and sizes of the operation, for people.
    pub(super) operation: String,
    pub(super) backend: String,
    pub(super) waiters: Vec<Rank>,
    /// Last operation that each culprit enqueued in the group.
    pub(super) last_enqueued: Vec<(Rank, Option<u64>)>,
}

/// An operation: its group, the group's backend, and its number in the group.
pub(super) type OperationId = (String, String, u64);

impl WaitGraphResult {
    /// Returns the operation in which ranks wait.
    pub(super) fn operation(&self) -> Option<OperationId> {
        match self {
            Self::Culprits { unfinished, .. }
            | Self::Sides { unfinished, .. }
            | Self::AllEnqueued { unfinished, .. } => Some((
                unfinished.group.clone(),
                unfinished.backend.clone(),
                unfinished.sequence,
            )),
            Self::NoAnswers | Self::Nothing => None,
        }
    }
}

/// Maximum number of culprits for which the last operation is reported.
const REPORTED_MAX: usize = 16;

/// Ranks that wait in one operation.
struct Wait<'a> {
    group: &'a str,
    backend: &'a str,
    sequence: u64,
    is_point_to_point: bool,
    waiters: Vec<(Rank, &'a Operation)>,
    missing: Vec<Rank>,
    /// Members without information.
    silent: Vec<Rank>,
}

/// Evaluates the answers. `may_wait` returns true if a rank can be blocked in an operation now, as far as its page shows.
pub(super) fn read(answers: &[FlightAnswer], may_wait: impl Fn(Rank) -> bool) -> WaitGraphResult {
    let digests: BTreeMap<Rank, &FlightDigest> = answers
        .iter()
        .filter_map(|answer| answer.digest.as_ref().map(|digest| (answer.rank, digest)))
        .collect();
    if digests.is_empty() {
        return WaitGraphResult::NoAnswers;
    }
    let waits = waits(&digests);
    if waits.is_empty() {
        return WaitGraphResult::Nothing;
    }
    let mut found = waits
        .iter()
        .find_map(disagreement)
        .unwrap_or_else(|| named_by_graph(&waits, may_wait));
    if let WaitGraphResult::Culprits {
        ranks, unfinished, ..
    } = &mut found
    {
        let reported = ranks.iter().take(REPORTED_MAX);
        unfinished.last_enqueued = reported
            .filter_map(|rank| Some((*rank, last_enqueued(digests.get(rank)?, unfinished))))
            .collect();
    }
    found
}

fn last_enqueued(digest: &FlightDigest, unfinished: &Unfinished) -> Option<u64> {
    let is_meant =
        |known: &&GroupDigest| known.name == unfinished.group && known.backend == unfinished.backend;
    digest
        .groups
        .iter()
        .find(is_meant)
        .and_then(|group| group.last_enqueued)
}

/// A process group: each rank that reports it, with its own view of the group.
type ReportedGroup<'a> = Vec<(Rank, &'a GroupDigest)>;

/// Returns the process groups that the ranks report, by name and backend. A group may have different backends for CPUs and GPUs, which
/// count their operations separately.
fn groups<'a>(digests: &BTreeMap<Rank, &'a FlightDigest>) -> Vec<ReportedGroup<'a>> {
    let mut groups: BTreeMap<(&str, &str), ReportedGroup<'a>> = BTreeMap::new();
    let all = || {
        digests
            .iter()
            .flat_map(|(rank, digest)| digest.groups.iter().map(|group| (*rank, group)))
    };
    for (rank, group) in all().filter(|(_, group)| !group.backend.is_empty()) {
        groups
            .entry((&group.name, &group.backend))
            .or_default()
            .push((rank, group));
    }
    // A rank that has not used a group does not report its backend.
    for (rank, unused) in all().filter(|(_, group)| group.backend.is_empty()) {
        let mut of_name: Vec<_> = groups
            .iter_mut()
            .filter(|((name, _), _)| *name == unused.name)
            .collect();
        for (_, members) in &mut of_name {
            members.push((rank, unused));
        }
        if of_name.is_empty() {
            groups.insert((&unused.name, ""), vec![(rank, unused)]);
        }
    }
    groups.into_values().flat_map(separate).collect()
}

/// Separates groups of the same name that have no member in common. Some releases of PyTorch give all groups of one call of `split_group`
/// the same name, for example those of one axis of a mesh. Each of these groups counts its own operations.
fn separate(reported: ReportedGroup<'_>) -> Vec<ReportedGroup<'_>> {
    let mut sets: Vec<&RankSet> = Vec::new();
    let mut set_of: BTreeMap<Rank, usize> = BTreeMap::new();
    for (_, group) in &reported {
        let set = &group.members;
        let known = set.iter().find_map(|rank| set_of.get(&rank).copied());
        if set.is_empty() || known.is_some_and(|known| sets[known] == set) {
            continue;
        }
        let number = known.unwrap_or(sets.len());
        if number == sets.len() {
            sets.push(set);
        }
        for rank in set.iter() {
            set_of.entry(rank).or_insert(number);
        }
    }
    if sets.len() < 2 {
        return vec![reported];
    }
    let mut groups: BTreeMap<Option<usize>, ReportedGroup<'_>> = BTreeMap::new();
    for (rank, group) in reported {
        let number = set_of.get(&rank).copied();
        groups.entry(number).or_default().push((rank, group));
    }
    groups.into_values().collect()
}

fn waits<'a>(digests: &BTreeMap<Rank, &'a FlightDigest>) -> Vec<Wait<'a>> {
    let mut waits = Vec::new();
    for members in &groups(digests) {
        let mut collectives: BTreeMap<u64, Vec<(Rank, &Operation)>> = BTreeMap::new();
        for (rank, group) in members {
            let Some(operation) = &group.oldest_unfinished else {
                continue;
            };
            if operation.is_point_to_point {
                waits.push(transfer(*rank, group, operation, digests));
            } else {
                collectives
                    .entry(operation.sequence)
                    .or_default()
                    .push((*rank, operation));
            }
        }
        waits.extend(
            collectives
                .into_iter()
                .map(|(sequence, waiters)| collective(sequence, waiters, members, digests)),
        );
    }
    waits
}

fn collective<'a>(
    sequence: u64,
    waiters: Vec<(Rank, &'a Operation)>,
    members: &[(Rank, &'a GroupDigest)],
    digests: &BTreeMap<Rank, &FlightDigest>,
) -> Wait<'a> {
    let known: BTreeMap<Rank, Option<u64>> = members
        .iter()
        .map(|(rank, group)| (*rank, group.last_enqueued))
        .collect();
    let all = members.iter().map(|(_, group)| &group.members);
    let all: BTreeSet<Rank> = all
        .max_by_key(|set| set.len())
        .into_iter()
        .flat_map(|set| set.iter())
        .collect();
    let (mut missing, mut silent) = (Vec::new(), Vec::new());
    for rank in all {
        match (known.get(&rank), digests.get(&rank)) {
            (Some(Some(enqueued)), _) if *enqueued >= sequence => {}
            (Some(_), _) => missing.push(rank),
            // A rank that has not used the group yet does not report the group.
            (None, Some(digest)) if digest.groups_left_out == 0 => missing.push(rank),
            (None, _) => silent.push(rank),
        }
    }
    let first = members.first().map(|(_, group)| *group);
    Wait {
        group: first.map_or("", |group| group.name.as_str()),
        backend: first.map_or("", |group| group.backend.as_str()),
        sequence,
        is_point_to_point: false,
        waiters,
        missing,
        silent,
    }
}

fn transfer<'a>(
    rank: Rank,
    group: &'a GroupDigest,
    operation: &'a Operation,
    digests: &BTreeMap<Rank, &FlightDigest>,
) -> Wait<'a> {
    let peer = peer_in_group(&operation.name).and_then(|at| group.members.iter().nth(at));
    let (missing, silent) = match peer {
        Some(peer) if digests.contains_key(&peer) => (vec![peer], Vec::new()),
        Some(peer) => (Vec::new(), vec![peer]),
        None => (Vec::new(), Vec::new()),
    };
    Wait {
        group: &group.name,
        backend: &group.backend,
        sequence: operation.sequence,
        is_point_to_point: true,
        waiters: vec![(rank, operation)],
        missing,
        silent,
    }
}

/// Returns the other end of `nccl:recv 0<-1` or `nccl:send 0->1`, as its rank within the group.
fn peer_in_group(name: &str) -> Option<usize> {
    let (_, peer) = name.rsplit_once("<-").or_else(|| name.rsplit_once("->"))?;
    let digits = peer.trim();
    digits.parse().ok()
}

// === Disagreement ===

/// Finds ranks that are at the same operation number of a group but do different operations.
fn disagreement(wait: &Wait<'_>) -> Option<WaitGraphResult> {
    if wait.is_point_to_point {
        return None;
    }
    let mut sides: BTreeMap<(&str, &str, &str), Vec<Rank>> = BTreeMap::new();
    for (rank, operation) in &wait.waiters {
        let name = bare_name(&operation.name);
        let (sizes, dtypes) = if has_equal_inputs(name) {
            (operation.sizes.as_str(), operation.dtypes.as_str())
        } else {
            ("", "")
        };
        sides.entry((name, sizes, dtypes)).or_default().push(*rank);
    }
    (sides.len() > 1).then(|| {
        by_majority(
            sides.into_values().collect(),
            Cause::Desynchronised,
            unfinished(wait),
        )
    })
}

fn bare_name(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, bare)| bare)
}

/// Returns true if the operation requires inputs of equal size on all ranks.
fn has_equal_inputs(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is = |part: &str| name.contains(part);
    (is("all_reduce")
        || is("allreduce")
        || is("broadcast")
        || is("reduce_scatter")
        || is("all_gather")
        || is("allgather"))
        && !is("object")
        && !is("coalesced")
}

/// If one side has the majority of the ranks, the ranks of the other sides are the culprits.
fn by_majority(mut sides: Vec<Vec<Rank>>, cause: Cause, unfinished: Unfinished) -> WaitGraphResult {
    sides.sort_by_key(|side| std::cmp::Reverse(side.len()));
    let total: usize = sides.iter().map(Vec::len).sum();
    if sides[0].len() * 2 > total {
        let mut ranks: Vec<Rank> = sides.drain(1..).flatten().collect();
        ranks.sort_unstable();
        return WaitGraphResult::Culprits {
            ranks,
            cause,
            unfinished: Unfinished {
                waiters: sides.remove(0),
                ..unfinished
            },
        };
    }
    WaitGraphResult::Sides {
        sides,
        cause,
        unfinished,
    }
}

fn unfinished(wait: &Wait<'_>) -> Unfinished {
    let operation = wait.waiters.first().map(|(_, operation)| *operation);
    Unfinished {
        group: wait.group.to_owned(),
        sequence: wait.sequence,
        operation: operation.map_or_else(String::new, |operation| {
            format!("{} {} {}", operation.name, operation.sizes, operation.dtypes)
                .trim_end()
                .to_owned()
        }),
        backend: wait.backend.to_owned(),
        waiters: wait.waiters.iter().map(|(rank, _)| *rank).collect(),
        last_enqueued: Vec::new(),
    }
}

// === The graph ===

fn named_by_graph(waits: &[Wait<'_>], may_wait: impl Fn(Rank) -> bool) -> WaitGraphResult {
    let mut of_rank: BTreeMap<Rank, Vec<&Wait<'_>>> = BTreeMap::new();
    for wait in waits {
        for (rank, _) in &wait.waiters {
            of_rank.entry(*rank).or_default().push(wait);
        }
    }
    let missing: BTreeSet<Rank> = waits.iter().flat_map(|wait| &wait.missing).copied().collect();
    if missing.is_empty() {
        return all_enqueued(waits);
    }
    let waits_of = |rank: &Rank| of_rank.get(rank).map_or(&[][..], Vec::as_slice);
    let waits_for_no_one = |rank: &&Rank| {
        !may_wait(**rank)
            || waits_of(rank)
                .iter()
                .all(|wait| wait.missing.is_empty() && wait.silent.is_empty())
    };
    let sinks: BTreeSet<Rank> = missing.iter().filter(waits_for_no_one).copied().collect();
    let largest = waits
        .iter()
        .filter(|wait| sinks.is_empty() || wait.missing.iter().any(|rank| sinks.contains(rank)))
        .max_by_key(|wait| wait.waiters.len());
    let unfinished = largest.map(unfinished).unwrap_or_default();
    if sinks.is_empty() {
        let silent = silent_ends(&missing, &of_rank);
        if silent.is_empty() {
            return find_cycle(waits, &missing, &of_rank, unfinished);
        }
        return WaitGraphResult::AllEnqueued {
            not_started: Vec::new(),
            silent,
            unfinished,
        };
    }
    let in_transfer =
        |rank: &Rank| may_wait(*rank) && waits_of(rank).iter().any(|wait| wait.is_point_to_point);
    let in_collective =
        |rank: &Rank| may_wait(*rank) && waits_of(rank).iter().any(|wait| !wait.is_point_to_point);
    if sinks.iter().all(in_collective) {
        // These ranks are still in an operation that the others have finished.
        return by_majority(
            vec![unfinished.waiters.clone(), sinks.into_iter().collect()],
            Cause::Desynchronised,
            unfinished,
        );
    }
    let cause = if sinks.iter().all(in_transfer) {
        Cause::MessageMissing
    } else {
        Cause::NotEnqueued
    };
    WaitGraphResult::Culprits {
        ranks: sinks.into_iter().collect(),
        cause,
        unfinished,
    }
}

/// Returns the ranks without information for which missing ranks wait, if these wait for no other rank. Then the ranks do not wait in a cycle:
/// the cause is behind a rank of which nothing is known.
fn silent_ends(missing: &BTreeSet<Rank>, of_rank: &BTreeMap<Rank, Vec<&Wait<'_>>>) -> Vec<Rank> {
    let waits = missing.iter().filter_map(|rank| of_rank.get(rank));
    let ends = waits.filter(|waits| waits.iter().all(|wait| wait.missing.is_empty()));
    let silent: BTreeSet<Rank> = ends.flatten().flat_map(|wait| &wait.silent).copied().collect();
    silent.into_iter().collect()
}

/// Each rank waits for another: for a message that is not sent, or in groups that were entered in different orders.
fn find_cycle(
    waits: &[Wait<'_>],
    missing: &BTreeSet<Rank>,
    of_rank: &BTreeMap<Rank, Vec<&Wait<'_>>>,
    unfinished: Unfinished,
) -> WaitGraphResult {
    let only_transfers = |rank: &&Rank| {
        of_rank
            .get(rank)
            .is_some_and(|waits| waits.iter().all(|wait| wait.is_point_to_point))
    };
    let in_transfers: Vec<Rank> = missing.iter().filter(only_transfers).copied().collect();
    let collectives = waits.iter().any(|wait| !wait.is_point_to_point);
    if !in_transfers.is_empty() && collectives {
        return WaitGraphResult::Culprits {
            ranks: in_transfers,
            cause: Cause::MessageMissing,
            unfinished,
        };
    }
    let mut by_group: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
    for rank in missing {
        let group = of_rank
            .get(rank)
            .and_then(|waits| waits.first())
            .map(|wait| wait.group);
        by_group.entry(group.unwrap_or_default()).or_default().push(*rank);
    }
    // A rank that waits in one of the cycle's groups, but for which no rank waits, belongs to the side of its group.
    for wait in waits.iter().filter(|wait| !wait.missing.is_empty()) {
        if let Some(side) = by_group.get_mut(wait.group) {
            let others = wait.waiters.iter().map(|(rank, _)| *rank);
            side.extend(others.filter(|rank| !missing.contains(rank)));
        }
    }
    if by_group.len() == 1 {
        // Each rank waits for a message of another one, and no rank is behind the others.
        return WaitGraphResult::AllEnqueued {
            not_started: Vec::new(),
            silent: Vec::new(),
            unfinished,
        };
    }
    by_majority(by_group.into_values().collect(), Cause::GroupOrder, unfinished)
}

fn all_enqueued(waits: &[Wait<'_>]) -> WaitGraphResult {
    let largest = waits.iter().max_by_key(|wait| wait.waiters.len());
    let Some(wait) = largest else {
        return WaitGraphResult::Nothing;
    };
    let started = |is: bool| {
        let ranks = wait.waiters.iter();
        ranks.filter(move |(_, operation)| operation.has_started == Some(is))
    };
    let known = started(true).count() + started(false).count() == wait.waiters.len();
    let not_started: Vec<Rank> = started(false).map(|(rank, _)| *rank).collect();
    WaitGraphResult::AllEnqueued {
        not_started: if known && not_started.len() < wait.waiters.len() {
            not_started
        } else {
            Vec::new()
        },
        silent: wait.silent.clone(),
        unfinished: unfinished(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_set<const N: usize>(ranks: [u32; N]) -> RankSet {
        ranks.map(Rank).into_iter().collect()
    }

    fn group(name: &str, backend: &str, last: Option<u64>, unfinished: bool) -> GroupDigest {
        let operation = last.filter(|_| unfinished).map(|sequence| Operation {
            sequence,
            name: format!("{backend}:all_reduce"),
            ..Operation::default()
        });
        GroupDigest {
            name: name.to_owned(),
            backend: backend.to_owned(),
            members: rank_set([0, 1, 2]),
            last_enqueued: last,
            oldest_unfinished: operation,
            ..GroupDigest::default()
        }
    }

    fn answer(rank: u32, groups: Vec<GroupDigest>) -> FlightAnswer {
        FlightAnswer {
            rank: Rank(rank),
            at_ms: 0,
            digest: Some(FlightDigest {
                groups,
                ..FlightDigest::default()
            }),
        }
    }

    #[test]
    fn a_group_with_two_backends_counts_twice() {
        let waits = |rank| {
            let groups = vec![
                group("0", "nccl", Some(5_000), true),
                group("0", "gloo", Some(3), false),
            ];
            answer(rank, groups)
        };
        let late = vec![
            group("0", "nccl", Some(4_999), false),
            group("0", "gloo", Some(3), false),
        ];
        let WaitGraphResult::Culprits {
            ranks, unfinished, ..
        } = read(&[waits(0), waits(1), answer(2, late)], |_| true)
        else {
            panic!("one rank is missing")
        };
        assert_eq!(ranks, [Rank(2)]);
        assert_eq!(unfinished.last_enqueued, [(Rank(2), Some(4_999))]);
        let all = read(&[waits(0), waits(1), waits(2)], |_| true);
        assert!(
            matches!(all, WaitGraphResult::AllEnqueued { .. }),
            "none is missing: {all:?}"
        );
    }

    #[test]
    fn a_rank_that_never_used_a_group_is_missing_in_it() {
        let waits = |rank| answer(rank, vec![group("1", "gloo", Some(1), true)]);
        let WaitGraphResult::Culprits { ranks, .. } = read(
            &[waits(0), waits(1), answer(2, vec![group("1", "", None, false)])],
            |_| true,
        ) else {
            panic!("one rank is missing")
        };
        assert_eq!(ranks, [Rank(2)]);
    }

    /// Four ranks on a mesh of 2 × 2. The two groups of each axis have the same name, as `split_group` may name them. `tp` and `dp` contain
    /// the last operation of each rank, and whether it is unfinished.
    fn on_mesh(tp: [(u64, bool); 4], dp: [(u64, bool); 4]) -> Vec<FlightAnswer> {
        let of = |rank: u32| {
            let ((last_tp, waits_tp), (last_dp, waits_dp)) = (tp[rank as usize], dp[rank as usize]);
            let first = GroupDigest {
                members: rank_set([rank / 2 * 2, rank / 2 * 2 + 1]),
                ..group("1", "nccl", Some(last_tp), waits_tp)
            };
            let second = GroupDigest {
                members: rank_set([rank % 2, rank % 2 + 2]),
                ..group("2", "nccl", Some(last_dp), waits_dp)
            };
            answer(rank, vec![first, second])
        };
        (0..4).map(of).collect()
    }

    #[test]
    fn groups_of_the_same_name_without_a_common_member_are_different_groups() {
        // Rank 1 waits for rank 0 in the first axis, ranks 2 and 3 wait for 0 and 1 in the second.
        let late = on_mesh(
            [(56, false), (57, true), (60, false), (60, false)],
            [(4, false), (4, false), (5, true), (5, true)],
        );
        let WaitGraphResult::Culprits { ranks, cause, .. } = read(&late, |_| true) else {
            panic!("one rank is missing")
        };
        assert_eq!((ranks, cause), (vec![Rank(0)], Cause::NotEnqueued));
        // The operations of the two groups of an axis have different sizes.
        let mut all = on_mesh([(57, true); 4], [(4, false); 4]);
        for answer in &mut all[2..] {
            let groups = answer.digest.iter_mut().flat_map(|digest| &mut digest.groups);
            for operation in groups.filter_map(|group| group.oldest_unfinished.as_mut()) {
                "[[7]]".clone_into(&mut operation.sizes);
            }
        }
        let found = read(&all, |_| true);
        assert!(
            matches!(found, WaitGraphResult::AllEnqueued { .. }),
            "no rank differs from its group: {found:?}"
        );
    }

    #[test]
    fn if_each_rank_waits_for_a_message_of_another_one_no_rank_is_named() {
        let receives = |rank: u32, from: u32| {
            let operation = Operation {
                sequence: 3,
                is_point_to_point: true,
                name: format!("nccl:recv {rank}<-{from}"),
                ..Operation::default()
            };
            let world = GroupDigest {
                oldest_unfinished: Some(operation),
                ..group("0", "nccl", Some(8), false)
            };
            answer(rank, vec![world])
        };
        let found = read(&[receives(0, 1), receives(1, 2), receives(2, 0)], |_| true);
        assert!(
            matches!(&found, WaitGraphResult::AllEnqueued { silent, .. } if silent.is_empty()),
            "a finding without a culprit: {found:?}"
        );
    }

    #[test]
    fn ranks_that_wait_for_a_rank_without_information_are_no_cycle() {
        let waits = |rank: u32, name: &str, members: [u32; 2]| {
            let own = GroupDigest {
                members: rank_set(members),
                ..group(name, "nccl", Some(7), true)
            };
            let behind = GroupDigest {
                members: rank_set([0, 1, 2, 3]),
                ..group("0", "nccl", Some(40), false)
            };
            answer(rank, vec![own, behind])
        };
        // Rank 3 does not answer. Ranks 1 and 2 wait for it in a group each, and rank 0 waits for 1 and 2.
        let first = GroupDigest {
            members: rank_set([0, 1, 2, 3]),
            ..group("0", "nccl", Some(41), true)
        };
        let answers = [
            answer(0, vec![first]),
            waits(1, "1", [1, 3]),
            waits(2, "2", [2, 3]),
        ];
        let found = read(&answers, |_| true);
        assert!(
            matches!(&found, WaitGraphResult::AllEnqueued { silent, .. } if *silent == [Rank(3)]),
            "what rank 3 does is not known: {found:?}"
        );
    }
}
