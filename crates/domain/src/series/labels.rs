//! Label sets: sorted by name, unique names, no empty values. Cheap to clone and to compare.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name of the label that contains the metric's name.
pub const METRIC_NAME: &str = "__name__";
/// Maximum number of labels of a series. Users of Prometheus rarely need more than 30; more than 64 labels is most likely a mistake.
pub const LABELS_MAX: usize = 64;
/// Maximum length of a label name in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum length of a label value in bytes.
pub const VALUE_BYTES_MAX: usize = 2_048;

/// A label: a name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label {
    /// Name: `[a-zA-Z_][a-zA-Z0-9_]*`. Metric names may also contain `:`.
    pub name: Arc<str>,
    /// Value: any UTF-8 text, not empty.
    pub value: Arc<str>,
}

impl Ord for Label {
    /// Compares by name, then by value. Series of one store share the text of equal labels, and equal `Arc` pointers are compared without
    /// reading the text. Therefore sorting 100,000 series compares few characters.
    fn cmp(&self, other: &Self) -> Ordering {
        let texts = |a: &Arc<str>, b: &Arc<str>| {
            if Arc::ptr_eq(a, b) {
                Ordering::Equal
            } else {
                a.cmp(b)
            }
        };
        texts(&self.name, &other.name).then_with(|| texts(&self.value, &other.value))
    }
}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The label set that identifies a series.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<[Label]>);

/// Why a label set is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// The same name occurs twice.
    #[error("label {0:?} appears twice")]
    Duplicate(String),
    /// Not a valid label name in Prometheus.
    #[error("{0:?} is not a label name")]
    Name(String),
    /// Not a valid metric name in Prometheus.
    #[error("{0:?} is not a metric name")]
    MetricName(String),
    /// More than [`LABELS_MAX`] labels.
    #[error("{0} labels, more than the {LABELS_MAX} allowed")]
    TooMany(usize),
    /// A name longer than [`NAME_BYTES_MAX`] or a value longer than [`VALUE_BYTES_MAX`].
    #[error("label {0:?} is longer than allowed (name: {NAME_BYTES_MAX} bytes, value: {VALUE_BYTES_MAX})")]
    TooLong(String),
}

impl Labels {
    /// Sorts the labels, drops empty values (as Prometheus does), and checks the names, the lengths and the number of labels.
    ///
    /// # Errors
    /// See [`LabelsError`].
    pub fn new<N: Into<Arc<str>>, V: Into<Arc<str>>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, LabelsError> {
        let mut labels = with_values(pairs);
        labels.sort_unstable();
        Self::checked(labels)
    }

    /// Checks labels that are sorted and not empty.
    fn checked(labels: Vec<Label>) -> Result<Self, LabelsError> {
        if let Some(pair) = labels.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(LabelsError::Duplicate(shortened(&pair[0].name)));
        }
        if labels.len() > LABELS_MAX {
            return Err(LabelsError::TooMany(labels.len()));
        }
        labels.iter().try_for_each(check)?;
        Ok(Self(labels.into()))
    }

    /// Makes a label set from labels that are valid: results of a query, or literals in the code. Sorts them. If a name occurs twice, the
    /// first one is kept.
    pub fn from_trusted(pairs: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) -> Self {
        let mut labels = with_values(pairs);
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        labels.dedup_by(|a, b| a.name == b.name);
        Self(labels.into())
    }

    /// Makes a label set from labels taken from a [`Labels`] in its order: sorted, unique names, no empty values.
    pub fn from_sorted(labels: impl ExactSizeIterator<Item = Label>) -> Self {
        Self(labels.collect())
    }

    /// Returns the empty label set, for example the labels of the result of `sum(x)`.
    #[must_use]
    pub fn empty() -> Self {
        Self(Arc::from([]))
    }

    /// Returns the value of a label; `None` if it is missing (PromQL treats that like the empty string).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .binary_search_by(|label| (*label.name).cmp(name))
            .ok()
            .map(|at| &*self.0[at].value)
    }

    /// Returns the metric's name; `None` if there is none.
    #[must_use]
    pub fn metric_name(&self) -> Option<&str> {
        self.get(METRIC_NAME)
    }

    /// Iterates over the labels, ordered by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Label> + Clone {
        self.0.iter()
    }

    /// Returns the number of labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the labels for whose names `keep` returns true.
    #[must_use]
    pub fn filtered(&self, mut keep: impl FnMut(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|label| keep(&label.name)).cloned().collect())
    }

    /// Returns the labels with one label set. An empty value removes the label.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Self {
        let rest = self.0.iter().filter(|label| &*label.name != name).cloned();
        let mut labels: Vec<Label> = rest.collect();
        if !value.is_empty() {
            let at = labels.partition_point(|label| &*label.name < name);
            labels.insert(
                at,
                Label {
                    name: name.into(),
                    value: value.into(),
                },
            );
        }
        Self(labels.into())
    }
}

fn check(label: &Label) -> Result<(), LabelsError> {
    if label.name.len() > NAME_BYTES_MAX || label.value.len() > VALUE_BYTES_MAX {
        return Err(LabelsError::TooLong(shortened(&label.name)));
    }
    if !is_label_name(&label.name) {
        return Err(LabelsError::Name(shortened(&label.name)));
    }
    if &*label.name == METRIC_NAME && !is_metric_name(&label.value) {
        return Err(LabelsError::MetricName(shortened(&label.value)));
    }
    Ok(())
}

/// Shortens a name from an untrusted source for an error message.
fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

/// Returns true if the name matches `[a-zA-Z_][a-zA-Z0-9_]*`.
#[must_use]
pub fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns true if the name matches `[a-zA-Z_:][a-zA-Z0-9_:]*`.
#[must_use]
pub fn is_metric_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

impl fmt::Display for Labels {
    /// Prints the series in PromQL's notation: `name{a="b"}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric_name().unwrap_or(""))?;
        let rest = self.iter().filter(|label| &*label.name != METRIC_NAME);
        if rest.clone().next().is_none() {
            return if self.metric_name().is_none() {
                f.write_str("{}")
            } else {
                Ok(())
            };
        }
        f.write_str("{")?;
        for (n, label) in rest.enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{}={:?}", label.name, &*label.value)?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JsonSchema for Labels {
    fn schema_name() -> Cow<'static, str> {
        "Labels".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, String>::json_schema(generator)
    }
}

/// Returns the labels whose value is not empty.
fn with_values<N: Into<Arc<str>>, V: Into<Arc<str>>>(pairs: impl IntoIterator<Item = (N, V)>) -> Vec<Label> {
    let labels = pairs.into_iter().map(|(name, value)| Label {
        name: name.into(),
        value: value.into(),
    });
    labels.filter(|label| !label.value.is_empty()).collect()
}

impl Serialize for Labels {
    /// Serialises as a JSON object, as in Prometheus' query API.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for label in self.iter() {
            map.serialize_entry(&*label.name, &*label.value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = std::collections::BTreeMap::<String, String>::deserialize(deserializer)?;
        // The map is sorted.
        Labels::checked(with_values(map)).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_looked_up() {
        let labels = Labels::new([("zone", "b"), (METRIC_NAME, "up"), ("gpu", "0"), ("gone", "")])
            .expect("well formed");
        assert_eq!(labels.to_string(), r#"up{gpu="0", zone="b"}"#);
        assert_eq!(labels.get("gpu"), Some("0"));
        assert_eq!(labels.get("gone"), None);
        assert_eq!(
            labels.with("gpu", "").with("a", "1").to_string(),
            r#"up{a="1", zone="b"}"#
        );
    }

    #[test]
    fn what_cannot_name_a_series_is_refused() {
        assert!(matches!(
            Labels::new([("a", "1"), ("a", "2")]),
            Err(LabelsError::Duplicate(_))
        ));
        assert!(matches!(Labels::new([("a-b", "1")]), Err(LabelsError::Name(_))));
        assert!(matches!(
            Labels::new([(METRIC_NAME, "1x")]),
            Err(LabelsError::MetricName(_))
        ));
        assert!(matches!(
            Labels::new([("a", "x".repeat(3_000))]),
            Err(LabelsError::TooLong(_))
        ));
        let flood = (0..70).map(|n| (format!("l{n}"), "x"));
        assert!(matches!(Labels::new(flood), Err(LabelsError::TooMany(70))));
    }
}
