//! The measurements of a node: a metric of the catalogue, labels, a value.

use domain::time::TimestampMs;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    pub(crate) metric: &'static str,
    /// Without the metric's name, and without `node`, which the collector adds.
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: f64,
}

/// The samples of one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) at_ms: TimestampMs,
    pub(crate) readings: Vec<Reading>,
}

/// A list of readings with common labels.
pub(crate) struct Readings<'a> {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) into: &'a mut Vec<Reading>,
}

impl Readings<'_> {
    pub(crate) fn push(&mut self, metric: &'static str, value: f64) {
        self.push_with(metric, &[], value);
    }

    /// Adds a reading with additional labels.
    pub(crate) fn push_with(&mut self, metric: &'static str, more: &[(&'static str, &str)], value: f64) {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        self.into.push(Reading {
            metric,
            labels: self.labels.iter().cloned().chain(more).collect(),
            value,
        });
    }
}

impl Reading {
    /// Returns names and values in turn, sorted by name, as in [`wire::proto::Series`].
    pub(crate) fn series(&self) -> Vec<String> {
        let mut labels: Vec<(&str, &str)> = vec![("__name__", self.metric)];
        labels.extend(self.labels.iter().map(|(name, value)| (*name, value.as_str())));
        labels.sort_unstable();
        labels
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value.to_owned()])
            .collect()
    }
}
