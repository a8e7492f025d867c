//! Where a run saves, and what of it is to be kept.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::SaveFailure;

/// What else is kept in mind of a run's checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// Each node's folder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NodeStorage>,
    /// Paths that a person wants kept.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub pinned: BTreeSet<String>,
    /// Those of this run's checkpoints that other runs have pinned by their path; no more than there are checkpoints known.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub pinned_by_others: BTreeSet<String>,
}

/// One node's checkpoint folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStorage {
    /// Where it is.
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
    /// Its agent knows which files the run wrote, and takes a [`RemovalOrder`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
}

impl Storage {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.pinned.is_empty() && self.pinned_by_others.is_empty()
    }

    pub(super) fn folders(&self) -> BTreeSet<String> {
        self.nodes
            .values()
            .filter_map(|node| node.folder.clone())
            .collect()
    }
}
