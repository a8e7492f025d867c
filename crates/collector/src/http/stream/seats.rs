//! How many event streams are open, together and per token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;

use crate::http::{ApiError, ApiResult};
use crate::self_metrics::SelfMetrics;

/// Streams at once; each evaluates some queries per second.
const SEATS_MAX: usize = 512;
/// Streams of one token, and so of one viewer: some browsers full of tabs. Sixteen viewers can fill the rest, one cannot.
const SEATS_PER_TOKEN_MAX: usize = 32;
/// When to come back: a person has to close a tab first.
const RETRY_AFTER_S: u64 = 10;

/// Seats that are taken, by token id. Sessions of a browser count for the token they were made with.
#[derive(Clone, Default)]
pub(super) struct Seats(Arc<Mutex<HashMap<String, usize>>>);

/// One stream's seat; free again when it is dropped.
pub(super) struct Seat {
    seats: Seats,
    token: String,
    tabs: IntGauge,
}

impl Seats {
    /// A seat for a stream of a token.
    ///
    /// # Errors
    /// 429 when the token has as many as it may, 503 when there is none at all.
    pub(super) fn take(&self, metrics: &SelfMetrics, token: &str) -> ApiResult<Seat> {
        self.count(token)?;
        metrics.tabs.inc();
        Ok(Seat {
            seats: self.clone(),
            token: token.to_owned(),
            tabs: metrics.tabs.clone(),
        })
    }

    fn count(&self, token: &str) -> ApiResult<()> {
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let of_token = taken.get(token).copied().unwrap_or_default();
        if of_token >= SEATS_PER_TOKEN_MAX {
            let detail = format!(
                "{of_token} streams of the token {token} are open, which is the most one token may have; close some tabs"
            );
            return Err(ApiError::too_many(detail, RETRY_AFTER_S));
        }
        if all >= SEATS_MAX {
            let detail = format!("{all} streams are open, which is the most there may be; close some tabs");
            return Err(ApiError::busy(detail, RETRY_AFTER_S));
        }
        *taken.entry(token.to_owned()).or_default() += 1;
        Ok(())
    }

    fn give_back(&self, token: &str) {
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

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.give_back(&self.token);
        self.tabs.dec();
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn count(seats: &Seats, token: &str) -> Result<(), StatusCode> {
        seats.count(token).map_err(|error| error.status())
    }

    #[test]
    fn a_token_has_32_seats_and_all_have_512() {
        let seats = Seats::default();
        for token in 0..SEATS_MAX / SEATS_PER_TOKEN_MAX {
            let token = format!("token-{token}");
            assert!(
                (0..SEATS_PER_TOKEN_MAX).all(|_| count(&seats, &token).is_ok()),
                "{token}"
            );
            assert_eq!(
                count(&seats, &token),
                Err(StatusCode::TOO_MANY_REQUESTS),
                "{token}"
            );
        }
        assert_eq!(count(&seats, "one more"), Err(StatusCode::SERVICE_UNAVAILABLE));
        for _ in 0..SEATS_PER_TOKEN_MAX {
            seats.give_back("token-3");
        }
        assert_eq!(seats.lock().get("token-3"), None);
        assert_eq!(count(&seats, "one more"), Ok(()));
    }
}
