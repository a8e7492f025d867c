//! `/-/healthy` and `/-/ready`, for programs that restart or balance collectors. They need no token and reveal nothing else.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Router};
use store::SeriesStore;
use store::StateStore;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{ApiError, ApiResult};
use crate::app::App;
use crate::tasks::Tasks;

/// How long the result of a check of the state database is reused: any client may request it, and must not keep the disk busy.
const LOOKED_WITHIN: Duration = Duration::from_secs(1);
/// How long the state database may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The last check of the state database: its time, and whether the database could be read.
type LastCheck = Arc<Mutex<Option<(Instant, bool)>>>;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .layer(Extension(LastCheck::default()))
}

async fn healthy() -> &'static str {
    "ok\n"
}

/// Returns 200 if the state can be read and the collector is not stopping. A collector with a full disk is ready, and the text says so: it
/// answers queries and controls runs, and taking it out of service would stop those too.
async fn ready(
    State(state): State<StateStore>,
    State(series): State<SeriesStore>,
    State(tasks): State<Tasks>,
    Extension(last_check): Extension<LastCheck>,
) -> ApiResult<String> {
    if tasks.stopping().is_cancelled() {
        return Err(ApiError::unavailable("the collector is stopping"));
    }
    if !can_read_state(&state, &last_check).await {
        return Err(ApiError::unavailable(
            "the state database cannot be read; the collector's log says why",
        ));
    }
    let space = series.disk_space();
    Ok(match space.blocked {
        None => "ready\n".to_owned(),
        Some(_) => format!("ready, but {}\n", crate::disk_space::blocked(&space)),
    })
}

/// Reads the state database, or returns the recent result. While one request reads, others wait for its result.
async fn can_read_state(state: &StateStore, last_check: &LastCheck) -> bool {
    let mut last_check = last_check.lock().await;
    if let Some((at, could_be_read)) = *last_check
        && at.elapsed() < LOOKED_WITHIN
    {
        return could_be_read;
    }
    let could_be_read = match timeout(ANSWER_WITHIN, state.audit(None, 1)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            tracing::error!(%error, "the state database cannot be read");
            false
        }
        Err(_) => {
            tracing::error!(
                "the state database did not answer within {} s",
                ANSWER_WITHIN.as_secs()
            );
            false
        }
    };
    *last_check = Some((Instant::now(), could_be_read));
    could_be_read
}
