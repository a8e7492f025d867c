//! The ages of the orders to remove checkpoints that this collector has sent or holds, by a clock that cannot be set.
//!
//! An order is valid for a limited time, because a person may pin a checkpoint meanwhile. The times in the order are by the machine's clock:
//! if that is set back, the order seems to be younger than it is. After a restart of the collector only those times are known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::ident::AttemptId;
use domain::run::checkpoint::RemovalOrder;

const VALID_FOR: Duration = Duration::from_millis(RemovalOrder::VALID_MS.unsigned_abs());
/// How long the age of an order is kept. An order is dropped soon after its validity, or its node has accepted it.
const KEPT_FOR: Duration = Duration::from_secs(4 * 3_600);

/// When this process first held each order: by attempt and number of the action.
#[derive(Debug, Default)]
pub(super) struct RemovalAges {
    first_held: Mutex<HashMap<(AttemptId, u32), Instant>>,
}

impl RemovalAges {
    /// Returns for how long an order may still be valid, in milliseconds, judged by the time for which this process has held it.
    pub(super) fn remaining_ms(&self, attempt: &AttemptId, n: u32) -> u64 {
        self.remaining_ms_at(attempt, n, Instant::now())
    }

    fn remaining_ms_at(&self, attempt: &AttemptId, n: u32, now: Instant) -> u64 {
        let age = |held: Instant| now.saturating_duration_since(held);
        let mut first_held = self.first_held.lock().unwrap_or_else(PoisonError::into_inner);
        first_held.retain(|_, held| age(*held) < KEPT_FOR);
        let held = *first_held.entry((attempt.clone(), n)).or_insert(now);
        let remaining = VALID_FOR.saturating_sub(age(held));
        u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::ident::{AttemptNo, RunId};

    use super::*;

    #[test]
    fn an_order_expires_whatever_the_clock_of_the_machine_says() {
        let ages = RemovalAges::default();
        let attempt = AttemptId::new(RunId::new("r").unwrap(), AttemptNo(1));
        let start = Instant::now();
        for (n, after_s, remaining_ms) in [
            (1, 0, 900_000),
            (1, 600, 300_000),
            (2, 600, 900_000),
            (1, 900, 0),
            (1, 901, 0),
            (2, 1_200, 300_000),
        ] {
            let now = start + Duration::from_secs(after_s);
            assert_eq!(
                ages.remaining_ms_at(&attempt, n, now),
                remaining_ms,
                "{n} after {after_s} s"
            );
        }
    }
}
