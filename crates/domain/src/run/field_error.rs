//! An error in one field of a spec that a user wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error in one field, as text for the form and the terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldError {
    /// The field's name as in the spec; `set.lr` for the setting `lr`.
    pub field: String,
    /// What is wrong, and what would be correct.
    pub message: String,
}

impl FieldError {
    /// Returns the error of a field.
    #[must_use]
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        let (field, message) = (field.into(), message.into());
        Self { field, message }
    }
}
