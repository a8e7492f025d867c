//! The limits of an evaluator: queries evaluated at the same time, queries waiting for a slot, and samples held by all queries.
//!
//! ```text
//! query ─▶ place? no: rejected ─▶ slot (first come, first served) ─▶ evaluated ─▶ result being written
//!          └──────── held until the work ends ────────────────────┘  └─ its samples are held until then ─┘
//!                           no room for its samples: evaluated again when there is room, one such query at a time
//! ```

use std::sync::Arc;
use std::time::Duration;

use domain::series::{Budget, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{QueryError, SAMPLES_MAX, SERIES_MAX};

/// Maximum number of samples, and of series, that a query may read on a thread that must not block: one month of one-minute samples.
const SAMPLES_AT_ONCE_MAX: u64 = 1 << 16;
const SERIES_AT_ONCE_MAX: u64 = 16;
/// Number of queries evaluated at the same time, per core. More would only share the same cores and hold more memory.
const CONCURRENT_A_CORE: usize = 2;
/// Number of queries that wait for a slot: some dashboards opened at once. Further queries are rejected at once, which is better for the
/// client than a timeout after half a minute in a queue.
const WAITING_MAX: usize = 128;
/// Maximum number of samples that all queries hold together, including those whose results are being sent: two of the largest, at most 1.6
/// GB. Otherwise the bound would be the number of slots times the largest query.
const SAMPLES_TOGETHER_MAX: u64 = 2 * SAMPLES_MAX;

/// How often a query that found no room checks again. What it waits for takes longer.
const ROOM_LOOK: Duration = Duration::from_millis(20);

/// The limits of one evaluator. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Load {
    places: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    samples: Pool,
    large: Arc<Semaphore>,
}

/// The right to evaluate one query. Dropping it frees the slot.
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

    /// Waits until there is room for a query of any size. While the permit is held, no other query that found no room begins.
    pub(super) async fn room(&self) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.large).acquire_owned().await;
        while self.samples.left() < SAMPLES_MAX {
            tokio::time::sleep(ROOM_LOOK).await;
        }
        turn.expect("the semaphore is never closed")
    }

    /// Returns the budget of one query.
    pub(super) fn budget(&self) -> Budget {
        Budget::new(SAMPLES_MAX, SERIES_MAX).within(&self.samples)
    }

    /// Returns the budget of a query on a thread that must not block: less than one millisecond of work.
    pub(super) fn budget_at_once(&self) -> Budget {
        Budget::new(SAMPLES_AT_ONCE_MAX, SERIES_AT_ONCE_MAX).within(&self.samples)
    }

    /// Returns the number of free slots, and of samples that are not held.
    pub(super) fn free(&self) -> (usize, u64) {
        (self.slots.available_permits(), self.samples.left())
    }
}

/// Returns the number of queries that one evaluator evaluates at the same time.
pub(crate) fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) * CONCURRENT_A_CORE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_query_is_refused_if_the_queue_is_full() {
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
