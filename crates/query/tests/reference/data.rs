//! Random series, and a source that passes them to the engine in one of two layouts.

use std::sync::Arc;

use domain::series::{
    ABSENT, Budget, Labels, MatchOp, Matcher, STALE, SelectError, Selection, Series, SeriesSet, SeriesSource,
    is_absent,
};
use proptest::prelude::*;

use super::tree::Names;

pub(crate) const STEP_MS: i64 = 7_000;
pub(crate) const STEPS: i64 = 10;
/// Lookback, shorter than in Prometheus, so that it ends within a few samples.
pub(crate) const LOOKBACK_MS: i64 = 20_000;
const TIMES_MAX: usize = 40;

/// Metrics, and the values of their labels `gpu` and `node`. Some metrics share label sets, one has an additional label.
const SERIES: [(&str, &str, &str, &str); 9] = [
    ("gauge", "0", "a", ""),
    ("gauge", "1", "a", ""),
    ("gauge", "0", "b", ""),
    ("gauge", "1", "b", ""),
    ("ticks_total", "0", "a", ""),
    ("ticks_total", "1", "a", ""),
    ("ticks_total", "1", "b", ""),
    ("node_info", "", "a", "left"),
    ("node_info", "", "b", "right"),
];

#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) rows: Vec<Row>,
    /// True if all series share one time axis with missing values; false if each has its own.
    shares_axis: bool,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) labels: Names,
    /// Samples in ascending order of time, including staleness markers, without missing values.
    pub(crate) samples: Vec<(i64, f64)>,
}

pub(crate) fn data() -> impl Strategy<Value = Data> {
    let value = prop_oneof![
        20 => (-5_i32..30).prop_map(f64::from),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        2 => Just(STALE),
        5 => Just(ABSENT),
    ];
    // Times are often on the edge of a window, but never so close to each other that a line through two of them depends on rounding.
    let times = prop::collection::btree_set((-80_i64..320).prop_map(|quarter| quarter * 250), 1..TIMES_MAX);
    let rows = prop::collection::vec(prop::collection::vec(value, TIMES_MAX), 1..=SERIES.len());
    (times, rows, any::<bool>(), any::<bool>()).prop_map(|(times, rows, shares_axis, are_whole)| {
        let rows = rows.into_iter().zip(SERIES).map(|(values, series)| {
            // Half of the data contains only finite numbers, because one infinity hides errors in the rest.
            let value = |value: f64| {
                if are_whole && !value.is_finite() {
                    7.0
                } else {
                    value
                }
            };
            let samples = times.iter().copied().zip(values.into_iter().map(value));
            Row {
                labels: names(series),
                samples: samples.filter(|(_, value)| !is_absent(*value)).collect(),
            }
        });
        Data {
            rows: rows.collect(),
            shares_axis,
        }
    })
}

fn names((name, gpu, node, side): (&str, &str, &str, &str)) -> Names {
    let pairs = [("__name__", name), ("gpu", gpu), ("node", node), ("side", side)];
    let there = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    there
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

impl SeriesSource for Data {
    fn select(&self, selection: &Selection, _: &Budget) -> Result<SeriesSet, SelectError> {
        let matching = self.rows.iter().filter(|row| {
            selection
                .matchers
                .iter()
                .all(|matcher| matches(matcher, &row.labels))
        });
        let axis: Arc<[i64]> = self.axis();
        let mut series: Vec<Series> = matching.map(|row| self.series(row, &axis)).collect();
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        Ok(SeriesSet {
            series,
            ..SeriesSet::default()
        })
    }
}

impl Data {
    fn axis(&self) -> Arc<[i64]> {
        let mut times: Vec<i64> = self
            .rows
            .iter()
            .flat_map(|row| &row.samples)
            .map(|(time, _)| *time)
            .collect();
        times.sort_unstable();
        times.dedup();
        times.into()
    }

    fn series(&self, row: &Row, axis: &Arc<[i64]>) -> Series {
        let labels = Labels::new(row.labels.clone()).unwrap();
        if !self.shares_axis {
            let (times, values): (Vec<i64>, Vec<f64>) = row.samples.iter().copied().unzip();
            return Series {
                labels,
                times_ms: times.into(),
                values: values.into(),
            };
        }
        let value = |time: &i64| {
            row.samples
                .iter()
                .find(|(at, _)| at == time)
                .map_or(ABSENT, |(_, value)| *value)
        };
        Series {
            labels,
            times_ms: Arc::clone(axis),
            values: axis.iter().map(value).collect(),
        }
    }
}

/// Supports only `=` and `!=`, and lists of words as a regular expression.
fn matches(matcher: &Matcher, labels: &Names) -> bool {
    let value = labels.get(&matcher.name).map_or("", String::as_str);
    match matcher.op {
        MatchOp::Equal => value == matcher.value,
        MatchOp::NotEqual => value != matcher.value,
        MatchOp::Regex => matcher.value.split('|').any(|word| word == value),
        MatchOp::NotRegex => !matcher.value.split('|').any(|word| word == value),
    }
}
