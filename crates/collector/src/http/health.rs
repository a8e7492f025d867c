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

/// Ready means: the state can be read, and we are not about to stop.
async fn ready(State(app): State<Shared>) -> ApiResult<&'static str> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::unavailable("the collector is stopping"));
    }
    app.store.state.audit(None, 1).await?;
    Ok("ready\n")
}
