//! The last five minutes at ten readings a second, kept here and sent only when something happened: what a GPU did just
//! before it was lost shows in no series of one reading a second.
//!
//! ```text
//! thread "nvml" ──a row of each GPU every 100 ms──▶ ring, of fixed size
//! a critical event or alert of this node ──▶ wanted: all that is kept, and AFTERWARDS more
//! thread "spool" ──once a second, up to ROWS_A_TIME──▶ the spool, with the rows' own times, as gpu_burst_*
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;

use crate::sample::series::series;
use crate::sample::sink::Sample;

/// Ten a second for five minutes.
const ROWS_MAX: usize = 3_000;
/// How long it goes on after what happened: the driver's answer to it, and what became of the neighbours.
const AFTERWARDS_MS: i64 = 15_000;
/// Between two that are sent without anybody asking: a GPU that reports an error a minute is no reason to send all there is.
const APART_MS: i64 = 600_000;
/// Rows sent at once: five minutes leave within a quarter of a minute, without a flood in the spool.
const ROWS_A_TIME: usize = 200;

/// What is kept of a GPU, in this order.
pub(crate) const COLUMNS: usize = 8;
/// A reading; NaN is none. Single precision: seven digits are more than any of them has.
pub(crate) type Row = [f32; COLUMNS];
pub(crate) const SM: usize = 0;
pub(crate) const TENSOR: usize = 1;
pub(crate) const DRAM: usize = 2;
pub(crate) const POWER: usize = 3;
pub(crate) const NVLINK: usize = 4;
pub(crate) const PCIE: usize = 6;

/// The columns as series.
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

/// The ring. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Burst(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ring: Ring,
    /// Up to when rows are wanted, and up to when they were sent.
    wanted_ms: TimestampMs,
    sent_ms: TimestampMs,
    asked_ms: Option<TimestampMs>,
    /// Series that were sent and have not been ended.
    living: Vec<Labels>,
}

impl Burst {
    /// Keeps a row of each GPU. Another number of GPUs than before starts a new ring.
    pub(crate) fn keep(&self, at_ms: TimestampMs, rows: &[Row]) {
        self.lock().ring.keep(at_ms, rows);
    }

    /// Lets go of the memory.
    pub(crate) fn give_up(&self) {
        self.lock().ring = Ring::default();
    }

    /// Something happened at this time; may be said again and again.
    pub(crate) fn happened(&self, at_ms: TimestampMs) {
        let mut state = self.lock();
        if state.asked_ms.is_none_or(|asked| at_ms - asked >= APART_MS) {
            state.asked_ms = Some(at_ms);
            state.wanted_ms = at_ms + AFTERWARDS_MS;
        }
    }

    /// What is to be sent now; nothing, most of the time.
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
        if self.sent_ms < self.wanted_ms {
            let (from, to) = (self.sent_ms, self.wanted_ms);
            let names = names(self.ring.gpus);
            let mut last = None;
            for (at_ms, cells) in self.ring.between(from, to).take(ROWS_A_TIME) {
                let known = names.iter().zip(cells).filter(|(_, value)| !value.is_nan());
                due.extend(known.map(|(series, &value)| sample(series, at_ms, value.into())));
                last = Some(at_ms);
            }
            self.sent_ms = last.unwrap_or(from).max(self.sent_ms);
            if last.is_some() {
                self.living = names;
            }
        }
        // All that was wanted has come, or will not come any more.
        if self.sent_ms >= self.wanted_ms || (due.is_empty() && now_ms > self.wanted_ms) {
            let at_ms = self.sent_ms + 1;
            due.extend(self.living.drain(..).map(|series| sample(&series, at_ms, STALE)));
            self.sent_ms = self.sent_ms.max(self.wanted_ms);
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

/// The series of so many GPUs, in the order of the ring's cells.
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
    /// Where the next row goes.
    next: usize,
    full: bool,
}

impl Ring {
    fn keep(&mut self, at_ms: TimestampMs, rows: &[Row]) {
        if rows.len() != self.gpus || self.times.is_empty() {
            *self = Self {
                gpus: rows.len(),
                times: vec![0; ROWS_MAX],
                cells: vec![f32::NAN; ROWS_MAX * rows.len() * COLUMNS],
                ..Self::default()
            };
        }
        // A clock that was set back would mix up what was before and after.
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

    /// Rows after one time and up to another, the oldest first.
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

    /// Beats every 100 ms from one second on.
    fn filled(beats: i64) -> Burst {
        let burst = Burst::default();
        (0..beats).for_each(|n| burst.keep(1_000 + n * 100, &[row(n as f32), row(f32::NAN)]));
        burst
    }

    fn drained(burst: &Burst, from_ms: i64, looks: i64) -> Vec<Sample> {
        (0..looks).flat_map(|n| burst.due(from_ms + n * 1_000)).collect()
    }

    #[test]
    fn nothing_is_sent_until_something_happens() {
        let burst = filled(100);
        assert_eq!(drained(&burst, 11_000, 5), []);
    }

    #[test]
    fn what_was_before_and_a_little_after_is_sent_once_in_order() {
        let burst = filled(100);
        burst.happened(10_900);
        let before = drained(&burst, 11_000, 3);
        assert_eq!(before.len(), 100 * COLUMNS, "a NaN is no reading");
        assert!(before.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert_eq!(before[0].at_ms, 1_000);
        (0..300).for_each(|n| burst.keep(11_000 + n * 100, &[row(1.0), row(1.0)]));
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
        burst.happened(400_000);
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
    fn a_storm_of_events_is_one_burst() {
        let burst = filled(10);
        (0..50).for_each(|n| burst.happened(2_000 + n * 1_000));
        assert_eq!(burst.lock().wanted_ms, 2_000 + AFTERWARDS_MS);
        burst.happened(2_000 + APART_MS);
        assert_eq!(burst.lock().wanted_ms, 2_000 + APART_MS + AFTERWARDS_MS);
    }

    #[test]
    fn a_burst_of_a_driver_that_hangs_ends_too() {
        let burst = filled(10);
        burst.happened(2_000);
        let sent = drained(&burst, 2_000, 30);
        assert_eq!(
            sent.iter().filter(|sample| is_stale(sample.value)).count(),
            2 * COLUMNS
        );
    }

    #[test]
    fn a_memory_that_is_short_ends_the_ring() {
        let burst = filled(10);
        burst.give_up();
        burst.happened(2_000);
        assert_eq!(drained(&burst, 2_000, 30), []);
        burst.keep(99_000, &[row(1.0)]);
        assert_eq!(burst.lock().ring.newest(), Some(99_000));
    }
}
