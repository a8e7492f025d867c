//! Which nodes were asked for their bursts in the last minutes: each is a few hundred thousand samples, and the next alert of one incident
//! wants the same ones.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use domain::ident::NodeName;

/// A node is asked once in this time. Its agent keeps to the same.
const APART: Duration = Duration::from_secs(600);
/// Nodes asked in that time: when a switch takes half a cluster down, these tell what happened to all.
const NODES_MAX: usize = 64;

/// The nodes, in the order in which they were asked.
#[derive(Debug, Default)]
pub(super) struct Asked(VecDeque<(Instant, NodeName)>);

impl Asked {
    /// Whether a node may be asked now; it counts as asked from then on.
    pub(super) fn take(&mut self, node: &NodeName, now: Instant) -> bool {
        while let Some((at, _)) = self.0.front()
            && now.duration_since(*at) >= APART
        {
            self.0.pop_front();
        }
        let may = self.0.len() < NODES_MAX && !self.0.iter().any(|(_, asked)| asked == node);
        if may {
            self.0.push_back((now, node.clone()));
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_once_in_ten_minutes_and_not_all_of_them_at_once() {
        let node = |n: usize| NodeName::new(format!("n{n}")).expect("a name");
        let (mut asked, start) = (Asked::default(), Instant::now());
        assert!(asked.take(&node(0), start));
        assert!(!asked.take(&node(0), start + APART / 2));
        let others = (1..200).filter(|n| asked.take(&node(*n), start + APART / 2));
        assert_eq!(others.count(), NODES_MAX - 1);
        assert!(asked.take(&node(0), start + APART), "ten minutes later");
        assert!(!asked.take(&node(199), start + APART), "the others still count");
        assert!(asked.take(&node(199), start + APART * 3));
        assert_eq!(asked.0.len(), 1);
    }
}
