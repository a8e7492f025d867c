//! Series about the collector itself, for rules and queries: the free disk space.
//!
//! These series are not in the store, because they matter most when nothing can be written there. A ring buffer in memory keeps the last
//! minutes, and queries on these names are answered from it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use domain::api::store::{Blocked, DiskSpace};
use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, Labels, METRIC_NAME, SelectError, Selection, Series, SeriesSet, SeriesSource};
use domain::time::TimestampMs;
use store::series::Prefetched;

/// Whether samples are refused, by reason: 1 while it is so.
pub const BLOCKED: &str = "lockstep_store_ingest_blocked";
/// Free bytes of the disk with the data folder.
pub const FREE: &str = "lockstep_store_free_bytes";
/// The number of free bytes below which no samples are accepted.
pub const FLOOR: &str = "lockstep_store_free_floor_bytes";

/// Ten minutes at one sample per second: what the evidence of a rule shows, and what a user looks at.
const POINTS_MAX: usize = 600;

/// The values of the last minutes.
#[derive(Debug, Default)]
pub struct OwnSeries {
    points: Mutex<VecDeque<(TimestampMs, DiskSpace)>>,
}

impl OwnSeries {
    /// Adds the current disk space. Times must rise.
    pub fn note(&self, at_ms: TimestampMs, space: DiskSpace) {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.back().is_some_and(|(last, _)| *last >= at_ms) {
            return;
        }
        if points.len() == POINTS_MAX {
            points.pop_front();
        }
        points.push_back((at_ms, space));
    }

    /// Combines these series with those of the store.
    pub(crate) fn combined_with(self: &Arc<Self>, stored: Prefetched) -> WithOwnSeries {
        WithOwnSeries {
            own: Arc::clone(self),
            stored,
        }
    }

    fn select(&self, name: &str, selection: &Selection) -> Result<SeriesSet, SelectError> {
        let (times_ms, spaces): (Vec<_>, Vec<_>) = {
            let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
            let within = |(at_ms, _): &&(TimestampMs, DiskSpace)| {
                (selection.start_ms..=selection.end_ms).contains(at_ms)
            };
            points.iter().filter(within).copied().unzip()
        };
        if times_ms.is_empty() {
            return Ok(SeriesSet::default());
        }
        let times_ms: Arc<[TimestampMs]> = times_ms.into();
        let mut series = Vec::new();
        for (labels, value) in rows(name) {
            if matches(&labels, selection)? {
                series.push(Series {
                    labels,
                    times_ms: Arc::clone(&times_ms),
                    values: spaces.iter().map(value).collect(),
                });
            }
        }
        Ok(SeriesSet {
            series,
            ..SeriesSet::default()
        })
    }
}

type Value = Box<dyn Fn(&DiskSpace) -> f64>;

/// Returns the series of a name, ordered by their labels, and how to compute the value of each.
fn rows(name: &str) -> Vec<(Labels, Value)> {
    let bare = || Labels::new([(METRIC_NAME, name)]).expect("a literal name");
    match name {
        FREE => vec![(bare(), Box::new(|space: &DiskSpace| space.free_bytes as f64))],
        FLOOR => vec![(bare(), Box::new(|space: &DiskSpace| space.floor_bytes as f64))],
        _ => [Blocked::DiskFull, Blocked::WriteFailed]
            .into_iter()
            .map(|reason| {
                let value: Value = Box::new(move |space| f64::from(u8::from(space.blocked == Some(reason))));
                (bare().with("reason", reason.word()), value)
            })
            .collect(),
    }
}

fn matches(labels: &Labels, selection: &Selection) -> Result<bool, SelectError> {
    for matcher in &selection.matchers {
        let compiled =
            CompiledMatcher::new(matcher).map_err(|error| SelectError::Matcher(error.to_string()))?;
        if !compiled.matches(labels.get(&matcher.name).unwrap_or_default()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The series of the store, and for the names above the collector's own.
pub(crate) struct WithOwnSeries {
    own: Arc<OwnSeries>,
    stored: Prefetched,
}

impl SeriesSource for WithOwnSeries {
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        match selection.metric() {
            Some(name @ (BLOCKED | FREE | FLOOR)) => self.own.select(name, selection),
            _ => self.stored.select(selection, budget),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Matcher;

    use super::*;

    fn selection(matchers: &[(&str, &str)], start_ms: i64, end_ms: i64) -> Selection {
        let matchers = matchers.iter().map(|(name, value)| Matcher::equal(*name, *value));
        Selection {
            matchers: matchers.collect(),
            start_ms,
            end_ms,
            step_ms: 0,
            function: None,
            latest: false,
        }
    }

    #[test]
    fn the_ring_answers_by_name_reason_and_time() {
        let own = OwnSeries::default();
        let space = |blocked, free_bytes| DiskSpace {
            free_bytes,
            blocked,
            ..DiskSpace::default()
        };
        own.note(1_000, space(None, 9));
        own.note(2_000, space(Some(Blocked::DiskFull), 1));
        own.note(2_000, space(None, 5));

        let both = own
            .select(BLOCKED, &selection(&[(METRIC_NAME, BLOCKED)], 0, 9_000))
            .unwrap();
        assert_eq!(both.series.len(), 2);
        let full = [(METRIC_NAME, BLOCKED), ("reason", "disk_full")];
        let full = own.select(BLOCKED, &selection(&full, 0, 9_000)).unwrap();
        assert_eq!(&*full.series[0].values, [0.0, 1.0]);
        let free = own
            .select(FREE, &selection(&[(METRIC_NAME, FREE)], 1_500, 9_000))
            .unwrap();
        assert_eq!(
            (&*free.series[0].times_ms, &*free.series[0].values),
            (&[2_000][..], &[1.0][..])
        );
        let later = own.select(FREE, &selection(&[], 5_000, 9_000)).unwrap();
        assert!(later.series.is_empty());
    }

    #[test]
    fn the_ring_is_bounded() {
        let own = OwnSeries::default();
        for at_ms in 0..2 * POINTS_MAX as i64 {
            own.note(at_ms, DiskSpace::default());
        }
        assert_eq!(own.points.lock().unwrap().len(), POINTS_MAX);
    }
}
