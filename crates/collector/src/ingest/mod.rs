//! What agents send. Both streams begin alike: the `authorization` header names a token, the first message is a hello.
//! Then [`telemetry`] takes samples from a WebSocket, and [`control`] exchanges commands and reports over a gRPC stream.
//!
//! ```text
//! open ─▶ hello::greet ─▶ HelloAck ─▶ telemetry::serve | control::serve     until either side ends
//! ```

pub mod control;
pub mod hello;
mod refusals;
pub mod remote_write;
pub mod telemetry;

use std::time::Duration;

use axum::Router;
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
        .reset_fallback()
        .merge(telemetry::routes().with_state(app))
}

/// A node's open stream, counted while it lives.
struct Connection {
    app: Shared,
    node: NodeName,
}

impl Connection {
    fn open(app: &Shared, node: NodeName) -> Self {
        app.metrics.agent_streams.inc();
        Self {
            app: app.clone(),
            node,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.app.metrics.agent_streams.dec();
        tracing::info!(node = %self.node, "an agent's stream ended");
    }
}
