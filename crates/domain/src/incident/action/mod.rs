//! What can be done about a diagnosis: typed actions, each with what it costs and how to undo it.
//!
//! ```text
//! annotation `actions` of the rule ──▶ hints ─┐
//! the run as it stands, facts measured now ───┴▶ propose ──▶ actions that are possible now, the likeliest first
//! ```
//! An action that cannot be carried out now is not listed, and only what is listed is carried out.

mod cost;
mod hint;
mod propose;
mod value;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::checkpoints::PruneLine;
use crate::ident::Rank;

pub use hint::{ACTIONS_ANNOTATION, Hint};
pub use propose::{Facts, Situation, propose};
pub use value::Loading;

/// Kinds of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Set a knob of the run.
    ApplyKnob,
    /// Take the last change of knobs back.
    RevertKnobs,
    /// Take a node out of the run, which goes on elsewhere from its last complete checkpoint.
    ExcludeNode,
    /// End the attempt, and go on from the last complete checkpoint.
    Restart,
    /// Remove checkpoints that the run wrote and nothing keeps.
    PruneCheckpoints,
    /// Record a trace in ranks that train.
    Trace,
}

/// Something that can be done now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// What to send to `POST /api/diagnoses/{id}/act`: `apply_knob:num_workers=4`, `exclude_node:node-7`, `restart`, …
    pub id: String,
    /// Its kind.
    pub kind: ActionKind,
    /// What it does, in a few words: for a button.
    pub title: String,
    /// What it costs, in a sentence.
    pub cost: String,
    /// How to undo it, in a sentence.
    pub undo: String,
    /// Steps that are trained again because of it, at most; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<u64>,
    /// How many ranks it touches.
    #[serde(default)]
    pub ranks: u32,
    /// The knob that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knob: Option<String>,
    /// The value that it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The node that is taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The rank that is traced; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Checkpoints of which this many are kept, by pruning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// What is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<PruneLine>,
    /// What may be unwise about it.
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
