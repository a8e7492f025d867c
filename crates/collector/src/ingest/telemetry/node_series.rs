//! Counts how many series each node has, over all its connections and segments.
//!
//! ```text
//! hour    ── earlier ──┬── recent ──▶ now        a definition counts its series as recent
//! a node has: earlier ∪ recent, at most SERIES_MAX
//! ```
//! An agent defines its series again for each segment, at least every ten minutes, so the series it uses are in one of the two hours. Older
//! series do not count: runs start and end, and their series with them.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ident::NodeName;
use domain::series::Labels;
use domain::time::TimestampMs;
use foldhash::fast::RandomState;

use crate::identity_hash::IdentityHash;

/// Bound of the series of one node at a time. 16 GPUs with every metric, links and processes need about 3,000.
pub(crate) const SERIES_MAX: usize = 20_000;
/// Minimum time for which a series counts after its last definition.
const HOUR_MS: i64 = 3_600_000;

/// The series of all nodes. Cheap to clone; all clones share one state.
#[derive(Clone, Default)]
pub(crate) struct NodeSeries {
    nodes: Arc<Mutex<HashMap<NodeName, OfNode>>>,
    /// Seeded randomly per collector, so that an agent cannot compute which series have the same hash.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct OfNode {
    recent: HashSet<u64, IdentityHash>,
    earlier: HashSet<u64, IdentityHash>,
    recent_since_ms: TimestampMs,
}

impl NodeSeries {
    /// Counts a series of a node. Returns false if the node is at its limit.
    pub(crate) fn admit(&self, node: &NodeName, labels: &Labels, now_ms: TimestampMs) -> bool {
        let hash = self.hasher.hash_one(labels);
        let mut nodes = self.lock();
        if let Some(known) = nodes.get_mut(node) {
            return known.admit(hash, now_ms);
        }
        // Nodes that are gone are removed only here, when another node appears.
        nodes.retain(|_, known| now_ms - known.recent_since_ms < 2 * HOUR_MS);
        let mut known = OfNode {
            recent_since_ms: now_ms,
            ..OfNode::default()
        };
        let admitted = known.admit(hash, now_ms);
        nodes.insert(node.clone(), known);
        admitted
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, OfNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfNode {
    fn admit(&mut self, hash: u64, now_ms: TimestampMs) -> bool {
        let passed_ms = now_ms - self.recent_since_ms;
        if !(0..HOUR_MS).contains(&passed_ms) {
            self.earlier = std::mem::take(&mut self.recent);
            if passed_ms >= 2 * HOUR_MS {
                self.earlier.clear();
            }
            self.recent_since_ms = now_ms;
        }
        if self.recent.contains(&hash) {
            return true;
        }
        // Moved, so that the two sets have no series in common and their lengths can be added.
        if self.earlier.remove(&hash) || self.recent.len() + self.earlier.len() < SERIES_MAX {
            self.recent.insert(hash);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).expect("a good name")
    }

    fn labels(n: usize) -> Labels {
        Labels::new([("__name__", "m"), ("n", &n.to_string())]).expect("well formed")
    }

    #[test]
    fn a_node_has_one_limit_and_the_next_node_its_own() {
        let series = NodeSeries::default();
        let (one, other) = (node("one"), node("other"));
        let admitted = |n, now_ms| series.admit(&one, &labels(n), now_ms);
        assert!((0..SERIES_MAX).all(|n| admitted(n, 0)));
        assert!(!admitted(SERIES_MAX, 1), "one too many");
        assert!(admitted(7, 2), "what it has it may define again");
        assert!(series.admit(&other, &labels(SERIES_MAX), 2));
        // One hour later only these count: series that are defined again, and series of the hour before.
        assert!(admitted(7, HOUR_MS + 1) && !admitted(SERIES_MAX, HOUR_MS + 2));
        assert!(admitted(8, 2 * HOUR_MS + 2) && admitted(SERIES_MAX, 2 * HOUR_MS + 3));
        // Nodes that are gone are removed.
        assert!(series.admit(&node("third"), &labels(1), 9 * HOUR_MS));
        assert_eq!(series.lock().len(), 1);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_series_forever() {
        let series = NodeSeries::default();
        let admitted = |n, now_ms| series.admit(&node("one"), &labels(n), now_ms);
        assert!((0..SERIES_MAX).all(|n| admitted(n, 100 * HOUR_MS)));
        assert!(!admitted(SERIES_MAX, 1));
        assert!(admitted(SERIES_MAX, 1 + HOUR_MS));
    }
}
