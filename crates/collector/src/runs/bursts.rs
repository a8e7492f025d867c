//! The nodes that were requested to send their bursts in the last minutes. A burst is a few hundred thousand samples, and the next alert of
//! one incident needs the same ones.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use domain::ident::NodeName;

/// Minimum time between two requests to one node. The agent has the same limit.
const REQUEST_INTERVAL_MIN: Duration = Duration::from_secs(600);
/// Maximum number of nodes requested in that time. If a switch takes half a cluster down, this many nodes show what happened to all.
const NODES_MAX: usize = 64;

/// The requested nodes, in the order of the requests.
#[derive(Debug, Default)]
pub(super) struct BurstRequests(VecDeque<(Instant, NodeName)>);

impl BurstRequests {
    /// Returns true if a node may be requested now, and records the request.
    pub(super) fn take(&mut self, node: &NodeName, now: Instant) -> bool {
        while let Some((at, _)) = self.0.front()
            && now.duration_since(*at) >= REQUEST_INTERVAL_MIN
        {
            self.0.pop_front();
        }
        let allowed = self.0.len() < NODES_MAX && !self.0.iter().any(|(_, requested)| requested == node);
        if allowed {
            self.0.push_back((now, node.clone()));
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_requested_once_in_ten_minutes_and_not_all_of_them_at_once() {
        let node = |n: usize| NodeName::new(format!("n{n}")).expect("a name");
        let (mut requests, start) = (BurstRequests::default(), Instant::now());
        assert!(requests.take(&node(0), start));
        assert!(!requests.take(&node(0), start + REQUEST_INTERVAL_MIN / 2));
        let others = (1..200).filter(|n| requests.take(&node(*n), start + REQUEST_INTERVAL_MIN / 2));
        assert_eq!(others.count(), NODES_MAX - 1);
        assert!(
            requests.take(&node(0), start + REQUEST_INTERVAL_MIN),
            "ten minutes later"
        );
        assert!(
            !requests.take(&node(199), start + REQUEST_INTERVAL_MIN),
            "the others still count"
        );
        assert!(requests.take(&node(199), start + REQUEST_INTERVAL_MIN * 3));
        assert_eq!(requests.0.len(), 1);
    }
}
