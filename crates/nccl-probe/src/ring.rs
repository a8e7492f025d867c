//! A bounded queue from many threads to one. A push never waits, and fails if the queue is full.
//!
//! ```text
//! position p → slot p mod N in turn t = p div N; the state of a slot decides who may use it
//!   2t      empty, for the pusher that takes position p (by changing `pushed` from p to p + 1)
//!   2t + 1  full, for the popper
//!   2t + 2  empty again, in the next turn
//! ```
//! The words are atomics that are accessed with relaxed ordering; the release and acquire of the state order them. If a pusher is suspended
//! between taking a position and filling it, the popper waits there, but no other pusher does until the queue is full.
//! tests/interleavings.rs tests all interleavings with other atomics.

use super::atomics::{AtomicU64, Ordering};

/// A ring whose records have this number of words.
#[derive(Debug)]
pub(crate) struct Ring<const WORDS: usize> {
    pushed: AtomicU64,
    popped: AtomicU64,
    slots: Box<[Slot<WORDS>]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Slot<const WORDS: usize> {
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Ring<WORDS> {
    /// Creates an empty ring. `slots` must be a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two());
        let slot = |_| Slot {
            state: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            pushed: AtomicU64::new(0),
            popped: AtomicU64::new(0),
            slots: (0..slots).map(slot).collect(),
        }
    }

    /// Adds a record. Returns false if the ring is full.
    pub(crate) fn push(&self, record: [u64; WORDS]) -> bool {
        let mut position = self.pushed.load(Ordering::Relaxed);
        loop {
            let (slot, empty) = self.place(position);
            let state = slot.state.load(Ordering::Acquire);
            if state < empty {
                // The record of the previous turn is still here.
                return false;
            }
            if state > empty {
                position = self.pushed.load(Ordering::Relaxed);
                continue;
            }
            let taken = self.pushed.compare_exchange_weak(
                position,
                position + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => {
                    for (word, value) in slot.words.iter().zip(record) {
                        word.store(value, Ordering::Relaxed);
                    }
                    slot.state.store(empty + 1, Ordering::Release);
                    return true;
                }
                Err(now) => position = now,
            }
        }
    }

    /// Removes and returns the oldest record. Only one thread at a time may call it.
    pub(crate) fn pop(&self) -> Option<[u64; WORDS]> {
        let position = self.popped.load(Ordering::Relaxed);
        let (slot, empty) = self.place(position);
        if slot.state.load(Ordering::Acquire) != empty + 1 {
            return None;
        }
        let record = std::array::from_fn(|word| slot.words[word].load(Ordering::Relaxed));
        self.popped.store(position + 1, Ordering::Relaxed);
        slot.state.store(empty + 2, Ordering::Release);
        Some(record)
    }

    fn place(&self, position: u64) -> (&Slot<WORDS>, u64) {
        let bits = self.slots.len().trailing_zeros();
        let place = position as usize & (self.slots.len() - 1);
        (&self.slots[place], (position >> bits) * 2)
    }
}
