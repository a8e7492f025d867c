//! `/-/healthy` and `/-/ready`, for whoever restarts or balances us. They need no token and say nothing else.

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use super::{ApiError, ApiResult};
use crate::Shared;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
}

async fn healthy() -> &'static str {
    "ok\n"
}

/// Ready means: the state can be read, and we are not about to stop. A collector whose disk is full is ready, and says so:
/// it answers queries and drives runs, and whoever takes it out of service takes those away too.
async fn ready(State(app): State<Shared>) -> ApiResult<String> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::unavailable("the collector is stopping"));
    }
    app.store.state.audit(None, 1).await?;
    let space = app.store.series.disk_space();
    Ok(match space.blocked {
        None => "ready\n".to_owned(),
        Some(_) => format!("ready, but {}\n", crate::space::blocked(&space)),
    })
}
