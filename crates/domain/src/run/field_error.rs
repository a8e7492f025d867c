//! What is wrong with one field of what a person wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is wrong with one field, in words for the form and the terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldError {
    /// The field's name as in a spec, `set.lr` for a setting.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}
