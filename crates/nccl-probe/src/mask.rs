//! The mask of events: one number in NCCL that all communicators share and that NCCL reads at each group of calls. The plugin stores its
//! address, so it can switch kernel timing on and off while the job runs.
#![allow(unsafe_code, reason = "the mask is NCCL's memory")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Collectives and point-to-point transfers: cheap, and sufficient for counting.
const COUNTING: c_int = 1 << 1 | 1 << 2;
/// The channels of kernels, with the GPU's timers.
const KERNELS: c_int = 1 << 6;

/// The mask while a communicator lives.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    place: AtomicPtr<c_int>,
    timing: AtomicBool,
}

impl Mask {
    /// Requests the events needed for counting. Events that others requested stay requested.
    ///
    /// `place` must be NCCL's mask, which it keeps for as long as a communicator lives.
    pub(crate) fn begin(&self, place: *mut c_int) {
        self.place.store(place, Ordering::Release);
        // SAFETY: the caller's promise; NCCL reads it atomically.
        unsafe { AtomicI32::from_ptr(place) }.fetch_or(COUNTING, Ordering::Relaxed);
    }

    /// Called when the last communicator is gone: NCCL may be unloaded next.
    pub(crate) fn end(&self) {
        self.set_timing(false);
        self.place.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Returns true if kernels are timed now.
    #[inline]
    pub(crate) fn times(&self) -> bool {
        self.timing.load(Ordering::Relaxed)
    }

    /// Starts or stops the timing of kernels.
    pub(crate) fn set_timing(&self, on: bool) {
        let place = self.place.load(Ordering::Acquire);
        if place.is_null() || self.timing.swap(on, Ordering::Relaxed) == on {
            return;
        }
        // SAFETY: `begin`'s promise: not null, so a communicator lives (or ends within these few instructions, and NCCL's data with
        // it only if the whole library is unloaded within them).
        let mask = unsafe { AtomicI32::from_ptr(place) };
        if on {
            mask.fetch_or(KERNELS, Ordering::Relaxed);
        } else {
            mask.fetch_and(!KERNELS, Ordering::Relaxed);
        }
    }

    /// Requests no events any more.
    pub(crate) fn clear(&self) {
        let place = self.place.swap(std::ptr::null_mut(), Ordering::AcqRel);
        self.timing.store(false, Ordering::Relaxed);
        if !place.is_null() {
            // SAFETY: as in `set_timing`.
            unsafe { AtomicI32::from_ptr(place) }.fetch_and(!(COUNTING | KERNELS), Ordering::Relaxed);
        }
    }
}
