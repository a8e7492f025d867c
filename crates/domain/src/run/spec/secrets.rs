//! The secrets of a spec: removed before the spec is stored or shown, restored before it is used.

use std::collections::BTreeMap;

use crate::run::secret::{REDACTED, SECRET_BYTES_MIN, SecretValue, looks_secret};
use crate::run::spec::{FieldError, Spec};

impl Spec {
    /// Removes the values of the secrets from the spec and returns them by name. The names stay in the spec.
    pub fn take_secrets(&mut self) -> BTreeMap<String, SecretValue> {
        let names: BTreeMap<String, SecretValue> = self
            .secrets
            .keys()
            .map(|name| (name.clone(), SecretValue::default()))
            .collect();
        std::mem::replace(&mut self.secrets, names)
    }

    /// Returns the spec as it may be shown: without values of secrets, and without values of variables whose names look like secrets.
    #[must_use]
    pub fn shown(&self) -> Self {
        let mut shown = self.clone();
        for value in shown.secrets.values_mut() {
            *value = SecretValue::new(REDACTED);
        }
        for (_, value) in shown.env.iter_mut().filter(|(name, _)| looks_secret(name)) {
            *value = REDACTED.to_owned();
        }
        shown
    }

    /// Returns the names of the secrets and variables whose values [`Spec::restore_hidden_values`] takes from another run.
    #[must_use]
    pub fn hidden_values(&self) -> Vec<&str> {
        let secrets = self.secrets.iter().filter(|(_, value)| value.is_hidden());
        let variables = self.env.iter().filter(|(_, value)| *value == REDACTED);
        let secrets = secrets.map(|(name, _)| name.as_str());
        secrets.chain(variables.map(|(name, _)| name.as_str())).collect()
    }

    /// Restores what [`Spec::shown`] removed, from the run that the spec was copied from. So a spec that was copied from a page can be
    /// submitted again. The caller checks that the user may use these values.
    pub fn restore_hidden_values(&mut self, from: &Self, values: &BTreeMap<String, SecretValue>) {
        for (name, value) in &mut self.secrets {
            if value.is_hidden()
                && let Some(known) = values.get(name)
            {
                *value = known.clone();
            }
        }
        for (name, value) in self.env.iter_mut().filter(|(_, value)| *value == REDACTED) {
            if let Some(known) = from.env.get(name) {
                value.clone_from(known);
            }
        }
    }

    /// Returns all errors of a spec whose secrets are named, but whose values are not all here: placeholders of secrets count as valid.
    /// With `copied`, so do placeholders of variables, which [`Spec::restore_hidden_values`] takes from the copied run.
    #[must_use]
    pub fn draft_problems(&self, copied: bool) -> Vec<FieldError> {
        let secrets = self.secrets.iter().filter(|(_, value)| value.is_hidden());
        let mut draft = self.clone();
        for (name, _) in secrets {
            let value = SecretValue::new("x".repeat(SECRET_BYTES_MIN));
            draft.secrets.insert(name.clone(), value);
        }
        for value in draft
            .env
            .values_mut()
            .filter(|value| copied && *value == REDACTED)
        {
            value.clear();
        }
        draft.problems()
    }

    /// Returns recommendations about things that are not errors, as text for users.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let names = self.env.keys().filter(|name| looks_secret(name));
        let hint = |name: &String| {
            format!(
                "env.{name} looks like a secret, but is stored with the run; use --secret {name} instead, which stores the value separately"
            )
        };
        names.map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let env = [("HF_TOKEN", "hf_visible"), ("NCCL_DEBUG", "INFO")];
        Spec {
            recipe: Some("ddp".into()),
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            secrets: BTreeMap::from([("WANDB_API_KEY".to_owned(), SecretValue::new("w-123456"))]),
            ..Spec::default()
        }
    }

    #[test]
    fn what_is_stored_and_shown_holds_no_value_and_can_be_filled_in_again() {
        let given = spec();
        assert_eq!(given.problems(), []);
        assert_eq!(given.hints().len(), 1);
        let mut stored = given.clone();
        let values = stored.take_secrets();
        let text = serde_json::to_string(&stored).expect("JSON");
        assert!(
            text.contains("WANDB_API_KEY") && !text.contains("w-123456"),
            "{text}"
        );
        let shown = stored.shown();
        let text = format!("{} {given:?}", serde_json::to_string(&shown).expect("JSON"));
        assert!(!text.contains("w-123456"), "{text}");
        assert_eq!(shown.env["HF_TOKEN"], REDACTED);
        assert_eq!(shown.env["NCCL_DEBUG"], "INFO");
        let mut again = shown;
        assert!(!again.problems().is_empty(), "a mark is not a value");
        assert_eq!(again.hidden_values(), ["WANDB_API_KEY", "HF_TOKEN"]);
        assert_eq!(given.hidden_values(), [""; 0]);
        again.restore_hidden_values(&stored, &values);
        assert_eq!(again, given);
        let before = serde_json::to_string(&Spec::default()).expect("JSON");
        assert!(
            !before.contains("secrets"),
            "a node that does not know them yet takes runs without"
        );
    }

    #[test]
    fn a_draft_needs_no_values_that_are_given_later() {
        let draft = spec().shown();
        let fields = |copied| {
            let problems = draft.draft_problems(copied);
            problems
                .into_iter()
                .map(|problem| problem.field)
                .collect::<Vec<_>>()
        };
        assert_eq!(fields(false), ["env.HF_TOKEN"]);
        assert_eq!(fields(true), [""; 0]);
        let mut short = spec();
        short.secrets.insert("KEY".to_owned(), SecretValue::new("12345"));
        assert_eq!(
            short.draft_problems(true)[0].field,
            "secrets.KEY",
            "a value that is here is checked"
        );
    }

    #[test]
    fn what_cannot_be_kept_secret_is_refused() {
        let with = |name: &str, value: &str| {
            let mut spec = spec();
            spec.secrets = BTreeMap::from([(name.to_owned(), SecretValue::new(value))]);
            spec.problems()
                .into_iter()
                .map(|problem| problem.field)
                .collect::<Vec<_>>()
        };
        assert_eq!(with("KEY", "12345"), ["secrets.KEY"]);
        assert_eq!(with("KEY", ""), ["secrets.KEY"]);
        assert_eq!(with("RANK", "1234567"), ["secrets.RANK"]);
        assert_eq!(
            with("NCCL_DEBUG", "1234567"),
            ["secrets.NCCL_DEBUG"],
            "given twice"
        );
        assert_eq!(with("A B", "1234567"), ["secrets.A B"]);
        assert_eq!(with("KEY", "123456"), [""; 0]);
    }
}
