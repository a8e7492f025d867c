//! Names of series, made once and kept: a reader asks for them every second.

use std::collections::HashMap;
use std::sync::Arc;

use domain::series::{Labels, METRIC_NAME};
use domain::time::TimestampMs;
use foldhash::fast::RandomState;

use crate::sample::Samples;

/// Labels of a metric. Label values may be anything; empty ones vanish.
pub(crate) fn series(metric: &str, labels: &[(&str, &str)]) -> Labels {
    debug_assert!(
        domain::metric::catalogue::find(metric).is_some(),
        "{metric} is not in the catalogue"
    );
    let name = std::iter::once((METRIC_NAME, metric));
    Labels::from_trusted(
        name.chain(labels.iter().copied())
            .map(|(name, value)| (Arc::from(name), Arc::from(shortened(value)))),
    )
}

/// File systems and processes are named by others; a name beyond the bound loses its end.
fn shortened(value: &str) -> &str {
    let end = value.floor_char_boundary(domain::series::labels::VALUE_BYTES_MAX);
    &value[..end]
}

/// The series of one thing (a GPU, the host): all carry the same labels, and at most one more.
#[derive(Debug, Default)]
pub(crate) struct Family {
    common: Vec<(&'static str, String)>,
    names: HashMap<(&'static str, &'static str), Labels, RandomState>,
}

impl Family {
    /// A family whose series all carry these labels.
    pub(crate) fn new(common: Vec<(&'static str, String)>) -> Self {
        Self {
            common,
            names: HashMap::default(),
        }
    }

    fn get(&mut self, metric: &'static str, extra: Option<(&'static str, &'static str)>) -> &Labels {
        let common = &self.common;
        let value = extra.map_or("", |(_, value)| value);
        self.names.entry((metric, value)).or_insert_with(|| {
            let own = common.iter().map(|(name, value)| (*name, value.as_str()));
            series(metric, &own.chain(extra).collect::<Vec<_>>())
        })
    }

    /// Everything written through the result has this time.
    pub(crate) fn at<'a>(&'a mut self, samples: &'a Samples, at_ms: TimestampMs) -> Writer<'a> {
        Writer {
            family: self,
            samples,
            at_ms,
        }
    }
}

/// Writes the readings of one moment.
pub(crate) struct Writer<'a> {
    family: &'a mut Family,
    samples: &'a Samples,
    at_ms: TimestampMs,
}

impl Writer<'_> {
    /// A metric with the family's labels only.
    pub(crate) fn put(&mut self, metric: &'static str, value: impl Into<f64>) {
        self.samples
            .push(self.family.get(metric, None), self.at_ms, value.into());
    }

    /// A metric with one more label from a closed set of values.
    pub(crate) fn put_by(
        &mut self,
        metric: &'static str,
        label: (&'static str, &'static str),
        value: impl Into<f64>,
    ) {
        self.samples
            .push(self.family.get(metric, Some(label)), self.at_ms, value.into());
    }

    /// Says that a counter was zero a moment ago: one that is born higher shows no increase.
    pub(crate) fn born_at_zero(&mut self, metric: &'static str, label: (&'static str, &'static str)) {
        self.samples
            .push(self.family.get(metric, Some(label)), self.at_ms - 1_000, 0.0);
    }
}
