//! What is trained: a decoder-only transformer by its dimensions, or a bare number of parameters.

use serde::{Deserialize, Serialize};

use super::settings::{Refusal, within};
use super::tensors;

/// What is known of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Model {
    /// Its dimensions: everything can be said.
    Shape(Architecture),
    /// Only its number of parameters: nothing can be said about activations.
    Count {
        /// Parameters, all together.
        parameters: u64,
    },
}

/// The dimensions of a transformer, as its configuration file has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// Blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values; fewer than `heads` is grouped-query attention.
    pub kv_heads: u64,
    /// Width inside the MLP.
    pub mlp: u64,
    /// A gated MLP (SwiGLU) has three matrices instead of two.
    pub gated: bool,
    /// Tokens in the vocabulary.
    pub vocabulary: u64,
    /// Learned positions; 0 where positions are rotated (RoPE) or computed.
    pub positions: u64,
    /// The output layer shares the embedding's matrix.
    pub tied: bool,
    /// What normalises.
    pub norm: Norm,
    /// Linear layers have biases.
    pub bias: bool,
    /// One linear layer computes queries, keys and values. Only autocast sees the difference: it casts a layer's input for each layer.
    pub fused_qkv: bool,
}

/// A normalisation; both are one fused kernel on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// LayerNorm: weight and bias (a bias only where linear layers have them); keeps mean and inverse deviation of each token.
    Layer,
    /// RMSNorm: weight; keeps the inverse root of each token.
    Rms,
}

impl Model {
    /// Parameters, all together, before anything is split.
    #[must_use]
    pub fn parameters(&self) -> u128 {
        tensors::of(self).iter().map(|tensor| tensor.elements(1)).sum()
    }

    /// The dimensions, where they are known.
    #[must_use]
    pub fn shape(&self) -> Option<&Architecture> {
        match self {
            Self::Shape(architecture) => Some(architecture),
            Self::Count { .. } => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Shape(architecture) => architecture.check(),
            Self::Count { parameters } => within("params", *parameters, 1, 1_000_000_000_000_000),
        }
    }
}

impl Architecture {
    /// Width of one head.
    pub(super) fn head(&self) -> u64 {
        self.hidden / self.heads
    }

    fn check(&self) -> Result<(), Refusal> {
        within("layers", self.layers, 1, 10_000)?;
        within("hidden", self.hidden, 1, 1 << 20)?;
        within("heads", self.heads, 1, 1 << 14)?;
        within("kv-heads", self.kv_heads, 1, self.heads)?;
        within("mlp", self.mlp, 1, 1 << 24)?;
        within("vocabulary", self.vocabulary, 1, 1 << 26)?;
        within("positions", self.positions, 0, 1 << 31)?;
        if !self.hidden.is_multiple_of(self.heads) {
            return Err(Refusal(format!(
                "{} heads do not divide a hidden width of {}: each head is hidden / heads wide",
                self.heads, self.hidden
            )));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Refusal(format!(
                "{} heads cannot be shared among {} heads of keys and values: the second must divide the first",
                self.heads, self.kv_heads
            )));
        }
        Ok(())
    }
}
