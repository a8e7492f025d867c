//! Faults of nodes, and the nodes that the next attempts run without.

use serde::{Deserialize, Serialize};

use crate::ident::NodeName;
use crate::run::state::Outcome;

/// A node that is excluded from a run's next attempts as long as there are enough others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node.
    pub node: NodeName,
    /// What is wrong with it.
    pub fault: Fault,
}

impl Exclusion {
    pub(super) fn away(node: &NodeName, reason: String) -> Self {
        let kind = FaultKind::Away;
        let (node, fault) = (node.clone(), Fault { kind, reason });
        Self { node, fault }
    }

    pub(super) fn by_person(node: &NodeName) -> Self {
        let fault = Fault {
            kind: FaultKind::Person,
            reason: "a person took it out of the run".to_owned(),
        };
        Self {
            node: node.clone(),
            fault,
        }
    }
}

/// What is wrong with a node, as far as one run can determine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of fault, which decides whether the node may be used again.
    pub kind: FaultKind,
    /// The reason, as text.
    pub reason: String,
}

/// The kind of fault of a node. It decides when the run may use the node again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Its agent was away. The node may be used again as soon as its agent is connected, if no other node can take its place.
    Away,
    /// It lost the shim. May be used again like after `Away`.
    Shim,
    /// It refused the run, or lacks what the run needs. Not used again until a person resumes the run.
    Unfit,
    /// Its hardware failed under a rank. Like `Unfit`.
    Hardware,
    /// A person excluded it. Like `Unfit`.
    Person,
}

/// A failure that no rank reported, and the node that caused it, if there is one.
#[derive(Debug)]
pub(super) struct NodeFailure {
    pub(super) outcome: Outcome,
    pub(super) exclusion: Option<Exclusion>,
}
