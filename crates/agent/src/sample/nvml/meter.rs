//! Times every NVML call, and shows from outside which one is under way: the reading thread cannot say so itself when
//! the driver does not come back.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a call may take before it counts as hung. With a look once a second it is told within four.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How long opening the library may take: a driver without persistence mode initialises each GPU then, about 1.5 s for
/// each of up to sixteen.
pub(crate) const PATIENCE_TO_OPEN: Duration = Duration::from_secs(30);

/// Shared between the reading thread, which makes the calls, and the watchdog, which looks on.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    open: AtomicBool,
    under_way: Mutex<Option<Call>>,
    spread: Spread,
}

/// A call that has not come back yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The GPU it asks; `None` for the library as a whole.
    pub(crate) gpu: Option<u32>,
    /// How long it may take.
    pub(crate) patience: Duration,
    started: Instant,
}

impl Call {
    /// How long it has been under way.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it should have come back long ago.
    pub(crate) fn is_late(&self) -> bool {
        self.age() > self.patience
    }
}

impl Meter {
    /// Makes a call.
    pub(crate) fn call<T>(&self, gpu: Option<u32>, call: impl FnOnce() -> T) -> T {
        self.call_within(PATIENCE, gpu, call)
    }

    /// Makes a call that may take this long.
    pub(crate) fn call_within<T>(&self, patience: Duration, gpu: Option<u32>, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        self.set(Some(Call {
            gpu,
            patience,
            started,
        }));
        let result = call();
        self.set(None);
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took, Ordering::Relaxed);
        self.spread.add(took);
        result
    }

    /// The call under way, if any.
    pub(crate) fn under_way(&self) -> Option<Call> {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the library is open (or closed).
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// Whether the library is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Calls made, and the time they took together.
    pub(crate) fn totals(&self) -> (u64, Duration) {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (
            self.calls.load(Ordering::Relaxed),
            Duration::from_nanos(nanoseconds),
        )
    }

    /// What all but the slowest hundredth of the calls since the last time took at most; `None` when there were none.
    pub(crate) fn take_p99(&self) -> Option<Duration> {
        self.spread.take(0.99)
    }

    fn set(&self, call: Option<Call>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }
}

// === The spread ===

/// Buckets of a quarter of an octave from 256 ns up: to be off by a fifth is precise enough, and a call of any length has one.
const BUCKETS: usize = 128;
/// Below this (2^8 ns) all calls are alike.
const SHORTEST_LOG2: u32 = 8;

/// How long calls took, counted by length.
#[derive(Debug)]
struct Spread([AtomicU32; BUCKETS]);

impl Default for Spread {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl Spread {
    fn add(&self, nanoseconds: u64) {
        self.0[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    /// The upper end of the bucket in which this quantile lies; counting begins anew.
    fn take(&self, quantile: f64) -> Option<Duration> {
        let counts = self.0.each_ref().map(|count| count.swap(0, Ordering::Relaxed));
        let all: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let mut left = (all as f64 * quantile).ceil() as u64;
        for (n, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            left = left.saturating_sub(count.into());
            if left == 0 {
                return Some(Duration::from_nanos(upper_end(n)));
            }
        }
        None
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let nanoseconds = nanoseconds.max(1 << SHORTEST_LOG2);
    let octave = nanoseconds.ilog2();
    let quarter = (nanoseconds >> (octave - 2)) & 3;
    let bucket = (octave - SHORTEST_LOG2) as usize * 4 + quarter as usize;
    bucket.min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4 + SHORTEST_LOG2 as usize, bucket as u64 % 4);
    (5 + quarter) << (octave - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_lies_in_its_bucket() {
        for nanoseconds in [256_u64, 257, 1_000, 1_023, 1_024, 999_999, 1_500_000_000] {
            let bucket = bucket(nanoseconds);
            let below = bucket.checked_sub(1).map_or(0, upper_end);
            assert!(
                (below..=upper_end(bucket)).contains(&nanoseconds),
                "{nanoseconds} in {below}..{}",
                upper_end(bucket)
            );
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_slowest_hundredth_is_left_out() {
        let spread = Spread::default();
        assert_eq!(spread.take(0.99), None);
        (0..99).for_each(|_| spread.add(1_000));
        spread.add(50_000_000);
        let p99 = spread.take(0.99).expect("there were calls");
        assert!((1_000..1_300).contains(&p99.as_nanos()), "{p99:?}");
        assert_eq!(spread.take(0.99), None, "counting began anew");
    }
}
