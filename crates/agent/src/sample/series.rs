//! The labels of series, created once and kept, because a reader needs them every second.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use domain::series::{Labels, METRIC_NAME};
use domain::time::TimestampMs;
use foldhash::fast::RandomState;

use crate::sample::Samples;
use crate::sample::sink::SeriesHint;

/// Returns the labels of a metric. Label values may be any text; empty ones are left out.
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

/// Shortens a value to the limit: names of file systems and processes may have any length.
fn shortened(value: &str) -> &str {
    let end = value.floor_char_boundary(domain::series::labels::VALUE_BYTES_MAX);
    &value[..end]
}

/// The series of one object (a GPU, the host). All have the same labels, and at most one more.
#[derive(Debug, Default)]
pub(crate) struct Family {
    common: Vec<(&'static str, String)>,
    names: HashMap<(Literal, Literal), Named, RandomState>,
}

#[derive(Debug)]
struct Named {
    series: Labels,
    hint: SeriesHint,
}

/// A text literal of the program, compared by its address: this is faster than comparing letters. The same text may exist at two addresses;
/// then the same series is stored twice.
#[derive(Debug, Clone, Copy)]
struct Literal(&'static str);

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.0.as_ptr().addr());
    }
}

impl Family {
    /// Creates a family whose series all have these labels.
    pub(crate) fn new(common: Vec<(&'static str, String)>) -> Self {
        Self {
            common,
            names: HashMap::default(),
        }
    }

    fn get(&mut self, metric: &'static str, extra: Option<(&'static str, &'static str)>) -> &mut Named {
        let common = &self.common;
        let value = extra.map_or("", |(_, value)| value);
        self.names
            .entry((Literal(metric), Literal(value)))
            .or_insert_with(|| Named {
                series: with_common(common, metric, extra),
                hint: SeriesHint::default(),
            })
    }

    /// Returns the series of a metric with one more label of any value.
    pub(crate) fn series_with(&self, metric: &str, label: &str, value: &str) -> Labels {
        with_common(&self.common, metric, Some((label, value)))
    }

    /// Returns all series that were written.
    pub(crate) fn into_series(self) -> impl Iterator<Item = Labels> {
        self.names.into_values().map(|named| named.series)
    }

    /// Returns a writer whose samples have this time.
    pub(crate) fn at<'a>(&'a mut self, samples: &'a Samples, at_ms: TimestampMs) -> Writer<'a> {
        Writer {
            family: self,
            samples,
            at_ms,
        }
    }
}

fn with_common(common: &[(&'static str, String)], metric: &str, extra: Option<(&str, &str)>) -> Labels {
    let own = common.iter().map(|(name, value)| (*name, value.as_str()));
    series(metric, &own.chain(extra).collect::<Vec<_>>())
}

/// Writes the readings of one time.
pub(crate) struct Writer<'a> {
    family: &'a mut Family,
    samples: &'a Samples,
    at_ms: TimestampMs,
}

impl Writer<'_> {
    /// Writes a metric with only the labels of the family.
    pub(crate) fn put(&mut self, metric: &'static str, value: impl Into<f64>) {
        self.push(metric, None, self.at_ms, value.into());
    }

    /// Writes a metric with one more label from a closed set of values.
    pub(crate) fn put_by(
        &mut self,
        metric: &'static str,
        label: (&'static str, &'static str),
        value: impl Into<f64>,
    ) {
        self.push(metric, Some(label), self.at_ms, value.into());
    }

    /// Writes that a counter was zero one second ago. A counter that starts above zero shows no increase.
    pub(crate) fn born_at_zero(&mut self, metric: &'static str, label: (&'static str, &'static str)) {
        self.push(metric, Some(label), self.at_ms - 1_000, 0.0);
    }

    fn push(
        &mut self,
        metric: &'static str,
        label: Option<(&'static str, &'static str)>,
        at_ms: TimestampMs,
        value: f64,
    ) {
        let Named { series, hint } = self.family.get(metric, label);
        self.samples.push_at(hint, series, at_ms, value);
    }
}
