//! Where every reader puts what it read: the latest values for `/metrics`, and the samples waiting for the next batch.
//!
//! Pushing takes a short lock and never waits for disk or network.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::series::{Labels, STALE, is_stale};
use domain::time::TimestampMs;
use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// The most samples that wait for the next batch: some minutes of a large node, for a disk that stalls. Beyond, new samples
/// are dropped and counted.
const PENDING_MAX: usize = 262_144;
/// Room for so many samples is kept from one batch to the next: more than a second's, less than what piled up once.
const ROOM_KEPT_MAX: usize = 8_192;
/// The most series one node may have; a large node has some thousands. Beyond, new series are dropped and counted.
const SERIES_MAX: usize = 65_536;

/// One value of one series at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The series, without the label `node`.
    pub series: Labels,
    /// When.
    pub at_ms: TimestampMs,
    /// How much, or [`STALE`].
    pub value: f64,
}

/// Where a series was found the last time: a guess, which the sink checks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place(usize);

/// The sink. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Samples(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    latest: IndexMap<Labels, (TimestampMs, f64), RandomState>,
    pending: Vec<Sample>,
    taken: u64,
    dropped: u64,
    drains: u64,
    /// The last drain of which everything lies on disk, or was not to.
    stored: u64,
}

impl Samples {
    /// An empty sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a sample. Never blocks on I/O; when a bound is reached the sample is dropped and counted.
    pub fn push(&self, series: &Labels, at_ms: TimestampMs, value: f64) {
        self.push_at(&mut Place::default(), series, at_ms, value);
    }

    /// The same for one who writes the series again and again, and is spared the search.
    pub(crate) fn push_at(&self, place: &mut Place, series: &Labels, at_ms: TimestampMs, value: f64) {
        let mut state = self.lock();
        state.taken += 1;
        if let Some(latest) = state.find(place, series) {
            // A sample that comes late does not hide a newer one.
            if latest.0 <= at_ms {
                *latest = (at_ms, value);
            }
        } else if state.latest.len() < SERIES_MAX {
            place.0 = state.latest.len();
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

    /// Says that a series has ended: writes the staleness marker and forgets it. A series never seen stays unseen.
    pub fn end(&self, series: &Labels, at_ms: TimestampMs) {
        self.lock().end(series, at_ms);
    }

    /// Ends every series that `gone` names.
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

    /// The living series that `wanted` names.
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

    /// Takes what came since the last call, in the order it came.
    #[must_use]
    pub fn drain(&self) -> Vec<Sample> {
        let mut drained = Vec::new();
        self.drain_into(&mut drained);
        drained
    }

    /// The same, in place of what `drained` holds; its room is used for what comes next.
    pub(crate) fn drain_into(&self, drained: &mut Vec<Sample>) {
        drained.clear();
        drained.shrink_to(ROOM_KEPT_MAX);
        let mut state = self.lock();
        state.drains += 1;
        std::mem::swap(drained, &mut state.pending);
    }

    /// All that was drained is where it survives this process.
    pub(crate) fn note_stored(&self) {
        let mut state = self.lock();
        state.stored = state.drains;
    }

    /// What has to be reached by [`Samples::stored`] before all that was pushed until now survives this process.
    pub(crate) fn due(&self) -> u64 {
        self.lock().drains + 1
    }

    /// How many drains are stored.
    pub(crate) fn stored(&self) -> u64 {
        self.lock().stored
    }

    /// The newest value of each living series, in no order.
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

    /// How many series live.
    #[must_use]
    pub fn series_count(&self) -> usize {
        self.lock().latest.len()
    }

    /// Counts values that were read and are kept elsewhere.
    pub fn read_besides(&self, values: usize) {
        self.lock().taken += values as u64;
    }

    /// Values that readers brought since the start.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Samples dropped at a bound since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// A reader that panicked while pushing leaves whole values behind: go on with them.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&mut self, place: &mut Place, series: &Labels) -> Option<&mut (TimestampMs, f64)> {
        let guess = self.latest.get_index(place.0);
        // Clones of one name are equal at a glance.
        if guess.is_none_or(|(there, _)| there != series) {
            place.0 = self.latest.get_index_of(series)?;
        }
        self.latest.get_index_mut(place.0).map(|(_, latest)| latest)
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
            // A marker at the time of the last sample would fight with it for the same place.
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
