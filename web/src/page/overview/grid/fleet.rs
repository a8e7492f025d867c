//! The GPUs of all nodes, in the order of the grid.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::api::nodes::{NodeState, NodeView};

use crate::language::tr;

/// A GPU, by node and index.
pub(super) type GpuKey = (String, u32);

/// A rank, by run and number. The number is empty if only the run is known.
pub(super) type RankKey = (String, String);

/// What a diagnosis names on a node.
pub(super) struct Culprit {
    pub(super) node: String,
    pub(super) gpu: Option<u32>,
    pub(super) rank: Option<RankKey>,
}

/// The fields of a node that the grid needs. Equal if nothing has to be redrawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) down: bool,
    pub(super) rack: Option<String>,
    /// Index and product name of each GPU.
    pub(super) gpus: Vec<(u32, String)>,
}

impl From<&NodeView> for Node {
    fn from(node: &NodeView) -> Self {
        let gpus = node.inventory.gpus.iter();
        Self {
            name: node.name.clone(),
            down: node.state == NodeState::Down,
            rack: node.inventory.rack.clone(),
            gpus: gpus.map(|gpu| (gpu.index, gpu.name.clone())).collect(),
        }
    }
}

/// How cells are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grouping {
    /// By node.
    Node,
    /// By run.
    Run,
    /// By rack.
    Rack,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) node: String,
    pub(super) gpu: u32,
    pub(super) down: bool,
    pub(super) run: Option<String>,
    pub(super) rack: Option<String>,
    /// The number of its peer group: GPUs of the same run, or GPUs of the same product without a run.
    pub(super) peers: u32,
}

/// GPUs of one node, side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) node: String,
    pub(super) cells: Range<usize>,
}

/// Blocks under one heading; without a heading if the title is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

/// All GPUs.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) cells: Vec<Cell>,
    pub(super) groups: Vec<Group>,
    places: BTreeMap<GpuKey, usize>,
}

impl Fleet {
    /// Builds the fleet from these nodes. `ranks` contains the rank that uses each GPU.
    pub(super) fn of(nodes: &[Node], ranks: &BTreeMap<GpuKey, RankKey>, grouping: Grouping) -> Self {
        let mut fleet = Self::default();
        let mut peers = BTreeMap::new();
        let mut titles: BTreeMap<Option<String>, Vec<&Node>> = BTreeMap::new();
        let run_of = |node: &Node, gpu: u32| Some(ranks.get(&(node.name.clone(), gpu))?.0.clone());
        for node in nodes {
            for (gpu, _) in &node.gpus {
                let heading = match grouping {
                    Grouping::Node => None,
                    Grouping::Run => run_of(node, *gpu),
                    Grouping::Rack => node.rack.clone(),
                };
                let under = titles.entry(heading).or_default();
                if under.last().is_none_or(|last| last.name != node.name) {
                    under.push(node);
                }
            }
        }
        // GPUs without a run or a rack are last.
        let without = titles.remove(&None);
        let groups = titles.into_iter().chain(without.map(|nodes| (None, nodes)));
        for (heading, nodes) in groups {
            let title = match (&heading, grouping) {
                (Some(heading), _) => heading.clone(),
                (None, Grouping::Run) => tr("no run").to_owned(),
                (None, Grouping::Rack) => tr("no rack").to_owned(),
                (None, Grouping::Node) => String::new(),
            };
            let mut blocks = Vec::with_capacity(nodes.len());
            for node in nodes {
                let begin = fleet.cells.len();
                for (gpu, product) in &node.gpus {
                    let own = run_of(node, *gpu);
                    if grouping == Grouping::Run && own != heading {
                        continue;
                    }
                    let next = peers.len();
                    let peers = *peers
                        .entry(own.clone().ok_or_else(|| product.clone()))
                        .or_insert(next);
                    fleet.places.insert((node.name.clone(), *gpu), fleet.cells.len());
                    fleet.cells.push(Cell {
                        node: node.name.clone(),
                        gpu: *gpu,
                        down: node.down,
                        run: own,
                        rack: node.rack.clone(),
                        peers: u32::try_from(peers).unwrap_or(u32::MAX),
                    });
                }
                let cells = begin..fleet.cells.len();
                if !cells.is_empty() {
                    blocks.push(Block {
                        node: node.name.clone(),
                        cells,
                    });
                }
            }
            fleet.groups.push(Group { title, blocks });
        }
        fleet
    }

    /// Returns the cell of a GPU.
    pub(super) fn place(&self, key: &GpuKey) -> Option<usize> {
        self.places.get(key).copied()
    }

    /// Returns the cells of a culprit: one GPU, or all GPUs of a node.
    pub(super) fn named(&self, node: &str, gpu: Option<u32>) -> Vec<usize> {
        match gpu {
            Some(gpu) => self.place(&(node.to_owned(), gpu)).into_iter().collect(),
            None => {
                let all = self
                    .places
                    .range((node.to_owned(), 0)..=(node.to_owned(), u32::MAX));
                all.map(|(_, place)| *place).collect()
            }
        }
    }

    /// Returns the peer group of each cell.
    pub(super) fn peers(&self) -> Vec<u32> {
        self.cells.iter().map(|cell| cell.peers).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns `count` nodes with `gpus` GPUs each.
    pub(in super::super) fn nodes(count: usize, gpus: u32) -> Vec<Node> {
        let node = |n: usize| Node {
            name: format!("node-{n:04}"),
            down: false,
            rack: None,
            gpus: (0..gpus).map(|gpu| (gpu, "H100".to_owned())).collect(),
        };
        (0..count).map(node).collect()
    }

    /// Returns a GPU of the first node as a culprit.
    pub(in super::super) fn culprit(gpu: u32) -> Culprit {
        Culprit {
            node: "node-0000".to_owned(),
            gpu: Some(gpu),
            rank: None,
        }
    }

    /// Returns the key of a rank.
    pub(in super::super) fn rank(run: &str, rank: u32) -> RankKey {
        (run.to_owned(), rank.to_string())
    }

    #[test]
    fn runs_are_groups_and_gpus_without_one_come_last() {
        let ranks = BTreeMap::from([
            (("node-0000".to_owned(), 0), rank("b", 0)),
            (("node-0001".to_owned(), 0), rank("a", 0)),
            (("node-0001".to_owned(), 1), rank("b", 1)),
        ]);
        let fleet = Fleet::of(&nodes(2, 2), &ranks, Grouping::Run);
        let titles: Vec<_> = fleet
            .groups
            .iter()
            .map(|group| (group.title.as_str(), group.blocks.len()))
            .collect();
        assert_eq!(titles, [("a", 1), ("b", 2), ("no run", 1)]);
        assert_eq!(fleet.cells.len(), 4);
        assert_eq!(fleet.place(&("node-0001".to_owned(), 1)), Some(2));
        assert_eq!(fleet.peers(), [0, 1, 1, 2]);
    }

    #[test]
    fn racks_are_groups_and_nodes_without_one_come_last() {
        let mut nodes = nodes(4, 2);
        for (node, rack) in [(1, "R02"), (2, "R01"), (3, "R02")] {
            nodes[node].rack = Some(rack.to_owned());
        }
        let ranks = BTreeMap::from([(("node-0003".to_owned(), 1), rank("a", 0))]);
        let fleet = Fleet::of(&nodes, &ranks, Grouping::Rack);
        let groups = fleet.groups.iter().map(|group| {
            let nodes = group.blocks.iter().map(|block| block.node.as_str());
            (group.title.as_str(), nodes.collect::<Vec<_>>())
        });
        let expected = [
            ("R01", vec!["node-0002"]),
            ("R02", vec!["node-0001", "node-0003"]),
            ("no rack", vec!["node-0000"]),
        ];
        assert_eq!(groups.collect::<Vec<_>>(), expected);
        assert_eq!(fleet.cells.len(), 8);
        assert_eq!(fleet.named("node-0003", None), [4, 5]);
        assert_eq!(fleet.cells[5].run.as_deref(), Some("a"));
    }

    #[test]
    fn by_node_the_order_is_that_of_the_nodes() {
        let fleet = Fleet::of(&nodes(3, 2), &BTreeMap::new(), Grouping::Node);
        assert_eq!(fleet.groups.len(), 1);
        assert_eq!(fleet.groups[0].blocks[1].cells, 2..4);
        assert_eq!(fleet.named("node-0002", None), [4, 5]);
        assert_eq!(fleet.named("node-0002", Some(1)), [5]);
        assert_eq!(fleet.named("node-0009", None), [0_usize; 0]);
    }
}
