//! Reads the samples of a series once if a function and an instant selector need them.
//!
//! ```text
//! max_over_time(x[12s])         |────────────── all samples ──────────────|
//! x               |── lookback ─────── newest sample of each step ────────|
//! read            |───────────────────── all samples ─────────────────────|
//! ```
//! A query finds the samples of a step by their times, so more samples than needed do not change its result. Series that have none of the
//! needed samples are left out: a query charges the values of each series to its budget, and the longer selection may have many more.

use std::collections::HashMap;

use domain::series::{Selection, Series, SeriesSet};
use domain::time::TimestampMs;

/// Returns the results of all selections. Reads each once, or takes the samples that were read for another one.
///
/// # Errors
/// Returns the first error of `read`.
pub(crate) fn read_each<E>(
    selections: &[Selection],
    mut read: impl FnMut(&Selection) -> Result<SeriesSet, E>,
) -> Result<HashMap<Selection, SeriesSet>, E> {
    let mut providers: HashMap<&Selection, &Selection> = HashMap::new();
    let mut starts_ms: HashMap<&Selection, TimestampMs> = HashMap::new();
    for selection in selections {
        if let Some(provider) = provider(selection, selections) {
            providers.insert(selection, provider);
            let start_ms = starts_ms.entry(provider).or_insert(provider.start_ms);
            *start_ms = selection.start_ms.min(*start_ms);
        }
    }
    let mut sets: HashMap<Selection, SeriesSet> = HashMap::with_capacity(selections.len());
    let of_functions = selections.iter().filter(|selection| selection.function.is_some());
    let others = selections.iter().filter(|selection| selection.function.is_none());
    for selection in of_functions.chain(others) {
        if sets.contains_key(selection) {
            continue;
        }
        let provided = providers.get(selection).and_then(|provider| sets.get(*provider));
        // A roll-up has another value for each function.
        let set = match provided.filter(|set| set.resolution_ms.is_none()) {
            Some(set) => within_range(set, selection),
            None => {
                let start_ms = starts_ms.get(selection).copied();
                read(&Selection {
                    start_ms: start_ms.unwrap_or(selection.start_ms),
                    ..selection.clone()
                })?
            }
        };
        sets.insert(selection.clone(), set);
    }
    Ok(sets)
}

/// Returns the series that have times within the range of a selection.
fn within_range(set: &SeriesSet, selection: &Selection) -> SeriesSet {
    let has_times = |series: &&Series| {
        let times_ms = &series.times_ms;
        let first = times_ms.partition_point(|time_ms| *time_ms < selection.start_ms);
        times_ms
            .get(first)
            .is_some_and(|time_ms| *time_ms <= selection.end_ms)
    };
    SeriesSet {
        series: set.series.iter().filter(has_times).cloned().collect(),
        resolution_ms: set.resolution_ms,
    }
}

/// Returns the selection for a function whose samples are, or can be with some older ones, all that an instant selector needs.
fn provider<'a>(instant: &Selection, selections: &'a [Selection]) -> Option<&'a Selection> {
    // Memory finds the newest sample of each series without reading the others.
    if instant.function.is_some() || instant.latest {
        return None;
    }
    selections.iter().find(|other| {
        let older_ms = other.start_ms.saturating_sub(instant.start_ms);
        other.function.is_some()
            && other.end_ms == instant.end_ms
            // Otherwise most samples would be read for a few steps of the instant selector.
            && older_ms <= other.end_ms.saturating_sub(other.start_ms)
            && other.matchers == instant.matchers
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use domain::series::{Labels, MatchOp, Matcher};

    use super::*;

    const STEP_MS: i64 = 12_000;

    fn selection(metric: &str, start_ms: i64, end_ms: i64, function: Option<&str>) -> Selection {
        let matcher = Matcher {
            name: "__name__".into(),
            op: MatchOp::Equal,
            value: metric.into(),
        };
        Selection {
            matchers: vec![matcher],
            start_ms,
            end_ms,
            step_ms: STEP_MS,
            function: function.map(str::to_owned),
            latest: false,
        }
    }

    /// Checks the start and the function of each reading.
    fn check(
        what: &str,
        selections: &[Selection],
        resolution_ms: Option<i64>,
        expected: &[(i64, Option<&str>)],
    ) {
        let mut reads = Vec::new();
        let sets = read_each(selections, |selection| {
            reads.push((selection.start_ms, selection.function.clone()));
            Ok::<_, Infallible>(SeriesSet {
                resolution_ms,
                ..SeriesSet::default()
            })
        });
        let Ok(sets) = sets;
        let has_set = |selection: &Selection| sets.contains_key(selection);
        assert!(selections.iter().all(has_set), "{what}");
        let reads: Vec<_> = reads
            .iter()
            .map(|(start_ms, function)| (*start_ms, function.as_deref()))
            .collect();
        assert_eq!(reads, expected, "{what}");
    }

    #[test]
    fn an_instant_selector_takes_the_samples_of_a_function() {
        let instant = selection("x", 10_000, 3_700_000, None);
        let max = selection("x", 88_000, 3_700_000, Some("max_over_time"));
        let both = [instant.clone(), max.clone()];
        check("both", &both, None, &[(10_000, Some("max_over_time"))]);
        let repeated = [max.clone(), instant.clone(), max, instant];
        check("both twice", &repeated, None, &[(10_000, Some("max_over_time"))]);
        let long = [
            selection("x", 10_000, 3_700_000, Some("rate")),
            selection("x", 88_000, 3_700_000, None),
        ];
        check("a longer function", &long, None, &[(10_000, Some("rate"))]);
    }

    #[test]
    fn a_series_that_ended_before_a_shorter_selection_is_left_out() {
        let series = |name: &str, times_ms: &[i64]| Series {
            labels: Labels::new([("n", name)]).expect("good labels"),
            times_ms: times_ms.into(),
            values: times_ms.iter().map(|_| 1.0).collect(),
        };
        let selections = [
            selection("x", 10_000, 3_700_000, Some("rate")),
            selection("x", 88_000, 3_700_000, None),
        ];
        let Ok(sets) = read_each(&selections, |_| {
            Ok::<_, Infallible>(SeriesSet {
                series: vec![series("ended", &[20_000]), series("goes on", &[20_000, 90_000])],
                resolution_ms: None,
            })
        });
        let counts = selections.each_ref().map(|of| sets[of].series.len());
        assert_eq!(counts, [2, 1]);
    }

    #[test]
    fn roll_ups_are_read_for_each_function() {
        let both = [
            selection("x", 10_000, 3_700_000, None),
            selection("x", 88_000, 3_700_000, Some("max_over_time")),
        ];
        let expected = [(10_000, Some("max_over_time")), (10_000, None)];
        check("roll-ups", &both, Some(60_000), &expected);
    }

    #[test]
    fn other_selections_are_read_as_they_are() {
        let max = selection("x", 88_000, 3_700_000, Some("max_over_time"));
        let as_it_is = (88_000, Some("max_over_time"));
        for (what, other) in [
            ("of another metric", selection("y", 10_000, 3_700_000, None)),
            ("with another end", selection("x", 10_000, 3_688_000, None)),
            ("that is much longer", selection("x", -3_700_000, 3_700_000, None)),
            (
                "for another function",
                selection("x", 10_000, 3_700_000, Some("rate")),
            ),
            (
                "of the newest sample",
                Selection {
                    latest: true,
                    ..selection("x", 10_000, 3_700_000, None)
                },
            ),
        ] {
            let expected = [as_it_is, (other.start_ms, other.function.as_deref())];
            check(what, &[max.clone(), other.clone()], None, &expected);
        }
    }
}
