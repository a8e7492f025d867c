//! Models by name, with the dimensions that their authors published.

use super::architecture::{Architecture, Model, Norm};

/// A model with a name, so that users need not give its dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Publication of the dimensions.
    pub source: &'static str,
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    mlp: u64,
    vocabulary: u64,
    family: Family,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// LayerNorm, biases, this number of learned positions, GELU, tied embeddings.
    Gpt { positions: u64 },
    /// RMSNorm, no biases, rotated positions, SwiGLU.
    Llama,
}

const fn gpt(
    name: &'static str,
    source: &'static str,
    size: (u64, u64, u64),
    vocabulary: u64,
    positions: u64,
) -> Preset {
    let (layers, hidden, heads) = size;
    Preset {
        name,
        source,
        layers,
        hidden,
        heads,
        kv_heads: heads,
        mlp: 4 * hidden,
        vocabulary,
        family: Family::Gpt { positions },
    }
}

const fn llama(
    name: &'static str,
    source: &'static str,
    size: (u64, u64, u64, u64),
    mlp: u64,
    vocabulary: u64,
) -> Preset {
    let (layers, hidden, heads, kv_heads) = size;
    Preset {
        name,
        source,
        layers,
        hidden,
        heads,
        kv_heads,
        mlp,
        vocabulary,
        family: Family::Llama,
    }
}

const GPT2: &str = "Radford et al. 2019, table 2";
const LLAMA2: &str = "Touvron et al. 2023 (Llama 2), model cards";
const LLAMA3: &str = "Grattafiori et al. 2024 (The Llama 3 Herd of Models), table 3";

/// All presets, ordered by size in each family.
pub const PRESETS: [Preset; 12] = [
    gpt("gpt2", GPT2, (12, 768, 12), 50_257, 1_024),
    gpt("gpt2-medium", GPT2, (24, 1_024, 16), 50_257, 1_024),
    gpt("gpt2-large", GPT2, (36, 1_280, 20), 50_257, 1_024),
    gpt("gpt2-xl", GPT2, (48, 1_600, 25), 50_257, 1_024),
    gpt(
        "gpt3-175b",
        "Brown et al. 2020, table 2.1",
        (96, 12_288, 96),
        50_257,
        2_048,
    ),
    llama("llama2-7b", LLAMA2, (32, 4_096, 32, 32), 11_008, 32_000),
    llama("llama2-13b", LLAMA2, (40, 5_120, 40, 40), 13_824, 32_000),
    llama("llama2-70b", LLAMA2, (80, 8_192, 64, 8), 28_672, 32_000),
    llama(
        "mistral-7b",
        "Jiang et al. 2023, table 1",
        (32, 4_096, 32, 8),
        14_336,
        32_000,
    ),
    llama("llama3-8b", LLAMA3, (32, 4_096, 32, 8), 14_336, 128_256),
    llama("llama3-70b", LLAMA3, (80, 8_192, 64, 8), 28_672, 128_256),
    llama("llama3-405b", LLAMA3, (126, 16_384, 128, 8), 53_248, 128_256),
];

impl Preset {
    /// Returns the preset with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the dimensions of the model.
    #[must_use]
    pub fn model(&self) -> Model {
        let (gated, positions) = match self.family {
            Family::Gpt { positions } => (false, positions),
            Family::Llama => (true, 0),
        };
        Model::Shape(Architecture {
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            mlp: self.mlp,
            gated,
            vocabulary: self.vocabulary,
            positions,
            tied: !gated,
            norm: if gated { Norm::Rms } else { Norm::Layer },
            bias: !gated,
            fused_qkv: !gated,
        })
    }
}
