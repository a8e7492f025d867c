//! The script's own argument or variable that a run declares for a knob.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::knob::change::How;

/// The setting of the script that a knob controls: `"--num-workers"`, `"NUM_WORKERS"`, or a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KnobTarget {
    /// A flag if it begins with `-`, otherwise a variable.
    Text(String),
    /// An argument of the script; it ends with `=` if argument and value form one word.
    Flag {
        /// Name of the argument, for example `--num-workers`.
        flag: String,
    },
    /// An environment variable of the script.
    Variable {
        /// Name of the variable, for example `NUM_WORKERS`.
        env: String,
    },
}

impl KnobTarget {
    /// Returns how the knob is applied through this setting.
    ///
    /// # Errors
    /// Returns a message if the text is neither a flag nor the name of a variable.
    pub fn how(&self) -> Result<How, String> {
        match self {
            Self::Text(text) if text.starts_with('-') => flag(text),
            Self::Flag { flag: text } => flag(text),
            Self::Text(text) | Self::Variable { env: text } => variable(text),
        }
    }
}

fn flag(text: &str) -> Result<How, String> {
    let name = text.trim_end_matches('=');
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.trim_matches('-').is_empty() || !name.chars().all(allowed) {
        return Err(format!(
            "{text:?} is not an argument of a script; write it like --num-workers"
        ));
    }
    Ok(How::Flag { flag: text.into() })
}

fn variable(text: &str) -> Result<How, String> {
    let mut bytes = text.bytes();
    let starts = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if !starts || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(format!(
            "{text:?} is neither an argument like --num-workers nor a variable like NUM_WORKERS"
        ));
    }
    Ok(How::Variable { env: text.into() })
}
