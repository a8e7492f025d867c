//! Secret values of a run. A user gives them once with the spec. They are kept apart from everything that is stored or shown.
//!
//! ```text
//! POST /api/runs {secrets: {HF_TOKEN: "hf_…"}}
//!     the spec when stored, shown or sent for preflight    secrets: {HF_TOKEN: ""}    names only
//!     a file of the collector, mode 0600                   the values                 until the run is old
//!     the command that starts the ranks                    the values                 inserted when it is written to the wire
//!     a file of the attempt on the node, mode 0600         the values                 until the collector has all of its logs
//! ```

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text shown in place of a secret.
pub const REDACTED: &str = "[redacted]";
/// Minimum size of a secret, in bytes. A shorter value would match everywhere in a log, and could be guessed anyway.
pub const SECRET_BYTES_MIN: usize = 6;
/// Maximum number of secrets of one run.
pub const SECRETS_MAX: usize = 64;

/// A value whose `Debug` output is [`REDACTED`]. Serde serialises the value itself: only code that stores or sends it on purpose may do
/// that.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretValue(String);

impl SecretValue {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns what is wrong with the value, without the value; `None` if it is valid.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.is_hidden() {
            return Some("has no value; give the value again".to_owned());
        }
        (self.0.len() < SECRET_BYTES_MIN).then(|| {
            format!(
                "is shorter than {SECRET_BYTES_MIN} bytes: it could be guessed, and redacting it would hide large parts of the log"
            )
        })
    }

    /// Returns true if the value is not here: it is missing, or a placeholder stands in its place.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.is_empty() || self.0 == REDACTED
    }

    /// Returns true if the value is missing and only the secret's name is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

/// Returns true if the name of a variable suggests that its value is secret: `HF_TOKEN`, `WANDB_API_KEY`, `DB_PASSWORD`.
#[must_use]
pub fn looks_secret(name: &str) -> bool {
    const WORDS: [&str; 8] = [
        "TOKEN",
        "SECRET",
        "SECRETS",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "CREDENTIALS",
    ];
    let name = name.to_ascii_uppercase();
    // `TOKENIZERS_PARALLELISM` and `MAX_TOKENS` are not secrets.
    let has_word = name.split('_').any(|part| WORDS.contains(&part));
    let ends = [
        "API_KEY",
        "APIKEY",
        "ACCESS_KEY",
        "PRIVATE_KEY",
        "SECRET_KEY",
        "AUTH_KEY",
    ];
    has_word || ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_secret() {
        for name in [
            "HF_TOKEN",
            "WANDB_API_KEY",
            "DB_PASSWORD",
            "aws_secret_access_key",
            "OPENAI_APIKEY",
        ] {
            assert!(looks_secret(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "MAX_TOKENS",
            "NCCL_DEBUG",
            "KEY_FRAMES",
            "PATH",
        ] {
            assert!(!looks_secret(name), "{name}");
        }
    }
}
