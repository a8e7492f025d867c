//! Limits how many event streams are open, in total and per token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;

use crate::http::{ApiError, ApiResult};
use crate::self_metrics::SelfMetrics;

/// Maximum number of streams. Each evaluates some queries per second.
const SLOTS_MAX: usize = 512;
/// Maximum number of streams of one token, and so of one viewer: some browsers full of tabs. Sixteen viewers can take all streams, one
/// cannot.
const SLOTS_PER_TOKEN_MAX: usize = 32;
/// After how many seconds a tab should retry: a person has to close another tab first.
const RETRY_AFTER_S: u64 = 10;

/// The number of streams by token id. Browser sessions count for the token with which they were created.
#[derive(Clone, Default)]
pub(super) struct StreamSlots(Arc<Mutex<HashMap<String, usize>>>);

/// The slot of one stream. Dropping it frees the slot.
pub(super) struct StreamSlot {
    slots: StreamSlots,
    token: String,
    tabs: IntGauge,
}

impl StreamSlots {
    /// Takes a slot for a stream of a token.
    ///
    /// # Errors
    /// Returns 429 if the token has its maximum of streams, and 503 if no slot is free at all.
    pub(super) fn take(&self, metrics: &SelfMetrics, token: &str) -> ApiResult<StreamSlot> {
        self.count(token)?;
        metrics.tabs.inc();
        Ok(StreamSlot {
            slots: self.clone(),
            token: token.to_owned(),
            tabs: metrics.tabs.clone(),
        })
    }

    fn count(&self, token: &str) -> ApiResult<()> {
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let of_token = taken.get(token).copied().unwrap_or_default();
        if of_token >= SLOTS_PER_TOKEN_MAX {
            let detail = format!(
                "{of_token} streams of the token {token} are already open, the maximum per token; close some tabs"
            );
            return Err(ApiError::too_many(detail, RETRY_AFTER_S));
        }
        if all >= SLOTS_MAX {
            let detail = format!("{all} streams are already open, the maximum; close some tabs");
            return Err(ApiError::busy(detail, RETRY_AFTER_S));
        }
        *taken.entry(token.to_owned()).or_default() += 1;
        Ok(())
    }

    fn release(&self, token: &str) {
        let mut taken = self.lock();
        if let Some(of_token) = taken.get_mut(token) {
            *of_token -= 1;
            if *of_token == 0 {
                taken.remove(token);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.slots.release(&self.token);
        self.tabs.dec();
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn count(slots: &StreamSlots, token: &str) -> Result<(), StatusCode> {
        slots.count(token).map_err(|error| error.status())
    }

    #[test]
    fn a_token_has_32_slots_and_all_have_512() {
        let slots = StreamSlots::default();
        for token in 0..SLOTS_MAX / SLOTS_PER_TOKEN_MAX {
            let token = format!("token-{token}");
            assert!(
                (0..SLOTS_PER_TOKEN_MAX).all(|_| count(&slots, &token).is_ok()),
                "{token}"
            );
            assert_eq!(
                count(&slots, &token),
                Err(StatusCode::TOO_MANY_REQUESTS),
                "{token}"
            );
        }
        assert_eq!(count(&slots, "one more"), Err(StatusCode::SERVICE_UNAVAILABLE));
        for _ in 0..SLOTS_PER_TOKEN_MAX {
            slots.release("token-3");
        }
        assert_eq!(slots.lock().get("token-3"), None);
        assert_eq!(count(&slots, "one more"), Ok(()));
    }
}
