//! What is wrong with a node, and which nodes the next attempts are not given.

use serde::{Deserialize, Serialize};

use crate::ident::NodeName;
use crate::run::state::Outcome;

/// A node that a run's next attempts are not given while there are others.
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

/// What is wrong with a node, as far as one run can tell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind, which decides whether it may come back.
    pub kind: FaultKind,
    /// In words.
    pub reason: String,
}

/// Whether a node may come back to a run that it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// It was not heard. Good again as soon as it is heard, if no other takes its place.
    Away,
    /// It lost the process that owned the ranks. As good again as after `Away`.
    Shim,
    /// It refused the run, or lacks what the run needs. Not asked again until a person resumes the run.
    Unfit,
    /// Its hardware failed under a rank. As with `Unfit`.
    Hardware,
    /// A person took it out. As with `Unfit`.
    Person,
}

/// A failure that no rank reported, and the node that is to blame for it, if one is.
#[derive(Debug)]
pub(super) struct NodeFailure {
    pub(super) outcome: Outcome,
    pub(super) exclusion: Option<Exclusion>,
}
