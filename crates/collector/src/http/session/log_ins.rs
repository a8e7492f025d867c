//! Limits for log-ins in progress. Anyone may start one, so they have their own limits. When there are too many, the oldest one is ended,
//! so that many slow log-ins cannot prevent others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::http::{ApiError, ApiResult};

/// Number of log-ins whose body is being read. A body is one packet, so a browser needs one round trip. A further log-in ends the oldest.
const LOG_INS_MAX: usize = 32;
/// How long the whole body may take.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// Log-ins whose body is being read.
#[derive(Clone)]
pub(super) struct LogIns {
    inner: Arc<Mutex<Inner>>,
    body_within: Duration,
}

#[derive(Default)]
struct Inner {
    next_id: u64,
    /// By id, so that the first is the oldest.
    under_way: BTreeMap<u64, CancellationToken>,
}

/// A log-in in progress. Dropping it removes it.
struct Entry {
    log_ins: LogIns,
    id: u64,
    replaced: CancellationToken,
}

impl Default for LogIns {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
            body_within: BODY_WITHIN,
        }
    }
}

impl LogIns {
    /// Reads a body.
    ///
    /// # Errors
    /// Returns 408 if it takes too long, and 503 if a newer log-in replaced it.
    pub(super) async fn within_limits<T>(&self, read: impl Future<Output = T>) -> ApiResult<T> {
        let entry = self.begin();
        tokio::select! {
            read = timeout(self.body_within, read) => read.map_err(|_| late()),
            () = entry.replaced.cancelled() => Err(ApiError::unavailable(
                "the login took too long while others were waiting; try again",
            )),
        }
    }

    fn begin(&self) -> Entry {
        let replaced = CancellationToken::new();
        let mut inner = self.lock();
        if inner.under_way.len() >= LOG_INS_MAX
            && let Some((_, oldest)) = inner.under_way.pop_first()
        {
            oldest.cancel();
        }
        let id = inner.next_id;
        inner.next_id += 1;
        inner.under_way.insert(id, replaced.clone());
        Entry {
            log_ins: self.clone(),
            id,
            replaced,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.log_ins.lock().under_way.remove(&self.id);
    }
}

fn late() -> ApiError {
    let seconds = BODY_WITHIN.as_secs();
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        format!("the body of the log-in did not arrive within {seconds} s"),
    )
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_slow_one_ends_when_its_time_is_up_or_for_a_newer_one() {
        let hasty = LogIns {
            body_within: Duration::from_millis(10),
            ..LogIns::default()
        };
        let ended = hasty.within_limits(pending::<()>()).await;
        assert_eq!(
            ended.map_err(|error| error.status()),
            Err(StatusCode::REQUEST_TIMEOUT)
        );
        assert!(hasty.lock().under_way.is_empty());

        let log_ins = LogIns {
            body_within: Duration::MAX,
            ..LogIns::default()
        };
        let slow = || {
            let log_ins = log_ins.clone();
            tokio::spawn(async move { log_ins.within_limits(pending::<()>()).await })
        };
        let slow: Vec<_> = (0..LOG_INS_MAX).map(|_| slow()).collect();
        while log_ins.lock().under_way.len() < LOG_INS_MAX {
            tokio::task::yield_now().await;
        }
        assert!(log_ins.within_limits(ready(())).await.is_ok());
        let first = slow.into_iter().next().expect("there are some");
        let ended = first.await.expect("it does not panic");
        assert_eq!(
            ended.map_err(|error| error.status()),
            Err(StatusCode::SERVICE_UNAVAILABLE)
        );
        assert_eq!(log_ins.lock().under_way.len(), LOG_INS_MAX - 1);
    }
}
