//! How much may be under way at once: queries evaluated, queries waiting for that, and samples held by all of them.
//!
//! ```text
//! query ─▶ place? no: turned away ─▶ slot (first come, first served) ─▶ evaluated ─▶ answer being written
//!          └──────── held until the work ends ───────────────────────┘  └─ its samples are held until then ─┘
//!                                        no room for its samples: once more, one after the other, when there is room
//! ```

use std::sync::Arc;
use std::time::Duration;

use domain::series::{Budget, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{QueryError, SAMPLES_MAX, SERIES_MAX};

/// Samples a query may read on a thread that must not block: a month by the minute.
const SAMPLES_AT_ONCE_MAX: u64 = 1 << 16;
const SERIES_AT_ONCE_MAX: u64 = 16;
/// Queries evaluated at once, a core; more only share the same cores and hold more memory.
const CONCURRENT_A_CORE: usize = 2;
/// Queries that wait for a slot: some dashboards opened at once. Beyond, a client hears at once that it should come back,
/// which is kinder than a time-out after half a minute in a queue.
const WAITING_MAX: usize = 128;
/// Samples that all queries hold together, those whose answers are being sent among them: two of the largest, 1.6 GB at
/// worst. Without it the slots times the largest query would be the bound.
const SAMPLES_TOGETHER_MAX: u64 = 2 * SAMPLES_MAX;

/// How often one that found no room looks again; what it waits for takes longer.
const ROOM_LOOK: Duration = Duration::from_millis(20);

/// The bounds of one evaluator. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Load {
    places: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    samples: Pool,
    large: Arc<Semaphore>,
}

/// The right to evaluate one query; given back when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _slot: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Load {
    pub(super) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(slots() + WAITING_MAX)),
            slots: Arc::new(Semaphore::new(slots())),
            samples: Pool::new(SAMPLES_TOGETHER_MAX),
            large: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a slot, in the order of the calls.
    pub(super) async fn slot(&self) -> Result<Slot, QueryError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| QueryError::Busy(WAITING_MAX))?;
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        Ok(Slot {
            _slot: slot.expect("the semaphore is never closed"),
            _place: place,
        })
    }

    /// Waits until there is room for a query of any size. While this is held no other of those that found none begins.
    pub(super) async fn room(&self) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.large).acquire_owned().await;
        while self.samples.left() < SAMPLES_MAX {
            tokio::time::sleep(ROOM_LOOK).await;
        }
        turn.expect("the semaphore is never closed")
    }

    /// What one query may read.
    pub(super) fn budget(&self) -> Budget {
        Budget::new(SAMPLES_MAX, SERIES_MAX).within(&self.samples)
    }

    /// What a query may read on a thread that must not block: less than a millisecond's worth.
    pub(super) fn budget_at_once(&self) -> Budget {
        Budget::new(SAMPLES_AT_ONCE_MAX, SERIES_AT_ONCE_MAX).within(&self.samples)
    }

    /// Slots nobody has, and samples nobody holds.
    pub(super) fn free(&self) -> (usize, u64) {
        (self.slots.available_permits(), self.samples.left())
    }
}

/// Queries one evaluator works on at once.
pub(crate) fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) * CONCURRENT_A_CORE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_the_queue_full_is_turned_away() {
        let load = Load::new();
        let mut held = Vec::new();
        for _ in 0..slots() {
            held.push(load.slot().await.expect("a free slot"));
        }
        let waiting: Vec<_> = (0..WAITING_MAX)
            .map(|_| {
                let load = load.clone();
                tokio::spawn(async move { load.slot().await.map(drop) })
            })
            .collect();
        while load.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(load.slot().await, Err(QueryError::Busy(_))));
        held.clear();
        for one in waiting {
            assert!(one.await.expect("no panic").is_ok());
        }
        assert_eq!(load.free().0, slots());
    }
}
