//! Times every NVML call, and shows from outside which one is under way: the reading thread cannot say so itself when
//! the driver does not come back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shared between the reading thread, which makes the calls, and the watchdog, which looks on.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    open: AtomicBool,
    under_way: Mutex<Option<Call>>,
}

/// A call that has not come back yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The GPU it asks; `None` for the library as a whole.
    pub(crate) gpu: Option<u32>,
    started: Instant,
}

impl Call {
    /// How long it has been under way.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Meter {
    /// Makes a call.
    pub(crate) fn call<T>(&self, gpu: Option<u32>, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        self.set(Some(Call { gpu, started }));
        let result = call();
        self.set(None);
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took, Ordering::Relaxed);
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

    fn set(&self, call: Option<Call>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }
}
