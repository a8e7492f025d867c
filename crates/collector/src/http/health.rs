//! `/-/healthy` and `/-/ready`, for whoever restarts or balances us. They need no token and say nothing else.

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

/// How long an answer about the state database is good for: anybody may ask, and must not keep the disk busy.
const LOOKED_WITHIN: Duration = Duration::from_secs(1);
/// How long the state database may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the state database answered last: when, and whether it could be read.
type LastLook = Arc<Mutex<Option<(Instant, bool)>>>;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .layer(Extension(LastLook::default()))
}

async fn healthy() -> &'static str {
    "ok\n"
}

/// Ready means: the state can be read, and we are not about to stop. A collector whose disk is full is ready, and says so:
/// it answers queries and drives runs, and whoever takes it out of service takes those away too.
async fn ready(
    State(state): State<StateStore>,
    State(series): State<SeriesStore>,
    State(tasks): State<Tasks>,
    Extension(last_look): Extension<LastLook>,
) -> ApiResult<String> {
    if tasks.stopping().is_cancelled() {
        return Err(ApiError::unavailable("the collector is stopping"));
    }
    if !can_read_state(&state, &last_look).await {
        return Err(ApiError::unavailable(
            "the state database cannot be read; the collector's log says why",
        ));
    }
    let space = series.disk_space();
    Ok(match space.blocked {
        None => "ready\n".to_owned(),
        Some(_) => format!("ready, but {}\n", crate::space::blocked(&space)),
    })
}

/// Reads the state database, or takes the answer of a moment ago. Others wait for the one who reads.
async fn can_read_state(state: &StateStore, last_look: &LastLook) -> bool {
    let mut last_look = last_look.lock().await;
    if let Some((at, could_be_read)) = *last_look
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
    *last_look = Some((Instant::now(), could_be_read));
    could_be_read
}
