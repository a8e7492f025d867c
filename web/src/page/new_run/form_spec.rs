//! The fields of a specification that the form shows.

use std::collections::BTreeMap;

use domain::run::recipe::RECIPES;
use serde::Deserialize;

/// These fields of a [`Spec`](domain::run::spec::Spec).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct FormSpec {
    pub(super) name: String,
    pub(super) recipe: Option<String>,
    pub(super) script: Option<String>,
    pub(super) args: Vec<String>,
    pub(super) set: BTreeMap<String, String>,
    pub(super) nodes: Option<u32>,
    pub(super) nproc_per_node: Option<u32>,
    pub(super) max_restarts: u32,
    pub(super) python: Option<String>,
    pub(super) workdir: Option<String>,
    pub(super) checkpoint_dir: Option<String>,
}

impl FormSpec {
    /// Returns a valid run.
    pub(super) fn of_a_new_run() -> Self {
        Self {
            recipe: Some(RECIPES[0].name.to_owned()),
            set: BTreeMap::from([("steps".to_owned(), "200".to_owned())]),
            nodes: Some(1),
            ..Self::default()
        }
    }

    /// Returns true if the form, with one argument or setting per line, reads what it shows.
    pub(super) fn can_be_shown(&self) -> bool {
        let is_line = |text: &str| !text.contains(['\n', '\r']);
        let args = self.args.iter().all(|arg| !arg.is_empty() && is_line(arg));
        let is_setting = |(name, value): (&String, &String)| {
            let is_trimmed = name.trim() == name && value.trim() == value;
            is_trimmed && !name.contains('=') && is_line(name) && is_line(value)
        };
        args && self.set.iter().all(is_setting)
    }

    /// Returns the arguments, one per line.
    pub(super) fn arg_lines(&self) -> String {
        self.args.join("\n")
    }

    /// Returns the settings, one `NAME=VALUE` per line.
    pub(super) fn setting_lines(&self) -> String {
        let lines: Vec<String> = self
            .set
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use domain::run::spec::Spec;
    use serde_json::Value;

    use super::super::copied::{FORM_FIELDS, NOT_COPIED};
    use super::*;

    #[test]
    fn the_form_has_fields_of_a_specification() {
        let text = |text: &str| Some(text.to_owned());
        let spec = Spec {
            recipe: text("ddp"),
            script: text("/srv/train.py"),
            workdir: text("/srv"),
            python: text("python3"),
            checkpoint_dir: text("/checkpoints"),
            checkpoint_dir_is_mine: true,
            nproc_per_node: Some(2),
            ..Spec::default()
        };
        let Ok(Value::Object(fields)) = serde_json::to_value(&spec) else {
            panic!("a specification is an object")
        };
        for name in FORM_FIELDS.iter().chain([&NOT_COPIED]) {
            assert!(fields.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn what_the_form_shows_it_can_read_again() {
        let with = |args: &[&str], name: &str, value: &str| FormSpec {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            set: BTreeMap::from([(name.to_owned(), value.to_owned())]),
            ..FormSpec::default()
        };
        for (form, expected) in [
            (FormSpec::of_a_new_run(), true),
            (with(&["--lr", "a b"], "x", "a=b"), true),
            (with(&["two\nlines"], "x", "1"), false),
            (with(&[""], "x", "1"), false),
            (with(&[], "x", " 1"), false),
            (with(&[], "x", "1\n2"), false),
        ] {
            assert_eq!(form.can_be_shown(), expected, "{form:?}");
        }
        let shown = with(&["--lr", "0.1"], "steps", "200");
        assert_eq!(shown.arg_lines(), "--lr\n0.1");
        assert_eq!(shown.setting_lines(), "steps=200");
    }
}
