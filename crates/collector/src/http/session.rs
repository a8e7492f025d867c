//! `/api/session`: a browser trades a token for a cookie it cannot read, and a CSRF secret it sends back.
//!
//! The cookie is random and kept as a hash; sessions survive a restart of the collector and end with their token.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use domain::api::session::{Login, Role, Session};

use super::auth::{COOKIE, Caller, Throttle, cookie, same_origin};
use super::{ApiError, ApiResult};
use crate::Shared;
use crate::tokens::{hash, random_secret};

/// A week: a wall display stays logged in, a forgotten browser does not for ever.
const LIFETIME_S: i64 = 7 * 24 * 3_600;
/// A token in JSON; anyone may send this, so it is small.
const BODY_BYTES_MAX: usize = 4 << 10;

pub(super) fn routes() -> Router<Shared> {
    let log_in = post(log_in).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    Router::new().route("/api/session", get(show).delete(log_out).merge(log_in))
}

/// `GET`: who am I?
async fn show(State(app): State<Shared>, Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(describe(&app, caller.role, caller.csrf))
}

/// `POST` a token: sets the cookie.
async fn log_in(
    State(app): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(throttle): Extension<Throttle>,
    uri: Uri,
    headers: HeaderMap,
    Json(login): Json<Login>,
) -> ApiResult<Response> {
    same_origin(&headers, &uri)?;
    let now_ms = app.now_ms();
    throttle.check_login(peer.ip(), now_ms)?;
    let principal = app.tokens.authenticate(login.token.trim(), now_ms).await?;
    let Some(principal) = principal.filter(|principal| principal.role.allows(Role::Viewer)) else {
        app.metrics.auth_failures.inc();
        throttle.login_failed(peer.ip(), now_ms);
        return Err(ApiError::unauthorized(
            "this token does not open the dashboard; the admin's own was printed at the first start and is kept in the data \
             folder as admin.token",
        ));
    };
    let (secret, csrf) = (random_secret(""), random_secret(""));
    let expires_ms = now_ms + LIFETIME_S * 1_000;
    app.audit(&principal.id, "log_in", "dashboard").await?;
    let session = (&hash(secret.expose()), &principal.id, csrf.expose());
    app.store
        .state
        .create_browser_session(session.0, session.1, session.2, now_ms, expires_ms)
        .await?;
    let body = Json(describe(&app, principal.role, csrf.expose().to_owned()));
    Ok(with_cookie(&app, secret.expose(), LIFETIME_S, body))
}

/// `DELETE`: ends the session and clears the cookie.
async fn log_out(State(app): State<Shared>, headers: HeaderMap) -> ApiResult<Response> {
    if let Some(cookie) = cookie(&headers) {
        app.store.state.delete_browser_session(&hash(cookie)).await?;
    }
    Ok(with_cookie(&app, "", 0, StatusCode::NO_CONTENT))
}

fn describe(app: &Shared, role: Role, csrf: String) -> Session {
    Session {
        role,
        csrf,
        version: env!("CARGO_PKG_VERSION").into(),
        now_ms: app.now_ms(),
    }
}

fn with_cookie(app: &Shared, value: &str, lifetime_s: i64, body: impl IntoResponse) -> Response {
    let secure = if app.config.tls.is_some() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lifetime_s}{secure}");
    let mut response = body.into_response();
    let mut cookie = HeaderValue::from_str(&cookie).expect("base64url and literals fit a header");
    cookie.set_sensitive(true);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}
