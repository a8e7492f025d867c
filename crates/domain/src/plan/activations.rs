//! What the forward pass keeps for the backward pass.
//!
//! Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4: s·b·h·(34 + 5·a·s/h) bytes a layer in
//! 16 bits with dropout, and s·b·h·(10 + 24/t + 5·a·s/(h·t)) over t tensor-parallel GPUs. Here the same terms stand one by one, so that
//! they also hold for gated MLPs, grouped queries, flash attention, 32 bits and autocast. Measured against PyTorch: testdata/plan.
//!
//! ```text
//! x ─▶ norm ─▶ q k v ─▶ attention ─▶ out ─▶ + ─▶ norm ─▶ up (gate) ─▶ gelu (silu ×) ─▶ down ─▶ +
//! │     │       │          │         │     │     │         │               │
//! r     w·n     w          w, scores mask  r     w·n       w               w            kept of each token
//! ```
//! r: width of the residual stream; w: of matrix products; n: under autocast once for each linear layer that reads it.

use super::architecture::{Architecture, Norm};
use super::settings::{Attention, Settings};

/// A block's input is hidden numbers a token; a loss's log-probabilities and their two gradients are 32 bits wide each.
const FP32: u128 = 4;

/// Bytes of activations on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activations {
    /// What the blocks keep.
    pub(super) kept: u128,
    /// What the last norm and the output layer keep, gone when the first block's turn comes; and dropout before the blocks.
    pub(super) ends: u128,
    /// What checkpointing brings back at once: the blocks that are recomputed, less the input that was kept.
    pub(super) recomputed: u128,
    /// The largest gradients of activations inside one block: an estimate.
    pub(super) block_gradients: u128,
    /// The last stretch of blocks in the backward pass, alive together with all gradients of parameters.
    pub(super) last: u128,
    /// Log-probabilities, kept for the backward pass.
    pub(super) loss: u128,
    /// Two gradients of the logits while the loss is differentiated.
    pub(super) loss_gradients: u128,
}

/// What a training of this shape keeps.
pub(super) fn of(settings: &Settings, shape: &Architecture) -> Activations {
    let token = Token::of(settings, shape);
    let tokens = u128::from(settings.sequence) * u128::from(settings.micro_batch);
    let s = u128::from(settings.sequence);
    // The causal mask of materialised scores is one for all heads and sequences; 1 byte.
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
        // With segments the last one is kept, and at least as large as any: it is gone when the one before it comes back.
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

/// Bytes for each token.
struct Token {
    /// A block that keeps everything.
    block: u128,
    /// A block's input.
    input: u128,
    /// What stands before the first and after the last block: dropout, norm, the output layer's input.
    ends: u128,
    gradients: u128,
}

impl Token {
    fn of(settings: &Settings, m: &Architecture) -> Self {
        let h = u128::from(m.hidden);
        let t = u128::from(settings.tensor_parallel);
        let w = settings.precision.computed();
        let autocast = settings.autocast();
        // Embeddings and norms stay in 32 bits under autocast, so the sum of all blocks' outputs does too.
        let r = if autocast { FP32 } else { w };
        let dropout = u128::from(settings.dropout);
        let (attention_reads, mlp_reads) = if autocast { readers(m) } else { (1, 1) };
        let stats = match m.norm {
            Norm::Layer => 2 * FP32,
            Norm::Rms => FP32,
        };
        // What sequence parallelism splits too. A linear layer's input is not: autograd keeps the gathered tensor.
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

/// How many linear layers read the output of a block's first and second norm.
fn readers(m: &Architecture) -> (u128, u128) {
    (if m.fused_qkv { 1 } else { 3 }, if m.gated { 2 } else { 1 })
}

/// Queries, keys, values, what attention keeps of scores, and its output. Flash attention keeps one 32-bit number a head and token (Dao et
/// al. 2022) and takes grouped keys as they are; materialised scores need keys and values repeated for each head.
fn attention(settings: &Settings, m: &Architecture) -> u128 {
    let (h, heads) = (u128::from(m.hidden), u128::from(m.heads));
    let grouped = u128::from(m.kv_heads) * u128::from(m.head());
    let w = settings.precision.computed();
    match settings.attention {
        Attention::Flash => w * (2 * h + 2 * grouped) + FP32 * heads,
        Attention::Materialised => w * 4 * h + heads * u128::from(settings.sequence) * score(settings),
    }
}

/// Bytes of one score: softmax's output; the mask of its dropout; what is multiplied with the values, where that is another tensor.
fn score(settings: &Settings) -> u128 {
    let w = settings.precision.computed();
    match (settings.autocast(), settings.dropout) {
        // Autocast computes softmax in 32 bits and casts what follows.
        (true, dropout) => FP32 + w + u128::from(dropout),
        (false, true) => 2 * w + 1,
        (false, false) => w,
    }
}

/// Gated: gate, silu of it, up, and their product. Else: before and after the activation function.
fn mlp(settings: &Settings, m: &Architecture) -> u128 {
    let kept = if m.gated { 4 } else { 2 };
    kept * u128::from(m.mlp) * settings.precision.computed()
}

/// What gradients of activations take beyond what the block kept and frees on the way back: in the MLP, or in attention, where the MLP is
/// done. An estimate; peaks measured in testdata/plan are up to 5 % below a plan that has it.
fn gradients(settings: &Settings, m: &Architecture) -> u128 {
    let w = settings.precision.computed();
    let inside_mlp = if m.gated { 2 } else { 1 } * u128::from(m.mlp) * w;
    let inside_attention = match settings.attention {
        Attention::Flash => 3 * u128::from(m.hidden) * w,
        Attention::Materialised => 2 * u128::from(m.heads) * u128::from(settings.sequence) * w,
    };
    inside_mlp.max(inside_attention.saturating_sub(mlp(settings, m)))
}
