//! Limits of the HTTP service, and the headers that every answer has.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::table::Table;
use crate::config::Config;

/// Number of requests processed at the same time. Further requests are rejected at once instead of queued. Each may hold a body of up to 16
/// MiB.
const REQUESTS_MAX: usize = 256;
/// Time limit of a request: longer than any query may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(60);

/// Time limit of long requests. A backup starts to answer when the copy is made, which takes long for many gigabytes; deletions rewrite
/// chunks.
pub(super) const LONG_WITHIN: Duration = Duration::from_secs(3_600);
/// Allows only the dashboard's own files; allows to compile WebAssembly, and charts to set styles on their elements; forbids embedding in
/// frames.
const CONTENT_POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Slots for requests in progress.
#[derive(Clone)]
pub(super) struct Load(Arc<Semaphore>);

impl Default for Load {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(REQUESTS_MAX)))
    }
}

/// Rejects requests if too many are in progress, and ends those that take too long.
pub(super) async fn bound(
    State(load): State<Load>,
    Extension(table): Extension<Table>,
    matched: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(_slot) = load.0.try_acquire() else {
        let detail = format!("{REQUESTS_MAX} requests are already in progress; try again in a second");
        return ApiError::unavailable(detail).into_response();
    };
    let endpoint = matched.and_then(|path| table.endpoint(request.method(), path.as_str()).copied());
    let within = endpoint
        .and_then(|endpoint| endpoint.within)
        .unwrap_or(REQUEST_WITHIN);
    match tokio::time::timeout(within, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let seconds = within.as_secs();
            ApiError::unavailable(format!(
                "the request did not finish within {seconds} s; request less data"
            ))
            .into_response()
        }
    }
}

/// Sets the security headers for browsers.
pub(super) async fn headers(State(config): State<Arc<Config>>, request: Request, next: Next) -> Response {
    let api = request.uri().path().starts_with("/api") || request.uri().path() == "/metrics";
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "no-referrer");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    if api {
        set(header::CACHE_CONTROL, "no-store");
    }
    if config.tls.is_some() {
        set(header::STRICT_TRANSPORT_SECURITY, "max-age=31536000");
    }
    response
}
