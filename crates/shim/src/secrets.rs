//! The values of a run's secrets on this node. The ranks get them in their environment, and they are removed from logs and reports.
//!
//! `secrets.json` lies in the attempt's folder, readable only for the agent's user (0600), from the start until the collector has all
//! reports. After that, no rank or log needs the values any more. Each piece of a log and each report is searched for the values before it
//! leaves the node: a secret that a script prints is never sent, stored or shown. A value in another encoding (Base64, or split over lines
//! by other text) is not recognised.

use std::collections::BTreeMap;
use std::io;

use domain::run::secret::{REDACTED, SecretValue};
use domain::run::state::NodeReport;
use memchr::memmem;
use serde_json::Value;

use crate::files::{CONTAINER_ENV, SECRETS};
use crate::folder::Folder;

/// Minimum length for hiding a single line of a multi-line value, such as a PEM key. Shorter lines reveal little, and hiding them would
/// hide too much other text.
const LINE_BYTES_MIN: usize = 16;

/// The secrets of an attempt.
#[derive(Debug, Default)]
pub struct Secrets {
    values: BTreeMap<String, SecretValue>,
    /// The byte strings to hide: the values, their JSON escapes and their lines, longest first.
    hidden: Vec<Vec<u8>>,
}

impl Secrets {
    /// Stores the values for an attempt. Without values, no file is written.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note(folder: &Folder, values: &BTreeMap<String, SecretValue>) -> io::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        folder.write_private(SECRETS, &serde_json::to_vec(values)?)
    }

    /// Reads the secrets of an attempt; empty if none are stored.
    #[must_use]
    pub fn of(folder: &Folder) -> Self {
        Self::from(
            folder
                .read::<BTreeMap<String, SecretValue>>(SECRETS)
                .unwrap_or_default(),
        )
    }

    /// Removes the stored secrets.
    pub fn remove(folder: &Folder) {
        for file in [SECRETS, CONTAINER_ENV] {
            if let Err(error) = folder.remove(file) {
                let file = file.as_str();
                tracing::error!(folder = %folder.path().display(), file, %error, "the secrets of a finished attempt cannot be removed");
            }
        }
    }

    /// Returns true if there is a value with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The secrets as environment variables for the ranks.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
    }

    /// How many bytes before and after a position decide whether it is part of a secret.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.hidden.first().map_or(0, |longest| longest.len() - 1)
    }

    /// Replaces every byte of a secret by an asterisk, so offsets in the log do not change. The result depends only on the bytes, not on
    /// how the log was cut into pieces, if [`Secrets::reach`] bytes around the piece are included.
    pub fn hide(&self, text: &mut [u8]) {
        let mut covered = Vec::new();
        for value in &self.hidden {
            let mut from = 0;
            // Every match, including overlapping ones.
            while let Some(at) = memmem::find(&text[from..], value) {
                covered.push((from + at, value.len()));
                from += at + 1;
            }
        }
        for (at, length) in covered {
            text[at..at + length].fill(b'*');
        }
    }

    /// How many bytes at the end of a text may be the beginning of a secret.
    #[must_use]
    pub fn begun_at_end(&self, text: &[u8]) -> usize {
        let begun = |value: &Vec<u8>| {
            let most = (value.len() - 1).min(text.len());
            (1..=most).rev().find(|length| text.ends_with(&value[..*length]))
        };
        self.hidden.iter().filter_map(begun).max().unwrap_or(0)
    }

    /// Encodes a report as JSON, with `[redacted]` for each secret, for example in the message of an exception or in torchrun's output.
    #[must_use]
    pub fn report(&self, report: &NodeReport) -> String {
        if self.hidden.is_empty() {
            return serde_json::to_string(report).unwrap_or_default();
        }
        let mut json = serde_json::to_value(report).unwrap_or_default();
        self.redact(&mut json);
        json.to_string()
    }

    /// Replaces each secret by `[redacted]` in JSON from other programs, where field names may contain secrets too.
    pub fn redact_names_too(&self, json: &mut Value) {
        if self.hidden.is_empty() {
            return;
        }
        match json {
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_names_too(item)),
            Value::Object(fields) => {
                let redacted = std::mem::take(fields).into_iter().map(|(mut name, mut field)| {
                    self.redact_text(&mut name);
                    self.redact_names_too(&mut field);
                    (name, field)
                });
                *fields = redacted.collect();
            }
            other => self.redact(other),
        }
    }

    fn redact_text(&self, text: &mut String) {
        let values = self.hidden.iter();
        for value in values.filter_map(|value| std::str::from_utf8(value).ok()) {
            if text.contains(value) {
                *text = text.replace(value, REDACTED);
            }
        }
    }

    fn redact(&self, json: &mut Value) {
        match json {
            Value::String(text) => self.redact_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.redact(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

impl From<BTreeMap<String, SecretValue>> for Secrets {
    fn from(values: BTreeMap<String, SecretValue>) -> Self {
        let mut hidden: Vec<Vec<u8>> = Vec::new();
        for value in values
            .values()
            .map(SecretValue::expose)
            .filter(|value| !value.is_empty())
        {
            hidden.push(value.into());
            let json = Value::from(value).to_string();
            let escaped = &json[1..json.len() - 1];
            if escaped != value {
                hidden.push(escaped.into());
            }
            let lines = value.lines().filter(|line| line.len() >= LINE_BYTES_MIN);
            hidden.extend(lines.map(|line| line.as_bytes().to_vec()));
        }
        hidden.sort_by_key(|value| std::cmp::Reverse(value.len()));
        hidden.dedup();
        Self { values, hidden }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::os::unix::fs::PermissionsExt;

    use domain::ident::Rank;
    use domain::run::state::RankExit;

    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let values = values.iter().enumerate();
        let named: BTreeMap<_, _> = values
            .map(|(n, value)| (format!("S{n}"), SecretValue::new(*value)))
            .collect();
        Secrets::from(named)
    }

    #[test]
    fn they_are_for_the_agents_user_alone_and_go() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let values = BTreeMap::from([("TOKEN".to_owned(), SecretValue::new("hunter2-hunter2"))]);
        Secrets::note(&folder, &values).unwrap();
        let path = folder.file(SECRETS);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let secrets = Secrets::of(&folder);
        assert_eq!(
            secrets.variables().collect::<Vec<_>>(),
            [("TOKEN", "hunter2-hunter2")]
        );
        assert!(
            !format!("{secrets:?}{values:?}").contains("hunter2"),
            "not in a log either"
        );
        Secrets::remove(&folder);
        assert!(!path.exists() && !Secrets::of(&folder).has("TOKEN"));
    }

    #[test]
    fn every_byte_of_a_value_is_hidden_and_no_other() {
        let secrets = secrets(&["abcabc", "line-one-is-long-enough\nb\nline-two-is-long-enough"]);
        let hidden = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            secrets.hide(&mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(hidden("x abcabcabc y abcab"), "x ********* y abcab");
        assert_eq!(
            hidden("> line-two-is-long-enough <"),
            "> *********************** <"
        );
        assert_eq!(secrets.begun_at_end(b"x abcab"), 5);
        assert_eq!(secrets.begun_at_end(b"x abcabc"), 3);
        assert_eq!(secrets.begun_at_end(b"x"), 0);
    }

    #[test]
    fn a_value_is_hidden_as_json_writes_it() {
        let mut trace = br#"{"name": "a \"b\" c", "dur": 1}"#.to_vec();
        secrets(&["a \"b\" c"]).hide(&mut trace);
        let hidden = format!(r#"{{"name": "{}", "dur": 1}}"#, "*".repeat(r#"a \"b\" c"#.len()));
        assert_eq!(String::from_utf8_lossy(&trace), hidden);
    }

    #[test]
    fn exceptions_contain_no_secrets() {
        let report = NodeReport::RankExited(RankExit {
            rank: Rank(1),
            message: Some("401 for token sk-\"quoted\"-1".into()),
            ..RankExit::default()
        });
        let text = secrets(&["sk-\"quoted\"-1"]).report(&report);
        assert!(
            text.contains("401 for token [redacted]") && !text.contains("quoted"),
            "{text}"
        );
    }
}
