//! Stops panics. A panic that reached NCCL would abort the training process; instead it switches the probe off permanently.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::probe;

/// Runs the work of a callback.
pub(crate) fn guarded(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        probe::switch_off();
        // Dropping the payload of a panic may panic again.
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
