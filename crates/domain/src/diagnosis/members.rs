//! Who belongs to an attempt, and until when each of its nodes has been heard.
//!
//! All waiting times are differences of times by one node's clock, so clocks need not agree. A node is *blind* when it was not heard for
//! longer than `BLIND_AFTER_MS` of the collector's time: nothing is decided about its ranks, and the watermark does not wait for it.

use std::collections::BTreeMap;

use crate::diagnosis::exchange::Member;
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Agents send once per second, and the watermark waits for a node for two seconds at most.
const BLIND_AFTER_MS: i64 = 1_000 + 2_000;
/// More ranks than Lockstep runs; measurements of others are dropped.
const RANKS_MAX: u32 = 65_536;

/// Ranks by their place in the attempt, which is what analysers call them by.
#[derive(Debug, Clone, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    places: Vec<Option<u32>>,
    node_of: Vec<usize>,
    role_of: Vec<usize>,
    roles: usize,
    nodes: Vec<Node>,
    node_places: BTreeMap<NodeName, usize>,
}

#[derive(Debug, Clone)]
struct Node {
    name: NodeName,
    ranks: usize,
    /// Until when, by its own clock.
    heard_ms: Option<TimestampMs>,
    /// The same at the last look, and when that changed by the collector's clock.
    looked_at_ms: Option<TimestampMs>,
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
                    heard_ms: None,
                    looked_at_ms: None,
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

    fn sort_roles(&mut self) {
        let mut known: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        let mut role_of = Vec::with_capacity(self.list.len());
        for member in &self.list {
            let next = known.len();
            role_of.push(*known.entry(member.role.as_deref()).or_insert(next));
        }
        self.roles = known.len();
        self.role_of = role_of;
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

    /// Ranks on a node.
    pub(super) fn ranks_on(&self, node: usize) -> usize {
        self.nodes[node].ranks
    }

    pub(super) fn role(&self, place: usize) -> usize {
        self.role_of[place]
    }

    pub(super) fn role_count(&self) -> usize {
        self.roles
    }

    /// The other ranks of a rank's role.
    pub(super) fn peers(&self, place: usize) -> RankSet {
        let of_role =
            (0..self.len()).filter(|peer| *peer != place && self.role_of[*peer] == self.role_of[place]);
        of_role.map(|peer| self.rank(peer)).collect()
    }

    // === What was heard ===

    pub(super) fn heard(&mut self, node: usize, at_ms: TimestampMs) {
        let node = &mut self.nodes[node];
        node.heard_ms = Some(node.heard_ms.map_or(at_ms, |heard| heard.max(at_ms)));
    }

    /// Sees which nodes are blind now.
    pub(super) fn look(&mut self, now_ms: TimestampMs) {
        for node in &mut self.nodes {
            if node.heard_ms != node.looked_at_ms {
                node.looked_at_ms = node.heard_ms;
                node.arrived_ms = Some(now_ms);
            }
            node.is_blind = node
                .arrived_ms
                .is_some_and(|arrived| now_ms - arrived > BLIND_AFTER_MS);
        }
    }

    /// Whether the node was heard once and is not heard now.
    pub(super) fn is_blind(&self, node: usize) -> bool {
        self.nodes[node].is_blind
    }

    /// For how long the collector has not heard a blind node.
    pub(super) fn silent_seconds(&self, node: usize, now_ms: TimestampMs) -> f64 {
        let arrived = self.nodes[node].arrived_ms.unwrap_or(now_ms);
        seconds(now_ms - arrived)
    }

    /// Until when the node of a rank was heard, by its own clock.
    pub(super) fn heard_ms(&self, place: usize) -> Option<TimestampMs> {
        self.nodes[self.node_of[place]].heard_ms
    }

    /// The time until which all nodes but blind ones were heard.
    pub(super) fn watermark_ms(&self) -> Option<TimestampMs> {
        let seeing = self.nodes.iter().filter(|node| !node.is_blind);
        seeing.filter_map(|node| node.heard_ms).min()
    }
}

pub(super) fn seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}
