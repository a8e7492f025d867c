//! Activations: the memory that the forward pass keeps for the backward pass.
//!
//! Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4: s·b·h·(34 + 5·a·s/h) bytes per
//! layer in 16 bits with dropout, and s·b·h·(10 + 24/t + 5·a·s/(h·t)) with t tensor-parallel GPUs. Here each term is computed separately,
//! so that the result is also right for gated MLPs, grouped queries, flash attention, 32 bits and autocast. Compared with measurements of
//! PyTorch: testdata/plan.
//!
//! ```text
//! x ─▶ norm ─▶ q k v ─▶ attention ─▶ out ─▶ + ─▶ norm ─▶ up (gate) ─▶ gelu (silu ×) ─▶ down ─▶ +
//! │     │       │          │         │     │     │         │               │
//! r     w·n     w          w, scores mask  r     w·n       w               w            kept for each token
//! ```
//! r: width of the residual stream; w: width of matrix products; n: under autocast, one copy for each linear layer that reads it.

use super::architecture::{Architecture, Norm};
use super::settings::{Attention, Settings};

/// Bytes of a 32-bit number. The log-probabilities of the loss and their two gradients have this width.
const FP32: u128 = 4;

/// Bytes of activations on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activations {
    /// Activations that the blocks keep.
    pub(super) kept: u128,
    /// Activations of the last norm and the output layer, which are freed before the first block's backward pass; and of dropout before the
    /// blocks.
    pub(super) ends: u128,
    /// Memory of the blocks that checkpointing recomputes at once, without the input that was kept.
    pub(super) recomputed: u128,
    /// Largest gradients of activations inside one block: an estimate.
    pub(super) block_gradients: u128,
    /// Activations of the last blocks of the backward pass, which exist together with all gradients of parameters.
    pub(super) last: u128,
    /// Log-probabilities, kept for the backward pass.
    pub(super) loss: u128,
    /// Two gradients of the logits during the backward pass of the loss.
    pub(super) loss_gradients: u128,
}

/// Returns the activations of a training with this architecture.
pub(super) fn of(settings: &Settings, shape: &Architecture) -> Activations {
    let token = Token::of(settings, shape);
    let tokens = u128::from(settings.sequence) * u128::from(settings.micro_batch);
    let s = u128::from(settings.sequence);
    // The causal mask of materialised scores is shared by all heads and sequences; 1 byte per element.
    let mask = if settings.attention == Attention::Materialised {
        s * s
    } else {
        0
    };
    let block = tokens * token.block + mask;
    let input = tokens * token.input;
    let (inputs, whole) = settings.checkpointing.split(shape.layers);
    let at_once = u128::from(settings.checkpointing.at_once(shape.layers));
    let logits = tokens * u128::from(shape.vocabulary) * FP32;
    let tail = whole > 0 && at_once > 1;
    Activations {
        kept: u128::from(inputs) * input + u128::from(whole) * block,
        ends: tokens * token.ends,
        // With segments, the last segment is kept and is at least as large as any other. It is freed before the one before it is
        // recomputed.
        recomputed: if tail {
            0
        } else {
            (at_once * block).saturating_sub(input)
        },
        block_gradients: tokens * token.gradients,
        last: at_once.max(1) * block,
        loss: logits,
        loss_gradients: 2 * logits,
    }
}

/// Bytes per token.
struct Token {
    /// A block that keeps all activations.
    block: u128,
    /// Input of a block.
    input: u128,
    /// Outside of the blocks: dropout before the first, norm and input of the output layer after the last.
    ends: u128,
    gradients: u128,
}

impl Token {
    fn of(settings: &Settings, m: &Architecture) -> Self {
        let h = u128::from(m.hidden);
        let t = u128::from(settings.tensor_parallel);
        let w = settings.precision.computed();
        let autocast = settings.autocast();
        // Under autocast, embeddings and norms stay in 32 bits, so the sum of the outputs of all blocks does too.
        let r = if autocast { FP32 } else { w };
        let dropout = u128::from(settings.dropout);
        let (attention_reads, mlp_reads) = if autocast { readers(m) } else { (1, 1) };
        let stats = match m.norm {
            Norm::Layer => 2 * FP32,
            Norm::Rms => FP32,
        };
        // Sequence parallelism splits these too, but not the input of a linear layer: autograd keeps the gathered tensor.
        let along = if settings.sequence_parallel { t } else { 1 };
        let norms = (2 * (r * h + stats) + 2 * dropout * h).div_ceil(along);
        let inputs = w * h * (attention_reads + mlp_reads);
        let inside = attention(settings, m) + mlp(settings, m);
        Self {
            block: norms + inputs + inside.div_ceil(t),
            input: (r * h).div_ceil(along),
            ends: (r * h + stats + dropout * h).div_ceil(along) + w * h,
            gradients: gradients(settings, m).div_ceil(t) + 2 * r * h,
        }
    }
}

/// Returns how many linear layers read the output of the first and of the second norm of a block.
fn readers(m: &Architecture) -> (u128, u128) {
    (if m.fused_qkv { 1 } else { 3 }, if m.gated { 2 } else { 1 })
}

/// Returns the bytes per token for queries, keys, values, the scores that attention keeps, and its output. Flash attention keeps one 32-bit
/// number per head and token (Dao et al. 2022) and uses grouped keys directly. Materialised scores need keys and values repeated for each
/// head.
fn attention(settings: &Settings, m: &Architecture) -> u128 {
    let (h, heads) = (u128::from(m.hidden), u128::from(m.heads));
    let grouped = u128::from(m.kv_heads) * u128::from(m.head());
    let w = settings.precision.computed();
    match settings.attention {
        Attention::Flash => w * (2 * h + 2 * grouped) + FP32 * heads,
        Attention::Materialised => w * 4 * h + heads * u128::from(settings.sequence) * score(settings),
    }
}

/// Returns the bytes of one score: the output of softmax, the mask of its dropout, and the input of the product with the values if that is
/// another tensor.
fn score(settings: &Settings) -> u128 {
    let w = settings.precision.computed();
    match (settings.autocast(), settings.dropout) {
        // Autocast computes softmax in 32 bits and casts the result.
        (true, dropout) => FP32 + w + u128::from(dropout),
        (false, true) => 2 * w + 1,
        (false, false) => w,
    }
}

/// Returns the bytes per token for the MLP. Gated: gate, silu of it, up, and their product. Otherwise: before and after the activation
/// function.
fn mlp(settings: &Settings, m: &Architecture) -> u128 {
    let kept = if m.gated { 4 } else { 2 };
    kept * u128::from(m.mlp) * settings.precision.computed()
}

/// Returns the bytes per token that gradients of activations need in addition to those that replace kept activations: in the MLP, or in
/// attention after the MLP is done. An estimate: peaks measured in testdata/plan are up to 5 % below a plan that includes it.
fn gradients(settings: &Settings, m: &Architecture) -> u128 {
    let w = settings.precision.computed();
    let inside_mlp = if m.gated { 2 } else { 1 } * u128::from(m.mlp) * w;
    let inside_attention = match settings.attention {
        Attention::Flash => 3 * u128::from(m.hidden) * w,
        Attention::Materialised => 2 * u128::from(m.heads) * u128::from(settings.sequence) * w,
    };
    inside_mlp.max(inside_attention.saturating_sub(mlp(settings, m)))
}
