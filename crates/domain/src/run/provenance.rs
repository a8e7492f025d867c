//! What an attempt ran, to be able to do it again.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::spec::Spec;

/// What an attempt ran: code, packages, environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Provenance {
    /// The commit of the script's working copy, with `+changes` when files differ from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Installed Python packages, `name==version`, sorted.
    pub packages: Vec<String>,
    /// The container's image as far as it can be told from inside: its name and digest, its id or its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// The seed, when the run names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Variables the run was given; values of secrets are not in it.
    pub env: BTreeMap<String, String>,
}

impl Provenance {
    /// What a node found, with what the run was given.
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

/// Of a recipe's settings, the script's arguments or the environment, in this order.
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

/// What looks like a secret by its name is kept with the run, not shown with every attempt.
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
