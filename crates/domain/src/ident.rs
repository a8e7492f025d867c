//! Identifiers of nodes, runs, attempts and ranks. Each is its own type, so that a run cannot be passed where a node is expected.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of the name of a node, run or rule, in bytes. A name of this length fits in DNS and in a label value.
pub const NAME_BYTES_MAX: usize = 253;

/// A name that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot be a {what}: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', not starting with '.' or '-'"
)]
pub struct InvalidName {
    /// What the name identifies, for example `run id`.
    pub what: &'static str,
    /// The rejected name.
    pub name: String,
}

/// Checks a name. An accepted name is safe as a file name, a label value and a part of a URL.
fn check(what: &'static str, name: &str) -> Result<(), InvalidName> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let start = name
        .as_bytes()
        .first()
        .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    if start && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(InvalidName {
            what,
            name: name.chars().take(80).collect(),
        })
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks a name and wraps it.
            ///
            /// # Errors
            /// Returns an error if the name is empty, too long, or contains other characters than letters, digits, `.`, `_`, `-`.
            pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
                let name = name.into();
                check($what, &name)?;
                Ok(Self(name))
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// Name of a node.
    NodeName,
    "node name"
);
name_type!(
    /// Name of the rack in which a node is.
    RackName,
    "rack name"
);
name_type!(
    /// Identifier of a training run, the same for all its attempts: `NAME-XXXXXX`. The collector makes it.
    RunId,
    "run id"
);

/// Number of an attempt within its run, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct AttemptNo(pub u32);

impl fmt::Display for AttemptNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifier of an attempt: its run and its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId {
    /// Run of the attempt.
    pub run: RunId,
    /// Number of the attempt within the run.
    pub no: AttemptNo,
}

impl AttemptId {
    /// Returns the identifier of attempt `no` of a run.
    #[must_use]
    pub fn new(run: RunId, no: AttemptNo) -> Self {
        Self { run, no }
    }
}

/// Prints `RUN.NUMBER`, which is also the name of the attempt's folder on a node.
impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.run, self.no)
    }
}

/// Number of a training process of an attempt, from 0.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_file_names_and_labels() {
        for good in ["a", "node-1", "h100.rack_3", "_x", "0"] {
            assert!(NodeName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-x",
            ".hidden",
            "a/b",
            "a b",
            "ä",
            "a\n",
            "x".repeat(254).as_str(),
        ] {
            assert!(NodeName::new(bad).is_err(), "{bad}");
        }
    }
}
