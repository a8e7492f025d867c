//! The sink of all readers: the latest values for `/metrics`, and the samples that wait for the next batch.
//!
//! Pushing takes a short lock and never waits for a disk or the network.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::series::{Labels, STALE, is_stale};
use domain::time::TimestampMs;
use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// The maximum number of samples that wait for the next batch: some minutes of a large node, for a disk that stalls. When it is reached,
/// new samples are dropped and counted.
const PENDING_MAX: usize = 262_144;
/// The maximum room kept from one batch to the next, in samples: more than one second needs, less than a backlog.
const ROOM_KEPT_MAX: usize = 8_192;
/// The maximum number of series of a node. A large node has a few thousand. When it is reached, new series are dropped and counted.
const SERIES_MAX: usize = 65_536;

/// One value of one series at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The series, without the label `node`.
    pub series: Labels,
    /// The time of the value.
    pub at_ms: TimestampMs,
    /// The value, or [`STALE`].
    pub value: f64,
}

/// The index where a series was last found. It is a hint that the sink verifies.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeriesHint(usize);

/// The sink. Cheap to clone; all clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Samples(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    latest: IndexMap<Labels, (TimestampMs, f64), RandomState>,
    pending: Vec<Sample>,
    taken: u64,
    dropped: u64,
    drains: u64,
    /// The number of the last drain whose samples are all stored, or are not meant to be stored.
    stored: u64,
}

impl Samples {
    /// Creates an empty sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample. It never waits for I/O. At a limit, the sample is dropped and counted.
    pub fn push(&self, series: &Labels, at_ms: TimestampMs, value: f64) {
        self.push_at(&mut SeriesHint::default(), series, at_ms, value);
    }

    /// Adds a sample like [`Samples::push`]. Callers that write the same series repeatedly pass `hint` and so avoid the lookup.
    pub(crate) fn push_at(&self, hint: &mut SeriesHint, series: &Labels, at_ms: TimestampMs, value: f64) {
        let mut state = self.lock();
        state.taken += 1;
        if let Some(latest) = state.find(hint, series) {
            // A late sample does not replace a newer one.
            if latest.0 <= at_ms {
                *latest = (at_ms, value);
            }
        } else if state.latest.len() < SERIES_MAX {
            hint.0 = state.latest.len();
            state.latest.insert(series.clone(), (at_ms, value));
        } else {
            state.dropped += 1;
            return;
        }
        state.keep(Sample {
            series: series.clone(),
            at_ms,
            value,
        });
    }

    /// Ends a series: writes the staleness marker and removes the series. Does nothing if the series does not exist.
    pub fn end(&self, series: &Labels, at_ms: TimestampMs) {
        self.lock().end(series, at_ms);
    }

    /// Ends every series for which `gone` returns true.
    pub fn end_where(&self, at_ms: TimestampMs, gone: impl Fn(&Labels) -> bool) {
        let mut state = self.lock();
        let ended: Vec<Labels> = state
            .latest
            .keys()
            .filter(|series| gone(series))
            .cloned()
            .collect();
        ended.iter().for_each(|series| state.end(series, at_ms));
    }

    /// Returns the current series for which `wanted` returns true.
    #[must_use]
    pub fn living_where(&self, wanted: impl Fn(&Labels) -> bool) -> Vec<Labels> {
        let state = self.lock();
        state
            .latest
            .keys()
            .filter(|series| wanted(series))
            .cloned()
            .collect()
    }

    /// Removes and returns the samples since the last call, in the order in which they were pushed.
    #[must_use]
    pub fn drain(&self) -> Vec<Sample> {
        let mut drained = Vec::new();
        self.drain_into(&mut drained);
        drained
    }

    /// Like [`Samples::drain`], but replaces the contents of `drained` and reuses its memory.
    pub(crate) fn drain_into(&self, drained: &mut Vec<Sample>) {
        drained.clear();
        drained.shrink_to(ROOM_KEPT_MAX);
        let mut state = self.lock();
        state.drains += 1;
        std::mem::swap(drained, &mut state.pending);
    }

    /// Records that all drained samples are stored where they survive this process.
    pub(crate) fn note_stored(&self) {
        let mut state = self.lock();
        state.stored = state.drains;
    }

    /// Returns the value that [`Samples::stored`] must reach before everything pushed until now is stored.
    pub(crate) fn due(&self) -> u64 {
        self.lock().drains + 1
    }

    /// Returns the number of drains that are stored.
    pub(crate) fn stored(&self) -> u64 {
        self.lock().stored
    }

    /// Returns the newest value of each current series, in any order.
    #[must_use]
    pub fn latest(&self) -> Vec<Sample> {
        let state = self.lock();
        let sample = |(series, &(at_ms, value)): (&Labels, &(TimestampMs, f64))| Sample {
            series: series.clone(),
            at_ms,
            value,
        };
        state.latest.iter().map(sample).collect()
    }

    /// Returns the number of current series.
    #[must_use]
    pub fn series_count(&self) -> usize {
        self.lock().latest.len()
    }

    /// Counts values that were read but are stored elsewhere.
    pub fn count_unstored(&self, values: usize) {
        self.lock().taken += values as u64;
    }

    /// Returns the number of values that readers have read since the start.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Returns the number of samples dropped at a limit since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// A reader that panics while pushing leaves the state whole, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&mut self, hint: &mut SeriesHint, series: &Labels) -> Option<&mut (TimestampMs, f64)> {
        let guess = self.latest.get_index(hint.0);
        // Clones of the same labels compare fast.
        if guess.is_none_or(|(there, _)| there != series) {
            hint.0 = self.latest.get_index_of(series)?;
        }
        self.latest.get_index_mut(hint.0).map(|(_, latest)| latest)
    }

    fn keep(&mut self, sample: Sample) {
        if self.pending.len() < PENDING_MAX {
            self.pending.push(sample);
        } else {
            self.dropped += 1;
        }
    }

    fn end(&mut self, series: &Labels, at_ms: TimestampMs) {
        if let Some((last_ms, value)) = self.latest.swap_remove(series)
            && !is_stale(value)
        {
            // A marker with the time of the last sample would conflict with it.
            let at_ms = at_ms.max(last_ms + 1);
            self.keep(Sample {
                series: series.clone(),
                at_ms,
                value: STALE,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str) -> Labels {
        Labels::new([("__name__", name)]).expect("well formed")
    }

    #[test]
    fn what_is_pushed_is_drained_once_and_the_latest_stays() {
        let samples = Samples::new();
        let up = series("gpu_up");
        samples.push(&up, 1_000, 1.0);
        samples.push(&up, 2_000, 0.0);
        samples.push(&up, 1_500, 1.0);
        assert_eq!((samples.drain().len(), samples.taken()), (3, 3));
        assert_eq!(samples.drain().len(), 0);
        assert_eq!(
            samples.latest(),
            [Sample {
                series: up,
                at_ms: 2_000,
                value: 0.0
            }]
        );
    }

    #[test]
    fn an_ended_series_leaves_one_marker_after_its_last_sample() {
        let samples = Samples::new();
        let (one, two) = (series("a"), series("b"));
        samples.push(&one, 1_000, 1.0);
        samples.push(&two, 1_000, 1.0);
        samples.end(&one, 1_000);
        samples.end(&one, 1_100);
        samples.end_where(3_000, |labels| labels.metric_name() == Some("b"));
        let markers: Vec<_> = samples
            .drain()
            .into_iter()
            .filter(|s| is_stale(s.value))
            .map(|s| (s.series, s.at_ms))
            .collect();
        assert_eq!(markers, [(one, 1_001), (two, 3_000)]);
        assert!(samples.latest().is_empty());
    }

    #[test]
    fn a_flood_is_dropped_and_counted() {
        let samples = Samples::new();
        let flood = series("flood");
        (0..PENDING_MAX as i64 + 5).for_each(|at| samples.push(&flood, at, 0.0));
        assert_eq!(samples.dropped(), 5);
        assert_eq!(samples.drain().len(), PENDING_MAX);
    }
}
