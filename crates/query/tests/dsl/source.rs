//! A source of the loaded series that behaves like a store with prefetching: it returns only what the query selected in advance.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use domain::series::matcher::CompiledMatcher;
use domain::series::{
    ABSENT, Budget, Labels, METRIC_NAME, SelectError, Selection, Series, SeriesSet, SeriesSource, is_absent,
};
use query::{Params, Query};

use super::series::Line;

/// All series loaded so far.
#[derive(Default)]
pub(crate) struct Storage {
    series: BTreeMap<Labels, BTreeMap<i64, f64>>,
    /// Series of which some samples were native histograms, which are not stored.
    histograms: Vec<Labels>,
}

/// Memory layout of the series of one selection. It must not change the result of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// Each series has its own times.
    Own,
    /// All series share one time axis, with missing values.
    Shared,
}

impl Storage {
    pub(crate) fn load(&mut self, step_ms: i64, lines: &[Line], with_nhcb: bool) {
        for line in lines {
            let Some(labels) = &line.labels else { continue };
            if line.has_histograms {
                self.histograms.push(labels.clone());
            }
            let bucket = labels.metric_name().and_then(|name| name.strip_suffix("_bucket"));
            if let (true, Some(name)) = (with_nhcb, bucket) {
                self.histograms
                    .push(labels.with(METRIC_NAME, name).with("le", ""));
            }
            let samples = line
                .values
                .iter()
                .enumerate()
                .map(|(n, value)| (n as i64 * step_ms, *value));
            self.series
                .entry(labels.clone())
                .or_default()
                .extend(samples.filter(|(_, value)| !is_absent(*value)));
        }
    }

    /// Returns true if the query reads a series that contained native histograms.
    pub(crate) fn reads_histograms(&self, query: &Query, params: &Params) -> bool {
        let is_read = |selection: &Selection| {
            let matchers: Vec<_> = selection.matchers.iter().flat_map(CompiledMatcher::new).collect();
            let all = |labels: &Labels| {
                matchers
                    .iter()
                    .all(|m| m.matches(labels.get(m.name()).unwrap_or("")))
            };
            self.histograms.iter().any(all)
        };
        query.selections(params).iter().any(is_read)
    }

    /// Returns the result of every selection of the query, as a store does before the evaluation.
    pub(crate) fn prefetch(&self, query: &Query, params: &Params, layout: Layout) -> Prefetched {
        let selections = query.selections(params).into_iter();
        Prefetched(
            selections
                .map(|selection| {
                    let answer = self.answer(&selection, layout);
                    (selection, answer)
                })
                .collect(),
        )
    }

    fn answer(&self, selection: &Selection, layout: Layout) -> Result<SeriesSet, String> {
        let matchers = selection
            .matchers
            .iter()
            .map(CompiledMatcher::new)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())?;
        let is_selected = |labels: &Labels| {
            matchers
                .iter()
                .all(|matcher| matcher.matches(labels.get(matcher.name()).unwrap_or("")))
        };
        let within = |samples: &BTreeMap<i64, f64>| -> BTreeMap<i64, f64> {
            samples
                .range(selection.start_ms..=selection.end_ms)
                .map(|(time, value)| (*time, *value))
                .collect()
        };
        let selected = self.series.iter().filter(|(labels, _)| is_selected(labels));
        let selected: Vec<_> = selected
            .map(|(labels, samples)| (labels, within(samples)))
            .filter(|(_, samples)| !samples.is_empty())
            .collect();
        let series = match layout {
            Layout::Own => selected
                .into_iter()
                .map(|(labels, samples)| Series {
                    labels: labels.clone(),
                    times_ms: samples.keys().copied().collect(),
                    values: samples.values().copied().collect(),
                })
                .collect(),
            Layout::Shared => {
                let axis: BTreeSet<i64> = selected
                    .iter()
                    .flat_map(|(_, samples)| samples.keys().copied())
                    .collect();
                let axis: Arc<[i64]> = axis.into_iter().collect();
                let on_axis = |samples: &BTreeMap<i64, f64>| -> Arc<[f64]> {
                    axis.iter()
                        .map(|time| samples.get(time).copied().unwrap_or(ABSENT))
                        .collect()
                };
                selected
                    .iter()
                    .map(|(labels, samples)| Series {
                        labels: (*labels).clone(),
                        times_ms: Arc::clone(&axis),
                        values: on_axis(samples),
                    })
                    .collect()
            }
        };
        Ok(SeriesSet {
            series,
            ..SeriesSet::default()
        })
    }
}

/// Results by selection. A selection that was not announced is an error of the engine.
pub(crate) struct Prefetched(HashMap<Selection, Result<SeriesSet, String>>);

impl SeriesSource for Prefetched {
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        let answer = self
            .0
            .get(selection)
            .unwrap_or_else(|| panic!("{selection:?} was not announced"));
        let set = answer.clone().map_err(SelectError::Matcher)?;
        let samples = set.series.iter().map(|series| series.values.len() as u64).sum();
        budget.take(set.series.len() as u64, samples)?;
        Ok(set)
    }
}
