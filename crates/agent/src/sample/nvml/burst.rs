//! Keeps the last five minutes of ten readings per second, and sends them only after a critical event. Series with one reading per second
//! do not show what a GPU did just before it was lost.
//!
//! ```text
//! thread "nvml" ──one row per GPU every 100 ms──▶ ring of fixed size
//! a critical event or alert of this node ──▶ request: all rows in the ring, and those of the next AFTER_EVENT_MS
//! thread "spool" ──once per second, up to ROWS_PER_SEND──▶ the spool, with the rows' own times, as gpu_burst_*
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;

use crate::sample::series::series;
use crate::sample::sink::Sample;

/// The number of rows in the ring: ten per second for five minutes.
const ROWS_MAX: usize = 3_000;
/// How long rows are sent after the event, to include the driver's reaction and the state of the other GPUs.
const AFTER_EVENT_MS: i64 = 15_000;
/// The minimum time between two bursts. A GPU that reports an error every minute must not cause everything to be sent.
const BURSTS_APART_MS: i64 = 600_000;
/// The maximum number of rows sent at once. Five minutes are sent within 15 seconds, without flooding the spool.
const ROWS_PER_SEND: usize = 200;

/// The number of values in a row, in the order of the constants below.
pub(crate) const COLUMNS: usize = 8;
/// The readings of one GPU at one time. NaN means no reading. `f32` has seven digits, which is more than any reading has.
pub(crate) type Row = [f32; COLUMNS];
pub(crate) const SM: usize = 0;
pub(crate) const TENSOR: usize = 1;
pub(crate) const DRAM: usize = 2;
pub(crate) const POWER: usize = 3;
pub(crate) const NVLINK: usize = 4;
pub(crate) const PCIE: usize = 6;

/// The series of each column.
const SERIES: [(&str, Option<&str>); COLUMNS] = [
    ("gpu_burst_sm_active_ratio", None),
    ("gpu_burst_tensor_active_ratio", None),
    ("gpu_burst_dram_active_ratio", None),
    ("gpu_burst_power_watts", None),
    ("gpu_burst_transmit_bytes_per_second", Some("nvlink")),
    ("gpu_burst_receive_bytes_per_second", Some("nvlink")),
    ("gpu_burst_transmit_bytes_per_second", Some("pcie")),
    ("gpu_burst_receive_bytes_per_second", Some("pcie")),
];

/// The ring. Cheap to clone; all clones share one state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Burst(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ring: Ring,
    /// The time up to which rows are requested, and the time up to which they were sent.
    send_until_ms: TimestampMs,
    sent_ms: TimestampMs,
    requested_ms: Option<TimestampMs>,
    /// The series that were sent and not ended by a staleness marker.
    open_series: Vec<Labels>,
}

impl Burst {
    /// Adds a row for each GPU. If the number of GPUs has changed, a new ring starts.
    pub(crate) fn push(&self, at_ms: TimestampMs, rows: &[Row]) {
        self.lock().ring.push(at_ms, rows);
    }

    /// Frees the memory of the ring.
    pub(crate) fn give_up(&self) {
        self.lock().ring = Ring::default();
    }

    /// Requests the rows around this time. Repeated calls within [`BURSTS_APART_MS`] have no effect.
    pub(crate) fn request(&self, at_ms: TimestampMs) {
        let mut state = self.lock();
        if state
            .requested_ms
            .is_none_or(|requested| at_ms - requested >= BURSTS_APART_MS)
        {
            state.requested_ms = Some(at_ms);
            state.send_until_ms = at_ms + AFTER_EVENT_MS;
        }
    }

    /// Returns the samples to send now. Usually there are none.
    pub(crate) fn due(&self, now_ms: TimestampMs) -> Vec<Sample> {
        self.lock().due(now_ms)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn due(&mut self, now_ms: TimestampMs) -> Vec<Sample> {
        let mut due = Vec::new();
        if self.sent_ms < self.send_until_ms {
            let (from, to) = (self.sent_ms, self.send_until_ms);
            let names = names(self.ring.gpus);
            let mut last = None;
            for (at_ms, cells) in self.ring.between(from, to).take(ROWS_PER_SEND) {
                let known = names.iter().zip(cells).filter(|(_, value)| !value.is_nan());
                due.extend(known.map(|(series, &value)| sample(series, at_ms, value.into())));
                last = Some(at_ms);
            }
            self.sent_ms = last.unwrap_or(from).max(self.sent_ms);
            if last.is_some() {
                self.open_series = names;
            }
        }
        // All requested rows were sent, or no more will come.
        if self.sent_ms >= self.send_until_ms || (due.is_empty() && now_ms > self.send_until_ms) {
            let at_ms = self.sent_ms + 1;
            due.extend(
                self.open_series
                    .drain(..)
                    .map(|series| sample(&series, at_ms, STALE)),
            );
            self.sent_ms = self.sent_ms.max(self.send_until_ms);
        }
        due
    }
}

fn sample(series: &Labels, at_ms: TimestampMs, value: f64) -> Sample {
    Sample {
        series: series.clone(),
        at_ms,
        value,
    }
}

/// Returns the series of `gpus` GPUs, in the order of the ring's cells.
fn names(gpus: usize) -> Vec<Labels> {
    let of_gpu = |gpu: usize| {
        let gpu = gpu.to_string();
        SERIES.map(|(metric, link)| {
            let link = link.map(|link| ("link", link));
            let labels: Vec<_> = [("gpu", gpu.as_str())].into_iter().chain(link).collect();
            series(metric, &labels)
        })
    };
    (0..gpus).flat_map(of_gpu).collect()
}

// === The ring ===

#[derive(Debug, Default)]
struct Ring {
    gpus: usize,
    times: Vec<TimestampMs>,
    cells: Vec<f32>,
    /// The position of the next row.
    next: usize,
    full: bool,
}

impl Ring {
    fn push(&mut self, at_ms: TimestampMs, rows: &[Row]) {
        if rows.len() != self.gpus || self.times.is_empty() {
            *self = Self {
                gpus: rows.len(),
                times: vec![0; ROWS_MAX],
                cells: vec![f32::NAN; ROWS_MAX * rows.len() * COLUMNS],
                ..Self::default()
            };
        }
        // Skip rows while the clock is behind the newest row: after a clock was set back, old and new rows would mix.
        if self.newest().is_some_and(|newest| at_ms <= newest) {
            return;
        }
        let width = self.gpus * COLUMNS;
        self.times[self.next] = at_ms;
        let cells = &mut self.cells[self.next * width..(self.next + 1) * width];
        for (cell, value) in cells.iter_mut().zip(rows.iter().flatten()) {
            *cell = *value;
        }
        self.next = (self.next + 1) % ROWS_MAX;
        self.full |= self.next == 0;
    }

    fn newest(&self) -> Option<TimestampMs> {
        let at = self.next.checked_sub(1).or(self.full.then_some(ROWS_MAX - 1))?;
        self.times.get(at).copied()
    }

    /// Returns the rows after `after_ms` and up to `to_ms`, the oldest first.
    fn between(
        &self,
        after_ms: TimestampMs,
        to_ms: TimestampMs,
    ) -> impl Iterator<Item = (TimestampMs, &[f32])> {
        let width = self.gpus * COLUMNS;
        let older = if self.full { self.next..ROWS_MAX } else { 0..0 };
        older
            .chain(0..self.next)
            .map(move |at| (self.times[at], &self.cells[at * width..(at + 1) * width]))
            .skip_while(move |(at_ms, _)| *at_ms <= after_ms)
            .take_while(move |(at_ms, _)| *at_ms <= to_ms)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use domain::series::is_stale;

    fn row(value: f32) -> Row {
        [value; COLUMNS]
    }

    /// A burst with rows every 100 ms, starting at one second.
    fn filled(rows: i64) -> Burst {
        let burst = Burst::default();
        (0..rows).for_each(|n| burst.push(1_000 + n * 100, &[row(n as f32), row(f32::NAN)]));
        burst
    }

    fn drained(burst: &Burst, from_ms: i64, seconds: i64) -> Vec<Sample> {
        (0..seconds)
            .flat_map(|n| burst.due(from_ms + n * 1_000))
            .collect()
    }

    #[test]
    fn nothing_is_sent_before_a_request() {
        let burst = filled(100);
        assert_eq!(drained(&burst, 11_000, 5), []);
    }

    #[test]
    fn rows_before_and_shortly_after_the_event_are_sent_once_in_order() {
        let burst = filled(100);
        burst.request(10_900);
        let before = drained(&burst, 11_000, 3);
        assert_eq!(before.len(), 100 * COLUMNS, "a NaN is no reading");
        assert!(before.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert_eq!(before[0].at_ms, 1_000);
        (0..300).for_each(|n| burst.push(11_000 + n * 100, &[row(1.0), row(1.0)]));
        let after = drained(&burst, 41_000, 5);
        let (ended, after): (Vec<_>, Vec<_>) = after.into_iter().partition(|s| is_stale(s.value));
        assert_eq!(after.first().map(|s| s.at_ms), Some(11_000));
        assert_eq!(after.last().map(|s| s.at_ms), Some(25_900));
        assert_eq!(ended.len(), 2 * COLUMNS);
        assert_eq!(drained(&burst, 50_000, 5), []);
    }

    #[test]
    fn a_ring_keeps_the_newest_and_does_not_grow() {
        let burst = filled(ROWS_MAX as i64 + 500);
        burst.request(400_000);
        let sent = drained(&burst, 400_000, 40);
        assert_eq!(sent[0].at_ms, 1_000 + 500 * 100);
        let readings = sent.iter().filter(|sample| !is_stale(sample.value)).count();
        assert_eq!(readings, ROWS_MAX * COLUMNS);
        let state = burst.lock();
        assert_eq!(
            (state.ring.times.len(), state.ring.cells.len()),
            (ROWS_MAX, ROWS_MAX * 16)
        );
    }

    #[test]
    fn many_events_cause_one_burst() {
        let burst = filled(10);
        (0..50).for_each(|n| burst.request(2_000 + n * 1_000));
        assert_eq!(burst.lock().send_until_ms, 2_000 + AFTER_EVENT_MS);
        burst.request(2_000 + BURSTS_APART_MS);
        assert_eq!(
            burst.lock().send_until_ms,
            2_000 + BURSTS_APART_MS + AFTER_EVENT_MS
        );
    }

    #[test]
    fn a_burst_of_a_driver_that_hangs_ends_too() {
        let burst = filled(10);
        burst.request(2_000);
        let sent = drained(&burst, 2_000, 30);
        assert_eq!(
            sent.iter().filter(|sample| is_stale(sample.value)).count(),
            2 * COLUMNS
        );
    }

    #[test]
    fn the_ring_is_dropped_when_memory_is_short() {
        let burst = filled(10);
        burst.give_up();
        burst.request(2_000);
        assert_eq!(drained(&burst, 2_000, 30), []);
        burst.push(99_000, &[row(1.0)]);
        assert_eq!(burst.lock().ring.newest(), Some(99_000));
    }
}
