//! Values that are nobody's business but the run's: given once with its spec, kept apart from everything that is stored or shown.
//!
//! ```text
//! POST /api/runs {secrets: {HF_TOKEN: "hf_…"}}
//!     spec as stored, as shown, as sent to be prepared     secrets: {HF_TOKEN: ""}    the names alone
//!     a file of the collector, 0600                        the values                 until the run is old
//!     the command that starts the ranks                    the values                 put in when it is written to the wire
//!     a file of the attempt on the node, 0600              the values                 until the collector has all of its logs
//! ```

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What stands where a secret was.
pub const REDACTED: &str = "[redacted]";
/// A shorter value would be found everywhere in a log, and be guessed anyway.
pub const SECRET_BYTES_MIN: usize = 6;
/// The most secrets of one run.
pub const SECRETS_MAX: usize = 64;

/// A value that prints as nothing. Serialised it is the value: only what stores or sends it on purpose does that.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretValue(String);

impl SecretValue {
    /// A value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it is a name without its value.
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

/// Whether a variable's name says that its value is not for everybody: `HF_TOKEN`, `WANDB_API_KEY`, `DB_PASSWORD`.
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
    // `TOKENIZERS_PARALLELISM` and `MAX_TOKENS` are none.
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
