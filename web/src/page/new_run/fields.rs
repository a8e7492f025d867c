//! The values of the form, and the spec that they describe.

use std::collections::BTreeMap;

use domain::run::spec::{FieldError, Spec};
use leptos::prelude::*;

use super::form_spec::FormSpec;
use crate::language::{tr, tr_with};

/// The recipe field's value for "your own script".
pub(super) const OWN_SCRIPT: &str = "";

/// One signal per field.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub(super) name: RwSignal<String>,
    pub(super) recipe: RwSignal<String>,
    pub(super) script: RwSignal<String>,
    pub(super) args: RwSignal<String>,
    pub(super) settings: RwSignal<String>,
    pub(super) nodes: RwSignal<String>,
    pub(super) nproc: RwSignal<String>,
    pub(super) python: RwSignal<String>,
    pub(super) workdir: RwSignal<String>,
    pub(super) max_restarts: RwSignal<String>,
    pub(super) checkpoint_dir: RwSignal<String>,
}

impl Fields {
    /// Creates a form whose values are a valid run.
    pub(super) fn new() -> Self {
        let text = || RwSignal::new(String::new());
        let fields = Self {
            name: text(),
            recipe: text(),
            script: text(),
            args: text(),
            settings: text(),
            nodes: text(),
            nproc: text(),
            python: text(),
            workdir: text(),
            max_restarts: text(),
            checkpoint_dir: text(),
        };
        fields.show(&FormSpec::of_a_new_run());
        fields
    }

    /// Shows these values in place of the current ones.
    pub(super) fn show(self, form: &FormSpec) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        self.name.set(form.name.clone());
        self.recipe
            .set(form.recipe.clone().unwrap_or_else(|| OWN_SCRIPT.to_owned()));
        self.script.set(text(&form.script));
        self.args.set(form.arg_lines());
        self.settings.set(form.setting_lines());
        self.nodes.set(number(form.nodes));
        self.nproc.set(number(form.nproc_per_node));
        self.python.set(text(&form.python));
        self.workdir.set(text(&form.workdir));
        self.max_restarts.set(form.max_restarts.to_string());
        self.checkpoint_dir.set(text(&form.checkpoint_dir));
    }

    /// Returns true if the user has chosen a script instead of a recipe; tracked.
    pub(super) fn is_own_script(self) -> bool {
        self.recipe.with(|recipe| recipe == OWN_SCRIPT)
    }

    /// Returns the spec, and errors for text that cannot be parsed; tracked.
    pub(super) fn spec(self) -> (Spec, Vec<FieldError>) {
        let mut problems = Vec::new();
        let mut number =
            |field: &str, signal: RwSignal<String>| match optional(signal).map(|text| text.parse::<u32>()) {
                Some(Err(_)) => {
                    problems.push(mistake(field, tr("enter a whole number")));
                    None
                }
                Some(Ok(number)) => Some(number),
                None => None,
            };
        let mut spec = Spec {
            name: self.name.get().trim().to_owned(),
            nodes: number("nodes", self.nodes),
            nproc_per_node: number("nproc_per_node", self.nproc),
            max_restarts: number("max_restarts", self.max_restarts).unwrap_or(0),
            python: optional(self.python),
            workdir: optional(self.workdir),
            checkpoint_dir: optional(self.checkpoint_dir),
            ..Spec::default()
        };
        if self.is_own_script() {
            spec.script = optional(self.script);
            spec.args = self.args.with(|text| {
                text.lines()
                    .filter(|line| !line.is_empty())
                    .map(str::to_owned)
                    .collect()
            });
        } else {
            spec.recipe = optional(self.recipe);
            spec.set = self.settings.with(|text| settings(text, &mut problems));
        }
        (spec, problems)
    }
}

fn optional(signal: RwSignal<String>) -> Option<String> {
    let text = signal.with(|text| text.trim().to_owned());
    Some(text).filter(|text| !text.is_empty())
}

fn settings(text: &str, problems: &mut Vec<FieldError>) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some((name, value)) => _ = pairs.insert(name.trim().to_owned(), value.trim().to_owned()),
            None => {
                let message = tr_with("“{line}” is not NAME=VALUE", &[("line", &line)]);
                problems.push(mistake("set", &message));
            }
        }
    }
    pairs
}

fn mistake(field: &str, message: &str) -> FieldError {
    FieldError {
        field: field.to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_lines_of_name_and_value() {
        let mut problems = Vec::new();
        let pairs = settings(" steps = 200\n\nlr=0.001\nx=a=b\nnonsense\n", &mut problems);
        let expected = [("lr", "0.001"), ("steps", "200"), ("x", "a=b")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs, BTreeMap::from(expected));
        assert_eq!(problems, [mistake("set", "“nonsense” is not NAME=VALUE")]);
    }
}
