//! What an attempt ran, so that it can be repeated.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::spec::Spec;

/// What an attempt ran: code, packages, environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Provenance {
    /// The commit of the script's working copy, with `+changes` appended if files differ from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Installed Python packages as `name==version`, sorted.
    pub packages: Vec<String>,
    /// The container's image, as far as it can be determined from inside: name and digest, id, or file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// The seed, if the run sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Environment variables from the run's spec, without the values of secrets.
    pub env: BTreeMap<String, String>,
}

impl Provenance {
    /// Adds the seed and the environment of the spec to what a node found.
    #[must_use]
    pub fn with_spec(self, spec: &Spec) -> Self {
        let shown = |(name, value): (&String, &String)| (name.clone(), disclosed(name, value));
        Self {
            seed: seed(spec),
            env: spec.env.iter().map(shown).collect(),
            ..self
        }
    }
}

/// Returns the seed from the settings, the script's arguments or the environment, in this order.
fn seed(spec: &Spec) -> Option<String> {
    let argument = || {
        let mut args = spec.args.iter();
        while let Some(arg) = args.next() {
            match arg.split_once('=') {
                Some(("--seed", value)) => return Some(value.to_owned()),
                None if arg == "--seed" => return args.next().cloned(),
                _ => {}
            }
        }
        None
    };
    let variable = |name: &str| spec.env.get(name).cloned();
    spec.set
        .get("seed")
        .cloned()
        .or_else(argument)
        .or_else(|| variable("SEED"))
        .or_else(|| variable("PL_GLOBAL_SEED"))
}

/// Hides the value of a variable whose name looks secret. The value stays in the run, but is not shown with every attempt.
fn disclosed(name: &str, value: &str) -> String {
    let name = name.to_ascii_uppercase();
    let secret = [
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "CREDENTIAL",
        "API_KEY",
        "ACCESS_KEY",
        "PRIVATE_KEY",
    ];
    if secret.iter().any(|word| name.contains(word)) {
        "(not shown)".into()
    } else {
        value.into()
    }
}
