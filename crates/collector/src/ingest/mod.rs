//! What agents send. Both streams begin in the same way: the `authorization` header holds a token, and the first message is a hello.
//! Then [`telemetry`] receives samples over a WebSocket, and [`control`] exchanges commands and reports over a gRPC stream.
//!
//! ```text
//! head ─▶ hello::admit: token, slot ─▶ hello (at most 512 KiB) ─▶ hello::greet ─▶ HelloAck ─▶ telemetry::serve | control::serve
//!           │ no valid token: 401         │ none within 10 s: the stream ends                       until either side ends
//!           │ no slot: 503, Retry-After   └ its slot is free again
//! ```
//! Without a valid token, nothing of a stream is read.

pub mod control;
pub(crate) mod handles;
pub mod hello;
mod open_stream;
mod refusals;
pub mod telemetry;

mod first_bytes;
mod hello_slots;

pub(crate) use handles::{Bounds, Ingest};

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn;
use tonic::service::Routes;

/// Everything agents connect to.
pub(crate) fn router(ingest: Arc<Ingest>) -> Router {
    // Without the reset every unknown path would be answered by gRPC's "unimplemented", which to a browser is a 200.
    Routes::new(control::service(Arc::clone(&ingest)))
        .prepare()
        .into_axum_router()
        .layer(from_fn(first_bytes::limit))
        .reset_fallback()
        .merge(telemetry::routes().with_state(ingest))
}
