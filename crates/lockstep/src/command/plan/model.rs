//! The model of a plan: a preset, dimensions, a preset with changed dimensions, or a number of parameters.

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, ValueEnum};
use domain::plan::{Architecture, InvalidSettings, Model, Norm, PRESETS, Preset};

/// Options that describe the model.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelOptions {
    /// Name of a preset. The other options here change its dimensions.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PRESETS.map(|preset| preset.name)))]
    model: Option<String>,
    /// Only the number of parameters, for example 7e9, 7B or 350M. The plan then has states but no activations.
    #[arg(long, value_name = "COUNT", value_parser = count, allow_hyphen_values = true, conflicts_with_all = ["model", "layers", "hidden", "heads"])]
    params: Option<u64>,
    /// Number of transformer blocks.
    #[arg(long, value_name = "N")]
    layers: Option<u64>,
    /// Width of the residual stream.
    #[arg(long, value_name = "N")]
    hidden: Option<u64>,
    /// Number of attention heads.
    #[arg(long, value_name = "N")]
    heads: Option<u64>,
    /// Number of key and value heads [default: same as --heads].
    #[arg(long, value_name = "N")]
    kv_heads: Option<u64>,
    /// Width inside the MLP [default: four times --hidden; required with --gated].
    #[arg(long, value_name = "N")]
    mlp: Option<u64>,
    /// Width inside the MLP as a multiple of --hidden, for example 4.
    #[arg(long, value_name = "RATIO", conflicts_with = "mlp")]
    mlp_ratio: Option<f64>,
    /// The MLP is gated (SwiGLU): it has three matrices.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    gated: Option<bool>,
    /// Number of tokens in the vocabulary.
    #[arg(long, value_name = "N")]
    vocabulary: Option<u64>,
    /// Number of learned positions; 0 for rotary positions [default: 0].
    #[arg(long, value_name = "N")]
    positions: Option<u64>,
    /// The output layer shares the matrix of the embedding.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    tied: Option<bool>,
    /// Linear layers have biases.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    bias: Option<bool>,
    /// Normalisation layer.
    #[arg(long, value_enum)]
    norm: Option<NormOption>,
}

#[derive(Clone, Copy, ValueEnum)]
enum NormOption {
    /// LayerNorm.
    Layer,
    /// RMSNorm.
    Rms,
}

impl ModelOptions {
    /// A name of the model for the output.
    pub(super) fn name(&self) -> String {
        match (&self.model, self.params) {
            (Some(name), _) if self.changes() => format!("{name}, changed"),
            (Some(name), _) => name.clone(),
            (None, Some(_)) => "a model with unknown dimensions".to_owned(),
            (None, None) => "a transformer".to_owned(),
        }
    }

    pub(super) fn model(&self) -> Result<Model, InvalidSettings> {
        if let Some(parameters) = self.params {
            return Ok(Model::Count { parameters });
        }
        let base = match self.model.as_deref().and_then(Preset::named).map(Preset::model) {
            Some(Model::Shape(shape)) => shape,
            _ => self.described()?,
        };
        self.changed(base).map(Model::Shape)
    }

    /// Builds the model from its dimensions, without a preset. Uses common values for the dimensions that were not given.
    fn described(&self) -> Result<Architecture, InvalidSettings> {
        let (Some(layers), Some(hidden), Some(heads), Some(vocabulary)) =
            (self.layers, self.hidden, self.heads, self.vocabulary)
        else {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            return Err(InvalidSettings(format!(
                "no model given; use --model ({}), or --layers, --hidden, --heads and --vocabulary, or only --params",
                names.join(", ")
            )));
        };
        let gated = self.gated.unwrap_or(false);
        if gated && self.mlp.is_none() && self.mlp_ratio.is_none() {
            return Err(InvalidSettings(
                "a gated MLP has no default width; set --mlp to the value in the model's configuration (intermediate_size)".to_owned(),
            ));
        }
        Ok(Architecture {
            layers,
            hidden,
            heads,
            kv_heads: heads,
            mlp: hidden.saturating_mul(4),
            gated,
            vocabulary,
            positions: 0,
            tied: false,
            norm: if gated { Norm::Rms } else { Norm::Layer },
            bias: !gated,
            fused_qkv: !gated,
        })
    }

    fn changed(&self, base: Architecture) -> Result<Architecture, InvalidSettings> {
        let hidden = self.hidden.unwrap_or(base.hidden);
        let heads = self.heads.unwrap_or(base.heads);
        let same_heads = base.kv_heads == base.heads;
        Ok(Architecture {
            layers: self.layers.unwrap_or(base.layers),
            hidden,
            heads,
            kv_heads: self
                .kv_heads
                .unwrap_or(if same_heads { heads } else { base.kv_heads }),
            mlp: self.mlp_width(hidden)?.unwrap_or(base.mlp),
            gated: self.gated.unwrap_or(base.gated),
            vocabulary: self.vocabulary.unwrap_or(base.vocabulary),
            positions: self.positions.unwrap_or(base.positions),
            tied: self.tied.unwrap_or(base.tied),
            norm: self.norm.map_or(base.norm, Norm::from),
            bias: self.bias.unwrap_or(base.bias),
            fused_qkv: base.fused_qkv,
        })
    }

    fn mlp_width(&self, hidden: u64) -> Result<Option<u64>, InvalidSettings> {
        let Some(ratio) = self.mlp_ratio else {
            return Ok(self.mlp);
        };
        whole(ratio * hidden as f64).map(Some).map_err(|_| {
            InvalidSettings(format!(
                "--mlp-ratio {ratio} gives no valid width; use a number such as 4 or 2.6875"
            ))
        })
    }

    fn changes(&self) -> bool {
        let numbers = [
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.mlp,
            self.vocabulary,
            self.positions,
        ];
        let flags = [self.gated, self.tied, self.bias];
        numbers.iter().any(Option::is_some)
            || flags.iter().any(Option::is_some)
            || self.norm.is_some()
            || self.mlp_ratio.is_some()
    }
}

impl From<NormOption> for Norm {
    fn from(norm: NormOption) -> Self {
        match norm {
            NormOption::Layer => Self::Layer,
            NormOption::Rms => Self::Rms,
        }
    }
}

/// Parses a number of parameters: 7e9, 7B, 350M or 124439808.
fn count(text: &str) -> Result<u64, String> {
    let unreadable =
        || format!("{text:?} is not a number of parameters; write it like 7e9, 7B, 350M or 124439808");
    let text_of = |suffix: char| text.strip_suffix([suffix, suffix.to_ascii_lowercase()]);
    let (digits, factor) = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('T', 1e12)]
        .iter()
        .find_map(|(suffix, factor)| Some((text_of(*suffix)?, *factor)))
        .unwrap_or((text, 1.0));
    let number: f64 = digits.trim().parse().map_err(|_| unreadable())?;
    whole(number * factor).map_err(|()| unreadable())
}

/// Rounds to a whole number. It must be at least 1, and at most 9e15 so that a float represents it exactly.
fn whole(number: f64) -> Result<u64, ()> {
    let rounded = number.round();
    if !(1.0..=9e15).contains(&rounded) {
        return Err(());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to 9e15, just checked"
    )]
    Ok(rounded as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_read_as_people_write_them() {
        for (text, parameters) in [
            ("7e9", 7_000_000_000),
            ("7B", 7_000_000_000),
            ("1.5b", 1_500_000_000),
            ("350M", 350_000_000),
            ("124439808", 124_439_808),
        ] {
            assert_eq!(count(text), Ok(parameters), "{text}");
        }
        for text in ["", "B", "-7e9", "0", "nan", "inf", "1e300", "seven"] {
            assert!(
                count(text).is_err_and(|words| words.contains("write it like 7e9")),
                "{text}"
            );
        }
    }
}
