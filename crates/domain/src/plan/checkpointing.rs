//! Activation checkpointing: what is recomputed in the backward pass instead of kept. The values of the knob `activation_checkpointing`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which blocks keep only their input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Checkpointing {
    /// None: all activations are kept.
    None,
    /// Every block.
    Block,
    /// Blocks n, 2n, and so on. The others keep all activations.
    Every(u64),
    /// Segments of several blocks, as in `torch.utils.checkpoint.checkpoint_sequential`: all segments except the last are recomputed, each
    /// as a whole. With one segment, nothing is recomputed.
    Sequential(u64),
}

/// A text that is not a kind of checkpointing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a kind of activation checkpointing; use none, block, every=N (every N-th block) or sequential=N (N segments)"
)]
pub struct UnknownCheckpointing(pub String);

impl Checkpointing {
    /// Returns the number of kept inputs, and the number of blocks that keep all activations.
    pub(super) fn split(self, layers: u64) -> (u64, u64) {
        let (inputs, recomputed) = match self {
            Self::None => (0, 0),
            Self::Block => (layers, layers),
            Self::Every(n) => (layers / n, layers / n),
            Self::Sequential(n) => (n - 1, (n - 1) * (layers / n)),
        };
        (inputs, layers - recomputed)
    }

    /// Returns the number of blocks that are recomputed, and then in memory, at once.
    pub(super) fn at_once(self, layers: u64) -> u64 {
        match self {
            Self::None | Self::Sequential(1) => 0,
            Self::Block | Self::Every(_) => 1,
            Self::Sequential(n) => layers / n,
        }
    }
}

impl FromStr for Checkpointing {
    type Err = UnknownCheckpointing;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownCheckpointing(text.to_owned());
        let (how, count) = text.split_once('=').unwrap_or((text, ""));
        let counted = || count.parse().ok().filter(|count| *count > 0).ok_or_else(unknown);
        match (how, count) {
            ("none", "") => Ok(Self::None),
            ("block", "") => Ok(Self::Block),
            ("every", _) => counted().map(Self::Every),
            ("sequential", _) => counted().map(Self::Sequential),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Block => f.write_str("block"),
            Self::Every(n) => write!(f, "every={n}"),
            Self::Sequential(n) => write!(f, "sequential={n}"),
        }
    }
}

impl TryFrom<String> for Checkpointing {
    type Error = UnknownCheckpointing;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Checkpointing> for String {
    fn from(checkpointing: Checkpointing) -> Self {
        checkpointing.to_string()
    }
}
