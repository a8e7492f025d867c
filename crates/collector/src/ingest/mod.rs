//! What agents send. Both streams begin alike: the `authorization` header holds a token, the first message is a hello.
//! Then [`telemetry`] takes samples from a WebSocket, and [`control`] exchanges commands and reports over a gRPC stream.
//!
//! ```text
//! head ─▶ hello::admit: token, place ─▶ hello (at most 512 KiB) ─▶ hello::greet ─▶ HelloAck ─▶ telemetry::serve | control::serve
//!           │ no valid token: 401          │ none within 10 s: the stream ends                       until either side ends
//!           │ no place: 503, Retry-After   └ its place is free again
//! ```
//! Nothing is read of a stream without a valid token.

pub mod control;
pub mod hello;
mod refusals;
pub mod remote_write;
pub mod telemetry;

mod first_bytes;
mod waiting;

pub use waiting::WaitingStreams;

use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use domain::ident::NodeName;
use tonic::service::Routes;

use crate::Shared;

/// How long an agent may take for its first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Everything agents connect to.
pub(crate) fn router(app: Shared) -> Router {
    // Without the reset every unknown path would be answered by gRPC's "unimplemented", which to a browser is a 200.
    Routes::new(control::service(app.clone()))
        .prepare()
        .into_axum_router()
        .layer(from_fn(first_bytes::limit))
        .reset_fallback()
        .merge(telemetry::routes().with_state(app))
}

/// A node's open stream, counted while it lives.
struct OpenStream {
    app: Shared,
    node: NodeName,
}

impl OpenStream {
    fn count(app: &Shared, node: NodeName) -> Self {
        app.metrics.agent_streams.inc();
        Self {
            app: app.clone(),
            node,
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.app.metrics.agent_streams.dec();
        tracing::info!(node = %self.node, "an agent's stream ended");
    }
}
