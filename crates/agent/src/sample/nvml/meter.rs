//! Measures the time of every NVML call, and shows other threads which call is in progress: the reading thread cannot report it when the
//! driver does not return.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a call may take before it counts as hung. The watchdog checks once per second, so it reports a hang within four seconds.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long opening the library may take. A driver without persistence mode then initialises each GPU, which takes about 1.5 s for each of
/// up to 16 GPUs.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Shared between the reading thread, which makes the calls, and the watchdog, which checks them.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    open: AtomicBool,
    under_way: Mutex<Option<Call>>,
    durations: CallDurations,
}

/// A call in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The GPU that is queried; `None` for the library as a whole.
    pub(crate) gpu: Option<u32>,
    /// How long the call may take.
    pub(crate) timeout: Duration,
    started: Instant,
}

impl Call {
    /// Returns how long the call has been in progress.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns true if the call takes longer than it may.
    pub(crate) fn is_late(&self) -> bool {
        self.age() > self.timeout
    }
}

impl Meter {
    /// Makes a call.
    pub(crate) fn call<T>(&self, gpu: Option<u32>, call: impl FnOnce() -> T) -> T {
        self.call_within(CALL_TIMEOUT, gpu, call)
    }

    /// Makes a call that may take `timeout`.
    pub(crate) fn call_within<T>(&self, timeout: Duration, gpu: Option<u32>, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        self.set(Some(Call {
            gpu,
            timeout,
            started,
        }));
        let result = call();
        self.set(None);
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took, Ordering::Relaxed);
        self.durations.add(took);
        result
    }

    /// Returns the call in progress, if there is one.
    pub(crate) fn under_way(&self) -> Option<Call> {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether the library is open.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// Returns true if the library is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of calls, and their total time.
    pub(crate) fn totals(&self) -> (u64, Duration) {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (
            self.calls.load(Ordering::Relaxed),
            Duration::from_nanos(nanoseconds),
        )
    }

    /// Returns the 99th percentile of the times of the calls since the last call of this function, or `None` if there were no calls.
    pub(crate) fn take_p99(&self) -> Option<Duration> {
        self.durations.take(0.99)
    }

    fn set(&self, call: Option<Call>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }
}

// === The distribution of call times ===

/// The number of buckets. Each covers a quarter of an octave, starting at 256 ns. This is precise to a fifth, and a call of any duration
/// has a bucket.
const BUCKETS: usize = 128;
/// Calls below this (2^8 ns) are in the first bucket.
const SHORTEST_LOG2: u32 = 8;

/// The number of calls per duration.
#[derive(Debug)]
struct CallDurations([AtomicU32; BUCKETS]);

impl Default for CallDurations {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl CallDurations {
    fn add(&self, nanoseconds: u64) {
        self.0[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the upper end of the bucket that contains this quantile, and resets the counts.
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
    fn a_duration_is_counted_in_its_bucket() {
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
        let durations = CallDurations::default();
        assert_eq!(durations.take(0.99), None);
        (0..99).for_each(|_| durations.add(1_000));
        durations.add(50_000_000);
        let p99 = durations.take(0.99).expect("there were calls");
        assert!((1_000..1_300).contains(&p99.as_nanos()), "{p99:?}");
        assert_eq!(durations.take(0.99), None, "counting started again");
    }
}
