//! Series in memory, in order of time: the input of a test and the samples that rules write.

use std::collections::HashMap;

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, Labels, SelectError, Selection, Series, SeriesSet, SeriesSource};
use domain::time::TimestampMs;

#[derive(Default)]
pub(super) struct Storage {
    by_labels: HashMap<Labels, usize>,
    series: Vec<Stored>,
}

struct Stored {
    labels: Labels,
    times_ms: Vec<TimestampMs>,
    values: Vec<f64>,
}

impl Storage {
    /// Adds a sample. As in Prometheus, a sample that is not newer than the last one of its series is dropped.
    pub(super) fn add(&mut self, labels: &Labels, at_ms: TimestampMs, value: f64) {
        let at = *self.by_labels.entry(labels.clone()).or_insert_with(|| {
            self.series.push(Stored {
                labels: labels.clone(),
                times_ms: Vec::new(),
                values: Vec::new(),
            });
            self.series.len() - 1
        });
        let series = &mut self.series[at];
        if series.times_ms.last().is_none_or(|last| *last < at_ms) {
            series.times_ms.push(at_ms);
            series.values.push(value);
        }
    }
}

impl SeriesSource for Storage {
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        let matchers = selection.matchers.iter().map(CompiledMatcher::new);
        let matchers = matchers
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| SelectError::Matcher(error.to_string()))?;
        let is_selected = |stored: &&Stored| {
            matchers
                .iter()
                .all(|matcher| matcher.matches(stored.labels.get(matcher.name()).unwrap_or("")))
        };
        let mut series = Vec::new();
        for stored in self.series.iter().filter(is_selected) {
            let from = stored.times_ms.partition_point(|time| *time < selection.start_ms);
            let to = stored.times_ms.partition_point(|time| *time <= selection.end_ms);
            if from == to {
                continue;
            }
            budget.take(1, (to - from) as u64)?;
            series.push(Series {
                labels: stored.labels.clone(),
                times_ms: stored.times_ms[from..to].into(),
                values: stored.values[from..to].into(),
            });
        }
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        Ok(SeriesSet {
            series,
            ..SeriesSet::default()
        })
    }
}
