//! The settings of a plan for a run of a recipe. The model of a recipe is known, the model of a script is not.

use std::str::FromStr;

use super::architecture::{Architecture, Model, Norm};
use super::checkpointing::Checkpointing;
use super::settings::{InvalidSettings, Precision, Settings, Strategy};
use crate::run::knob;
use crate::run::recipe::Recipe;
use crate::run::spec::Spec;

/// Number of different characters in the text that the recipes train on.
const CHARACTERS: u64 = 43;
/// Width of an attention head in the recipes whose model can be split, and in the others.
const HEAD_WIDTH: u64 = 16;
const HEAD_WIDTH_WHOLE: u64 = 32;

impl Settings {
    /// Returns the settings for a run with this number of processes per node.
    ///
    /// # Errors
    /// Returns why the memory of the run cannot be planned.
    pub fn of_run(spec: &Spec, nproc_per_node: u32) -> Result<Self, InvalidSettings> {
        let Some(name) = &spec.recipe else {
            return Err(InvalidSettings(
                "the model of a script is not known before it runs; `lockstep plan memory` plans a model from its dimensions".to_owned(),
            ));
        };
        let recipe =
            Recipe::named(name).ok_or_else(|| InvalidSettings(format!("unknown recipe {name:?}")))?;
        let values = Values { spec, recipe };
        let model = values.model()?;
        let nproc_per_node = nproc_per_node.max(1);
        let gpus = u64::from(spec.node_count().max(1)) * u64::from(nproc_per_node);
        // As `neighbours` in the recipes.
        let group = match u64::from(nproc_per_node) {
            local if local == gpus && local > 2 && local.is_multiple_of(2) => local / 2,
            local => local,
        };
        let settings = Self {
            gpus,
            strategy: Strategy::Ddp,
            precision: Precision::Fp32,
            checkpointing: Checkpointing::None,
            sequence: values.number("context")?,
            micro_batch: values.number("batch-size")?,
            dropout: values
                .text("dropout")
                .is_some_and(|share| share.parse::<f64>() != Ok(0.0)),
            ..Self::of(model)
        };
        let sharded = |strategy| -> Result<Self, InvalidSettings> {
            Ok(Self {
                strategy,
                reshard_after_forward: values.text("sharding") != Some("grad-op"),
                precision: values.precision("mixed-precision"),
                ..settings.clone()
            })
        };
        let settings = match name.as_str() {
            "ddp" | "resume" => settings,
            "amp" => Self {
                precision: values.precision("precision"),
                ..settings
            },
            "activation-checkpointing" => Self {
                precision: values.precision("autocast"),
                checkpointing: values.checkpointing("granularity")?,
                ..settings
            },
            "fsdp" => sharded(Strategy::Fsdp)?,
            "hsdp" => Self {
                shard_group: values.number("shards").unwrap_or(group),
                ..sharded(Strategy::Hsdp)?
            },
            "device-mesh" => Self {
                tensor_parallel: values.number("tensor-parallel").unwrap_or(group),
                foreach: false,
                ..sharded(Strategy::Fsdp)?
            },
            _ => return Err(values.no_transformer()),
        };
        values.with_knobs(settings)
    }
}

/// The settings of a run, else the defaults of its recipe.
#[derive(Clone, Copy)]
struct Values<'a> {
    spec: &'a Spec,
    recipe: &'a Recipe,
}

impl<'a> Values<'a> {
    fn text(self, name: &str) -> Option<&'a str> {
        let flag = format!("--{name}");
        let knobs = self.recipe.knobs.iter().filter(|(_, own)| *own == flag);
        let names = knobs.map(|(knob, _)| *knob).chain([name]);
        let mut given = names.filter_map(|name| self.given(name));
        let default = || {
            let mut settings = self.recipe.settings().iter();
            settings.find(|setting| setting.name == name)?.default
        };
        given.next().map(String::as_str).or_else(default)
    }

    /// Returns the value of a setting that the run gives. Both `batch-size` and `batch_size` become the argument `--batch-size`, and the
    /// program uses the last one.
    fn given(self, name: &str) -> Option<&'a String> {
        let is_same = |key: &str| key.replace('_', "-") == name.replace('_', "-");
        let mut given = self.spec.set.iter();
        given.rfind(|(key, _)| is_same(key)).map(|(_, value)| value)
    }

    fn number(self, name: &str) -> Result<u64, InvalidSettings> {
        let text = self.text(name).unwrap_or_default().trim();
        let wrong = || InvalidSettings(format!("the setting {name} is {text:?}, not a whole number"));
        text.parse().map_err(|_| wrong())
    }

    fn model(self) -> Result<Model, InvalidSettings> {
        if self
            .recipe
            .settings()
            .iter()
            .all(|setting| setting.name != "layers")
        {
            return Err(self.no_transformer());
        }
        let is_whole = matches!(self.recipe.name, "ddp" | "resume");
        let hidden = self.number("width")?;
        let heads = (hidden / if is_whole { HEAD_WIDTH_WHOLE } else { HEAD_WIDTH }).max(1);
        Ok(Model::Shape(Architecture {
            layers: self.number("layers")?,
            hidden,
            heads,
            kv_heads: heads,
            mlp: hidden.saturating_mul(4),
            gated: false,
            vocabulary: CHARACTERS,
            positions: self.number("context")?,
            tied: false,
            norm: Norm::Layer,
            bias: true,
            fused_qkv: is_whole,
        }))
    }

    fn no_transformer(self) -> InvalidSettings {
        let name = self.recipe.name;
        InvalidSettings(format!(
            "the model of the recipe {name} is not a transformer, and the memory plan knows only transformers"
        ))
    }

    fn precision(self, name: &str) -> Precision {
        match self.text(name) {
            Some("bf16") => Precision::Bf16Mixed,
            Some("fp16") => Precision::Fp16Amp,
            _ => Precision::Fp32,
        }
    }

    fn checkpointing(self, name: &str) -> Result<Checkpointing, InvalidSettings> {
        Checkpointing::from_str(self.text(name).unwrap_or("none"))
            .map_err(|unknown| InvalidSettings(unknown.to_string()))
    }

    /// Applies the knobs that the probe sets and that matter for memory.
    fn with_knobs(self, settings: Settings) -> Result<Settings, InvalidSettings> {
        let knobs = self.spec.knobs_set();
        let is_injected = |name: &&str| knob::place(self.spec, name) == Ok(knob::How::Injected);
        let value = |name| knobs.get(Some(name).filter(is_injected)?).map(String::as_str);
        let checkpointing = match value("activation_checkpointing") {
            Some(_) => self.checkpointing("activation_checkpointing")?,
            None => settings.checkpointing,
        };
        let precision = match value("amp") {
            Some(_) => self.precision("amp"),
            None => settings.precision,
        };
        let reshard_after_forward = match value("reshard_after_forward") {
            Some(value) => value == "true",
            None => settings.reshard_after_forward,
        };
        Ok(Settings {
            checkpointing,
            precision,
            reshard_after_forward,
            ..settings
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(recipe: &str, set: &[(&str, &str)]) -> Result<Settings, InvalidSettings> {
        let set = set
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let spec = Spec {
            recipe: Some(recipe.to_owned()),
            nodes: Some(2),
            set: set.collect(),
            ..Spec::default()
        };
        Settings::of_run(&spec, 4)
    }

    #[test]
    fn settings_and_knobs_change_the_defaults_of_the_recipe() {
        let plain = settings("fsdp", &[]).expect("a plan");
        assert_eq!((plain.gpus, plain.micro_batch, plain.sequence), (8, 8, 32));
        assert_eq!(
            (plain.strategy, plain.precision),
            (Strategy::Fsdp, Precision::Fp32)
        );
        let set = [
            ("micro_batch", "2"),
            ("sharding", "grad-op"),
            ("mixed-precision", "bf16"),
            ("activation_checkpointing", "block"),
        ];
        let changed = settings("fsdp", &set).expect("a plan");
        assert_eq!((changed.micro_batch, changed.reshard_after_forward), (2, false));
        assert_eq!(changed.precision, Precision::Bf16Mixed);
        assert_eq!(changed.checkpointing, Checkpointing::Block);
        for name in ["batch-size", "batch_size"] {
            let named = settings("fsdp", &[(name, "4")]).expect("a plan");
            assert_eq!(named.micro_batch, 4, "{name}");
        }
    }

    #[test]
    fn the_defaults_of_each_transformer_can_be_planned() {
        for recipe in [
            "ddp",
            "resume",
            "fsdp",
            "hsdp",
            "device-mesh",
            "amp",
            "activation-checkpointing",
        ] {
            let settings = settings(recipe, &[]).expect(recipe);
            assert_eq!(settings.check(), Ok(()), "{recipe}: {settings:?}");
        }
    }

    #[test]
    fn a_plan_that_is_not_possible_says_why() {
        let why = |recipe, set| settings(recipe, set).expect_err("no plan").0;
        assert!(why("model-parallel", &[]).contains("not a transformer"));
        assert!(why("rpc-parameter-server", &[]).contains("not a transformer"));
        assert!(why("ddp", &[("width", "wide")]).contains("width"));
        let script = Settings::of_run(&Spec::default(), 1).expect_err("no plan").0;
        assert!(script.contains("lockstep plan memory"), "{script}");
    }
}
