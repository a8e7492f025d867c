//! The mask of events: one number in NCCL that all communicators share and that it reads at each group of calls. We keep its
//! address, so that kernel timing goes on and off while the job runs.
#![allow(unsafe_code, reason = "the mask is NCCL's memory")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Collectives and point-to-point transfers: cheap, and all that counting needs.
const COUNTING: c_int = 1 << 1 | 1 << 2;
/// Channels of kernels, with the GPU's timers.
const KERNELS: c_int = 1 << 6;

/// The mask while a communicator lives.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    place: AtomicPtr<c_int>,
    timing: AtomicBool,
}

impl Mask {
    /// Asks NCCL for what we count. What others asked for stays.
    ///
    /// `place` must be NCCL's mask, which it keeps for as long as a communicator lives.
    pub(crate) fn begin(&self, place: *mut c_int) {
        self.place.store(place, Ordering::Release);
        // SAFETY: the caller's promise; NCCL reads it atomically.
        unsafe { AtomicI32::from_ptr(place) }.fetch_or(COUNTING, Ordering::Relaxed);
    }

    /// The last communicator is gone: NCCL may be unloaded next.
    pub(crate) fn end(&self) {
        self.set_timing(false);
        self.place.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Whether kernels are being timed.
    #[inline]
    pub(crate) fn times(&self) -> bool {
        self.timing.load(Ordering::Relaxed)
    }

    /// Has kernels timed from now on, or no longer.
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

    /// Asks for nothing any more.
    pub(crate) fn clear(&self) {
        let place = self.place.swap(std::ptr::null_mut(), Ordering::AcqRel);
        self.timing.store(false, Ordering::Relaxed);
        if !place.is_null() {
            // SAFETY: as in `set_timing`.
            unsafe { AtomicI32::from_ptr(place) }.fetch_and(!(COUNTING | KERNELS), Ordering::Relaxed);
        }
    }
}
