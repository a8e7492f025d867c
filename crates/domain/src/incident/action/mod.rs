//! Actions for a diagnosis, as types. Each has its cost and how to undo it.
//!
//! ```text
//! annotation `actions` of the rule ──▶ hints ─┐
//! the run and its current measurements ───────┴▶ propose ──▶ actions that are possible now, the most likely first
//! ```
//! Only actions that can be carried out now are listed, and only listed actions can be carried out.

mod cost;
mod hint;
mod preview;
mod propose;
mod value;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::checkpoints::PruneLine;
use crate::ident::Rank;

pub use hint::{ACTIONS_ANNOTATION, Hint};
pub use preview::preview;
pub use propose::{ActionContext, Measurements, propose};
pub use value::Loading;

/// Kind of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Set a knob of the run.
    ApplyKnob,
    /// Revert the last change of knobs.
    RevertKnobs,
    /// Exclude a node from the run. The run resumes on other nodes from its last complete checkpoint.
    ExcludeNode,
    /// End the attempt and resume from the last complete checkpoint.
    Restart,
    /// Remove checkpoints that the run wrote and that need not be kept.
    PruneCheckpoints,
    /// Record a trace of training ranks.
    Trace,
}

/// An action that can be carried out now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// Id to send to `POST /api/diagnoses/{id}/act`: `apply_knob:num_workers=4`, `exclude_node:node-7`, `restart`, …
    pub id: String,
    /// Kind of the action.
    pub kind: ActionKind,
    /// What the action does, in a few words, for a button.
    pub title: String,
    /// Cost of the action, in one sentence.
    pub cost: String,
    /// How to undo the action, in one sentence.
    pub undo: String,
    /// Maximum number of steps that must be trained again. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<u64>,
    /// Number of ranks that the action affects.
    #[serde(default)]
    pub ranks: u32,
    /// Knob to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knob: Option<String>,
    /// New value of the knob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Node to exclude.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Rank to trace. Absent for all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Number of newest checkpoints that pruning keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// Checkpoints to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<PruneLine>,
    /// Possible disadvantages of the action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Action {
    fn new(kind: ActionKind, id: String, title: String) -> Self {
        Self {
            id,
            kind,
            title,
            cost: String::new(),
            undo: String::new(),
            steps_lost: None,
            ranks: 0,
            knob: None,
            value: None,
            node: None,
            rank: None,
            keep_last: None,
            removes: Vec::new(),
            warnings: Vec::new(),
        }
    }
}
