//! What a run declares a knob to be: its script's own argument or variable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::knob::change::How;

/// Which setting of the script a knob is: `"--num-workers"` or `"NUM_WORKERS"`, or said in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KnobTarget {
    /// A flag when it begins with `-`, else a variable.
    Text(String),
    /// An argument of the script, with a `=` at the end when it takes its value in one word.
    Flag {
        /// Like `--num-workers`.
        flag: String,
    },
    /// A variable of the script.
    Variable {
        /// Like `NUM_WORKERS`.
        env: String,
    },
}

impl KnobTarget {
    /// What it names.
    ///
    /// # Errors
    /// In words, when it is neither a flag nor a variable's name.
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
            "{text:?} is no argument of a script; give it like --num-workers"
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
