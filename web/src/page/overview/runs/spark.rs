//! A sparkline in a table: the last ten minutes, without axes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::api::stream::{Column, Request};
use leptos::prelude::*;

use crate::language::tr;
use crate::live::{Live, StreamMessage};

const RANGE_MS: i64 = 600_000;
const STEP_MS: i64 = 10_000;
/// Number of points of a full line.
const POINTS_MAX: usize = 61;
/// Size of the image that [`spark`] writes.
const WIDTH: f64 = 96.0;
const HEIGHT: f64 = 18.0;
/// Changes smaller than this share of the value are noise and look flat.
const FLAT_SHARE: f64 = 0.2;

/// The lines of all runs; NaN if there is no value.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Sparks(BTreeMap<String, Vec<f64>>);

impl Sparks {
    /// Watches a query with one series per run until the current owner is cleaned up.
    pub(super) fn watched(query: &str) -> RwSignal<Self> {
        let sparks = RwSignal::new(Self::default());
        let query = query.to_owned();
        expect_context::<Live>().watch(
            |id| Request::WatchRange {
                id,
                query,
                range_ms: RANGE_MS,
                step_ms: STEP_MS,
                extremes: false,
                end_ms: None,
            },
            move |message| {
                if let StreamMessage::Frame {
                    reset,
                    times_ms,
                    series,
                    ..
                } = message
                {
                    sparks.update(|sparks| sparks.take(reset, times_ms.len(), &series));
                }
            },
        );
        sparks
    }

    /// Returns the line of a run.
    pub(super) fn get(&self, run: &str) -> Option<&[f64]> {
        self.0.get(run).map(Vec::as_slice)
    }

    fn take(&mut self, reset: bool, times: usize, series: &[Column]) {
        if reset {
            self.0.clear();
        }
        let before = self.0.values().map(Vec::len).max().unwrap_or(0);
        for column in series {
            let Some(run) = column.labels.get("run") else {
                continue;
            };
            let line = self
                .0
                .entry(run.to_owned())
                .or_insert_with(|| vec![f64::NAN; before]);
            line.extend(column.values.iter().map(|value| value.unwrap_or(f64::NAN)));
        }
        for line in self.0.values_mut() {
            line.resize(before + times, f64::NAN);
            line.drain(..line.len().saturating_sub(POINTS_MAX));
        }
        self.0.retain(|_, line| line.iter().any(|value| !value.is_nan()));
    }
}

/// Renders a line.
pub(super) fn spark(values: &[f64]) -> AnyView {
    view! {
        <svg class="block" width="96" height="18" role="img" aria-label=tr("Step time in the last 10 minutes")>
            <path d=path(values) fill="none" stroke="var(--series-1)" stroke-width="1.5" />
        </svg>
    }
    .into_any()
}

/// Returns the line as an SVG path with gaps.
fn path(values: &[f64]) -> String {
    let known = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = known().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let middle = f64::midpoint(low, high);
    let span = (high - low).max(middle.abs() * FLAT_SHARE).max(f64::MIN_POSITIVE);
    let (mut path, mut is_down) = (String::new(), false);
    let first = POINTS_MAX.saturating_sub(values.len());
    for (n, value) in values.iter().enumerate() {
        if !value.is_finite() {
            is_down = false;
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most 61 points")]
        let x = (first + n) as f64 * WIDTH / (POINTS_MAX - 1) as f64;
        let y = HEIGHT / 2.0 - (value - middle) / span * (HEIGHT - 2.0);
        let verb = if is_down { 'L' } else { 'M' };
        // Writing to a `String` cannot fail.
        let _infallible = write!(
            path,
            "{verb}{} {}",
            crate::ui::fixed(x, 1),
            crate::ui::fixed(y, 1)
        );
        is_down = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use domain::series::Labels;

    use super::*;

    fn column(run: &str, values: &[Option<f64>]) -> Column {
        Column {
            labels: Labels::from_trusted([("run".into(), run.into())]),
            values: values.to_vec(),
            not_finite: vec![],
            min: vec![],
            max: vec![],
        }
    }

    #[test]
    fn new_times_are_added_behind_and_old_ones_go() {
        let mut sparks = Sparks::default();
        sparks.take(true, 2, &[column("a", &[Some(1.0), None])]);
        sparks.take(false, 1, &[column("b", &[Some(3.0)])]);
        assert!(
            sparks
                .get("a")
                .is_some_and(|line| line.len() == 3 && line[2].is_nan())
        );
        assert!(
            sparks
                .get("b")
                .is_some_and(|line| line[0].is_nan() && line[2] > 2.0)
        );
        sparks.take(false, POINTS_MAX, &[column("b", &[Some(4.0); POINTS_MAX])]);
        assert_eq!(sparks.get("a"), None, "nothing of it is left");
        assert_eq!(sparks.get("b").map(<[f64]>::len), Some(POINTS_MAX));
    }

    #[test]
    fn noise_is_flat_and_gaps_stay_gaps() {
        let path = path(&[1.0, 1.001, f64::NAN, 1.0]);
        assert_eq!(path.matches('M').count(), 2);
        assert!(path.contains("L92.8 9.0"), "{path}");
        assert_eq!(super::path(&[]), "");
    }
}
