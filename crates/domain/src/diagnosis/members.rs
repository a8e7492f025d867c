//! The ranks of an attempt and their nodes, and the time up to which the measurements of each node are complete.
//!
//! All waits are differences of times by the clock of one node, so the clocks of nodes need not agree. A node is *blind* if nothing was
//! received from it for longer than `BLIND_AFTER_MS` of the collector's time. The analysers make no findings about its ranks, and the
//! watermark does not wait for it.

use std::collections::BTreeMap;

use crate::diagnosis::messages::Member;
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Agents send once per second, and the watermark waits for a node for at most two seconds.
const BLIND_AFTER_MS: i64 = 1_000 + 2_000;
/// More ranks than Lockstep can run. Measurements of ranks beyond this are dropped.
const RANKS_MAX: u32 = 65_536;

/// The members of an attempt. A *place* is the index of a member; the analysers identify ranks by it.
#[derive(Debug, Clone, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    places: Vec<Option<u32>>,
    node_of: Vec<usize>,
    role_of: Vec<usize>,
    roles: usize,
    data_group_of: Vec<usize>,
    nodes: Vec<Node>,
    node_places: BTreeMap<NodeName, usize>,
}

#[derive(Debug, Clone)]
struct Node {
    name: NodeName,
    ranks: usize,
    /// Time up to which measurements are complete, by the node's own clock.
    complete_until_ms: Option<TimestampMs>,
    /// Value of `complete_until_ms` at the last check, and when it last changed by the collector's clock.
    checked_complete_until_ms: Option<TimestampMs>,
    arrived_ms: Option<TimestampMs>,
    is_blind: bool,
}

impl Members {
    pub(super) fn new(list: Vec<Member>) -> Self {
        let mut members = Self {
            list: list
                .into_iter()
                .filter(|member| member.rank.0 < RANKS_MAX)
                .collect(),
            ..Self::default()
        };
        for place in 0..members.list.len() {
            let (rank, node) = (
                members.list[place].rank.0 as usize,
                members.list[place].node.clone(),
            );
            if members.places.len() <= rank {
                members.places.resize(rank + 1, None);
            }
            members.places[rank] = u32::try_from(place).ok();
            let at = *members
                .node_places
                .entry(node.clone())
                .or_insert(members.nodes.len());
            if at == members.nodes.len() {
                members.nodes.push(Node {
                    name: node,
                    ranks: 0,
                    complete_until_ms: None,
                    checked_complete_until_ms: None,
                    arrived_ms: None,
                    is_blind: false,
                });
            }
            members.nodes[at].ranks += 1;
            members.node_of.push(at);
        }
        members.sort_roles();
        members
    }

    pub(super) fn set_roles(&mut self, roles: &[(Rank, Option<String>)]) {
        for (rank, role) in roles {
            if let Some(place) = self.place(*rank) {
                self.list[place].role.clone_from(role);
            }
        }
        self.sort_roles();
    }

    /// Returns true if the group of at least one rank has changed.
    pub(super) fn set_data_groups(&mut self, groups: &[(Rank, Option<String>)]) -> bool {
        let mut has_changed = false;
        for (rank, group) in groups {
            let Some(place) = self.place(*rank) else { continue };
            has_changed |= self.list[place].data_group != *group;
            self.list[place].data_group.clone_from(group);
        }
        self.sort_roles();
        has_changed
    }

    fn sort_roles(&mut self) {
        self.role_of = numbered(self.list.iter().map(|member| &member.role));
        self.roles = self.role_of.iter().max().map_or(0, |last| last + 1);
        self.data_group_of = numbered(self.list.iter().map(|member| (&member.role, &member.data_group)));
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn place(&self, rank: Rank) -> Option<usize> {
        let place = self.places.get(rank.0 as usize).copied().flatten();
        place.map(|place| place as usize)
    }

    pub(super) fn rank(&self, place: usize) -> Rank {
        self.list[place].rank
    }

    pub(super) fn node(&self, place: usize) -> &NodeName {
        &self.list[place].node
    }

    pub(super) fn node_place(&self, place: usize) -> usize {
        self.node_of[place]
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn node_name(&self, node: usize) -> &NodeName {
        &self.nodes[node].name
    }

    pub(super) fn place_of_node(&self, name: &NodeName) -> Option<usize> {
        self.node_places.get(name).copied()
    }

    /// Returns the number of ranks on a node.
    pub(super) fn ranks_on(&self, node: usize) -> usize {
        self.nodes[node].ranks
    }

    pub(super) fn role(&self, place: usize) -> usize {
        self.role_of[place]
    }

    pub(super) fn role_count(&self) -> usize {
        self.roles
    }

    /// Returns the other ranks with the same role.
    pub(super) fn peers(&self, place: usize) -> RankSet {
        self.others_in(&self.role_of, place)
    }

    /// Returns the number of the group of ranks whose data and losses are compared.
    pub(super) fn data_group(&self, place: usize) -> usize {
        self.data_group_of[place]
    }

    /// Returns the other ranks of this group.
    pub(super) fn data_peers(&self, place: usize) -> RankSet {
        self.others_in(&self.data_group_of, place)
    }

    fn others_in(&self, group_of: &[usize], place: usize) -> RankSet {
        let others = (0..self.len()).filter(|other| *other != place && group_of[*other] == group_of[place]);
        others.map(|other| self.rank(other)).collect()
    }

    // === Completeness of measurements ===

    pub(super) fn set_complete_until(&mut self, node: usize, at_ms: TimestampMs) {
        let node = &mut self.nodes[node];
        node.complete_until_ms = Some(node.complete_until_ms.map_or(at_ms, |known| known.max(at_ms)));
    }

    /// Updates which nodes are blind.
    pub(super) fn update_blind_nodes(&mut self, now_ms: TimestampMs) {
        for node in &mut self.nodes {
            if node.complete_until_ms != node.checked_complete_until_ms {
                node.checked_complete_until_ms = node.complete_until_ms;
                node.arrived_ms = Some(now_ms);
            }
            node.is_blind = node
                .arrived_ms
                .is_some_and(|arrived| now_ms - arrived > BLIND_AFTER_MS);
        }
    }

    /// Returns true if the node sent measurements before and sends none now.
    pub(super) fn is_blind(&self, node: usize) -> bool {
        self.nodes[node].is_blind
    }

    /// Returns the seconds since the collector last received something from a blind node.
    pub(super) fn seconds_without_data(&self, node: usize, now_ms: TimestampMs) -> f64 {
        let arrived = self.nodes[node].arrived_ms.unwrap_or(now_ms);
        seconds(now_ms - arrived)
    }

    /// Returns the time up to which the measurements of a rank's node are complete, by the node's clock.
    pub(super) fn complete_until_ms(&self, place: usize) -> Option<TimestampMs> {
        self.nodes[self.node_of[place]].complete_until_ms
    }

    /// Returns the time up to which the measurements of all nodes that are not blind are complete.
    pub(super) fn watermark_ms(&self) -> Option<TimestampMs> {
        let seeing = self.nodes.iter().filter(|node| !node.is_blind);
        seeing.filter_map(|node| node.complete_until_ms).min()
    }
}

/// Numbers the keys in the order in which they first occur.
fn numbered<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<usize> {
    let mut known = BTreeMap::new();
    keys.map(|key| {
        let next = known.len();
        *known.entry(key).or_insert(next)
    })
    .collect()
}

pub(super) fn seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}
