//! The model to train: a decoder-only transformer with its dimensions, or only a number of parameters.

use serde::{Deserialize, Serialize};

use super::settings::{InvalidSettings, check_range};
use super::tensors;

/// The model to train.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Model {
    /// The dimensions are known: everything can be computed.
    Shape(Architecture),
    /// Only the number of parameters is known: activations cannot be computed.
    Count {
        /// Total number of parameters.
        parameters: u64,
    },
}

/// Dimensions of a transformer, as in its configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// Number of blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Number of attention heads.
    pub heads: u64,
    /// Number of heads of keys and values. Fewer than `heads` means grouped-query attention.
    pub kv_heads: u64,
    /// Width inside the MLP.
    pub mlp: u64,
    /// True for a gated MLP (SwiGLU), which has three matrices instead of two.
    pub gated: bool,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Number of learned positions; 0 if positions are rotated (RoPE) or computed.
    pub positions: u64,
    /// True if the output layer shares the matrix of the embedding.
    pub tied: bool,
    /// Kind of normalisation.
    pub norm: Norm,
    /// True if linear layers have biases.
    pub bias: bool,
    /// True if one linear layer computes queries, keys and values. It matters only for autocast, which casts the input of each layer
    /// separately.
    pub fused_qkv: bool,
}

/// Kind of normalisation. Each is one fused kernel on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// LayerNorm: weight and bias (a bias only if linear layers have biases). Keeps mean and inverse deviation per token.
    Layer,
    /// RMSNorm: weight. Keeps the inverse root per token.
    Rms,
}

impl Model {
    /// Returns the total number of parameters, before anything is split.
    #[must_use]
    pub fn parameters(&self) -> u128 {
        tensors::of(self).iter().map(|tensor| tensor.elements(1)).sum()
    }

    /// Returns the dimensions, if known.
    #[must_use]
    pub fn shape(&self) -> Option<&Architecture> {
        match self {
            Self::Shape(architecture) => Some(architecture),
            Self::Count { .. } => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), InvalidSettings> {
        match self {
            Self::Shape(architecture) => architecture.check(),
            Self::Count { parameters } => check_range("params", *parameters, 1, 1_000_000_000_000_000),
        }
    }
}

impl Architecture {
    /// Returns the width of one head.
    pub(super) fn head(&self) -> u64 {
        self.hidden / self.heads
    }

    fn check(&self) -> Result<(), InvalidSettings> {
        check_range("layers", self.layers, 1, 10_000)?;
        check_range("hidden", self.hidden, 1, 1 << 20)?;
        check_range("heads", self.heads, 1, 1 << 14)?;
        check_range("kv-heads", self.kv_heads, 1, self.heads)?;
        check_range("mlp", self.mlp, 1, 1 << 24)?;
        check_range("vocabulary", self.vocabulary, 1, 1 << 26)?;
        check_range("positions", self.positions, 0, 1 << 31)?;
        if !self.hidden.is_multiple_of(self.heads) {
            return Err(InvalidSettings(format!(
                "{} heads do not divide a hidden width of {}: each head is hidden / heads wide",
                self.heads, self.hidden
            )));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(InvalidSettings(format!(
                "{} heads cannot be shared among {} heads of keys and values: the second must divide the first",
                self.heads, self.kv_heads
            )));
        }
        Ok(())
    }
}
