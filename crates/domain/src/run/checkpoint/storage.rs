//! Where a run saves checkpoints, and which of them are pinned.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Prune, SaveFailure};

/// Facts about a run's checkpoints apart from the checkpoints themselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// The checkpoint folder of each node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NodeStorage>,
    /// Paths that a person pinned.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub pinned: BTreeSet<String>,
    /// This run's checkpoints that other runs have pinned by path; at most as many as there are known checkpoints.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub pinned_by_others: BTreeSet<String>,
    /// The last prunes that people requested, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prunes: Vec<Prune>,
}

/// One node's checkpoint folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStorage {
    /// Path of the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Free bytes of its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Where `latest` points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The last save that failed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SaveFailure>,
    /// True if its agent records which files the run wrote, and accepts a [`RemovalOrder`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
}

impl Storage {
    /// Returns true if it contains nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.pinned.is_empty()
            && self.pinned_by_others.is_empty()
            && self.prunes.is_empty()
    }

    /// Returns the free bytes of the node with the fewest.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        self.nodes.values().filter_map(|node| node.free_bytes).min()
    }

    pub(super) fn folders(&self) -> BTreeSet<String> {
        self.nodes
            .values()
            .filter_map(|node| node.folder.clone())
            .collect()
    }
}
