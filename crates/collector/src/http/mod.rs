//! The HTTP service: the API, the event stream, `/metrics` and the dashboard; and the router that joins it with the service for agents.
//!
//! ```text
//! request ─▶ client's address ─▶ shape errors ─▶ headers ─┬▶ health checks
//!                                                         ├▶ log-in, with limits of its own
//!                                                         └▶ compression ─▶ auth (route → role, CSRF) ─▶ load bound ─▶ time ─▶ handler
//! agents  ─▶ client's address ─▶ ingest           none of the other layers: they would cut or re-encode its streams
//! ```
//! The layers before the load bound read no disk, so that a client without a token cannot exhaust it. One [`table`] lists the role of each
//! endpoint; endpoints that are not in it need the role admin to change and viewer to read.

pub mod auth;
pub mod error;

mod actions;
pub mod alerts;
mod bundle;
pub mod checkpoints;
mod diagnoses;
pub mod events;
mod findings;
mod goodput;
mod handling;
pub mod inspect;
pub mod logs;
pub mod nodes;
mod run_actions;
mod run_changes;
mod run_check;
mod run_memory;
pub mod runs;
pub mod session;
mod silences;
pub mod store;
pub mod tokens;

pub mod metrics;
pub mod prometheus;
pub mod query;
pub mod remote_write;
pub mod stream;

pub mod assets;
pub mod limits;
pub mod table;

pub(crate) mod client_address;

mod description;
mod exposition;
mod health;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod unshown;

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::openapi::OpenApi;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get};
use axum::{Extension, Router};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, Predicate, SizeAbove};

use crate::app::App;

use self::table::Table;

pub use auth::Caller;
pub use error::{ApiError, ApiResult};

/// Maximum size of a request body in bytes, except for remote write. The specification of a run with all its arguments is a tenth of this.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Minimum size of an answer that is compressed: a smaller one fits into one packet anyway.
const COMPRESSED_BYTES_MIN: u64 = 1_024;

/// Returns the router of the whole port.
pub(crate) fn router(app: App) -> Router {
    http(app.clone())
        .merge(crate::ingest::router(Arc::clone(&app.ingest)))
        .layer(from_fn_with_state(app, client_address::find))
}

/// Returns the endpoints that need a role, and the document that describes them. The document also describes the log-in and the stream, which
/// have routes of their own.
fn endpoints() -> (Router<App>, OpenApi) {
    let mut document = table::document();
    let described = [
        ("/api/session", session::log_in_description()),
        ("/api/stream", stream::description()),
    ];
    let router = ApiRouter::new()
        .merge(session::routes())
        .merge(tokens::routes())
        .merge(nodes::routes())
        .merge(events::routes())
        .merge(runs::routes())
        .merge(run_actions::routes())
        .merge(run_changes::routes())
        .merge(run_check::routes())
        .merge(run_memory::routes())
        .merge(checkpoints::routes())
        .merge(findings::routes())
        .merge(goodput::routes())
        .merge(inspect::routes())
        .merge(logs::routes())
        .merge(alerts::routes())
        .merge(diagnoses::routes())
        .merge(bundle::routes())
        .merge(handling::routes())
        .merge(actions::routes())
        .merge(silences::routes())
        .merge(prometheus::routes())
        .merge(store::routes())
        .merge(metrics::routes())
        .finish_api(&mut document);
    for (path, operations) in described {
        description::add(&mut document, path, operations);
    }
    (router, document)
}

/// Returns the table of endpoints and their roles.
#[must_use]
pub fn endpoint_table() -> Table {
    Table::of(&endpoints().1)
}

fn http(app: App) -> Router {
    let (endpoints, document) = endpoints();
    let table = Table::of(&document);
    let limited = endpoints
        .merge(stream::routes())
        .route(
            "/api/openapi.json",
            get(table::openapi).with_state(Arc::new(document)),
        )
        .route("/api", any(error::unknown_endpoint))
        .route("/api/{*rest}", any(error::unknown_endpoint))
        .fallback(assets::serve)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(limits::Load::default(), limits::bound))
        .layer(from_fn_with_state(app.clone(), auth::guard))
        .layer(Extension(table))
        .layer(compression());
    limited
        .merge(session::log_in_routes())
        .merge(health::routes())
        .with_state(app.clone())
        .layer(from_fn_with_state(app.clone(), limits::headers))
        .layer(from_fn_with_state(app, error::shape))
        .layer(Extension(auth::BadTokens::default()))
}

/// The fastest compression level. One megabyte of numbers shrinks to 31 % in 7 ms with gzip, and to 23 % in 3 ms with zstd; gzip's usual
/// level takes 38 ms to shrink it to 26 %.
fn compression() -> CompressionLayer<impl Predicate> {
    CompressionLayer::new()
        .gzip(true)
        .zstd(true)
        .quality(CompressionLevel::Fastest)
        .compress_when(DefaultPredicate::new().and(SizeAbove::new(COMPRESSED_BYTES_MIN)))
}
