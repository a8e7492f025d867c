//! Label sets: sorted by name, each name once, no empty values. Cheap to clone and to compare.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The label that holds the metric's name.
pub const METRIC_NAME: &str = "__name__";
/// The most labels a series may have; Prometheus' users rarely pass 30, and a flood of labels is an error somewhere.
pub const LABELS_MAX: usize = 64;
/// The longest label name in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The longest label value in bytes.
pub const VALUE_BYTES_MAX: usize = 2_048;

/// One name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label {
    /// `[a-zA-Z_][a-zA-Z0-9_]*` for labels; metric names may also hold `:`.
    pub name: Arc<str>,
    /// Any UTF-8, not empty.
    pub value: Arc<str>,
}

impl Ord for Label {
    /// By name, then by value. Series of one store share the text of equal labels, which an `Arc` sees without reading it:
    /// sorting a hundred thousand series compares few letters.
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

/// What names a series.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<[Label]>);

/// Labels that cannot name a series.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// One name twice.
    #[error("label {0:?} appears twice")]
    Duplicate(String),
    /// Not a name Prometheus would take.
    #[error("{0:?} is not a label name")]
    Name(String),
    /// Not a metric name Prometheus would take.
    #[error("{0:?} is not a metric name")]
    MetricName(String),
    /// More than [`LABELS_MAX`].
    #[error("{0} labels, more than the {LABELS_MAX} allowed")]
    TooMany(usize),
    /// Longer than [`NAME_BYTES_MAX`] or [`VALUE_BYTES_MAX`].
    #[error("label {0:?} is longer than allowed ({NAME_BYTES_MAX} bytes a name, {VALUE_BYTES_MAX} a value)")]
    TooLong(String),
}

impl Labels {
    /// Sorts, drops empty values (as Prometheus does), and checks names, lengths and the number of labels.
    ///
    /// # Errors
    /// See [`LabelsError`].
    pub fn new<N: Into<Arc<str>>, V: Into<Arc<str>>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, LabelsError> {
        let mut labels: Vec<Label> = pairs
            .into_iter()
            .map(|(name, value)| Label {
                name: name.into(),
                value: value.into(),
            })
            .collect();
        labels.retain(|label| !label.value.is_empty());
        labels.sort_unstable();
        if let Some(pair) = labels.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(LabelsError::Duplicate(shortened(&pair[0].name)));
        }
        if labels.len() > LABELS_MAX {
            return Err(LabelsError::TooMany(labels.len()));
        }
        labels.iter().try_for_each(check)?;
        Ok(Self(labels.into()))
    }

    /// Labels that are known to be well formed: results of a query, or literals in our own code. Sorts them; where a name
    /// comes twice the first wins.
    pub fn from_trusted(pairs: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) -> Self {
        let mut labels: Vec<Label> = pairs
            .into_iter()
            .map(|(name, value)| Label { name, value })
            .collect();
        labels.retain(|label| !label.value.is_empty());
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        labels.dedup_by(|a, b| a.name == b.name);
        Self(labels.into())
    }

    /// Labels that were taken from a [`Labels`] in its order: sorted, each name once, no empty value.
    pub fn from_sorted(labels: impl ExactSizeIterator<Item = Label>) -> Self {
        Self(labels.collect())
    }

    /// No labels at all: the result of `sum(x)`.
    #[must_use]
    pub fn empty() -> Self {
        Self(Arc::from([]))
    }

    /// The value of a label, `None` when it is not there (which PromQL treats like the empty string).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .binary_search_by(|label| (*label.name).cmp(name))
            .ok()
            .map(|at| &*self.0[at].value)
    }

    /// The metric's name, if it has one.
    #[must_use]
    pub fn metric_name(&self) -> Option<&str> {
        self.get(METRIC_NAME)
    }

    /// All labels in order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Label> + Clone {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same labels but those `keep` refuses.
    #[must_use]
    pub fn filtered(&self, mut keep: impl FnMut(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|label| keep(&label.name)).cloned().collect())
    }

    /// The same labels with one set (or, with an empty value, removed).
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

/// Enough of a hostile name to recognise it in a message.
fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

/// `[a-zA-Z_][a-zA-Z0-9_]*`.
#[must_use]
pub fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// `[a-zA-Z_:][a-zA-Z0-9_:]*`.
#[must_use]
pub fn is_metric_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

impl fmt::Display for Labels {
    /// As PromQL writes a series: `name{a="b"}`.
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

impl Serialize for Labels {
    /// A JSON object, as in Prometheus' query API.
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
        Labels::new(map).map_err(serde::de::Error::custom)
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
