//! Where a panic ends. One that crossed into NCCL would abort the training process; here it switches the probe off for good.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::probe;

/// Runs a callback's work.
pub(crate) fn guarded(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        probe::switch_off();
        // Dropping what a panic carries may panic again.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_here_also_when_its_payload_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        guarded(|| std::panic::panic_any(Bomb));
    }
}
