//! `/api/session`: a browser exchanges a token for a cookie that scripts cannot read, and a CSRF secret that it sends with changing
//! requests.
//!
//! The cookie is random and stored as a hash. Sessions survive a restart of the collector and end with their token.

mod log_ins;

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use aide::openapi::PathItem;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use domain::api::session::{Login, Role, Session};
use listener::Connection;

use self::log_ins::LogIns;
use super::auth::{Attempt, BadTokens, COOKIE, Caller, cookie, same_origin};
use super::client_address::ClientAddress;
use super::description::{answers, answers_nothing, body_is, operation};
use super::table::{needs, needs_no_token};
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::clock;
use crate::config::Config;
use crate::tokens::Tokens;
use crate::tokens::{Principal, SESSION_LIFETIME_MS};

/// Maximum size of a log-in body, in bytes: a token in JSON. Anyone may send a log-in, so the limit is small.
const BODY_BYTES_MAX: usize = 4 << 10;

/// The endpoints that need a session.
pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/session",
        get_with(show, needs(Role::Viewer, "The current session"))
            .delete_with(log_out, answers_nothing(needs(Role::Viewer, "Ends the session"))),
    )
}

/// The log-in endpoint. Anyone may use it, so it has its own limits and does not take capacity from other requests.
pub(super) fn log_in_routes() -> Router<App> {
    Router::new()
        .route("/api/session", post(log_in))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(Extension(LogIns::default()))
}

/// Describes the log-in endpoint.
pub(super) fn log_in_description() -> PathItem {
    let log_in = needs_no_token("Logs a browser in: exchanges a token for a session cookie");
    PathItem {
        post: Some(operation(answers::<200, Json<Session>>(body_is::<Json<Login>>(
            log_in,
        )))),
        ..PathItem::default()
    }
}

/// `GET`: returns the current session.
async fn show(Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(describe(caller.role, caller.csrf))
}

/// `POST` with a token: sets the cookie.
async fn log_in(
    State(App {
        config,
        tokens,
        metrics,
        events,
        ..
    }): State<App>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    Extension(bad_tokens): Extension<BadTokens>,
    Extension(log_ins): Extension<LogIns>,
    request: Request,
) -> ApiResult<Response> {
    same_origin(request.headers(), request.uri())?;
    let connection = request.extensions().get::<Connection>().cloned();
    let body = log_ins
        .within_limits(Json::<Login>::from_request(request, &()))
        .await?;
    let Json(login) = match body {
        Ok(login) => login,
        // The outermost layer converts it to the form of our errors.
        Err(rejection) => return Ok(rejection.into_response()),
    };
    let Some(principal) = find_viewer(&tokens, &login) else {
        metrics.auth_failures.inc();
        let refusal = ApiError::unauthorized(
            "this token does not open the dashboard; the admin token was printed at the first start and is stored in \
             the data folder as admin.token",
        );
        return Err(bad_tokens.answer(address.into(), Attempt::LogIn, refusal));
    };
    if let Some(connection) = connection {
        connection.authenticate();
    }
    events.audit(&principal.id, "log_in", "dashboard").await?;
    let (cookie, session) = tokens.log_in(&principal, clock::now_ms()).await?;
    let body = Json(describe(session.role, session.csrf));
    Ok(with_cookie(
        &config,
        cookie.expose(),
        SESSION_LIFETIME_MS / 1_000,
        body,
    ))
}

fn find_viewer(tokens: &Tokens, login: &Login) -> Option<Principal> {
    let principal = tokens.authenticate(login.token.trim(), clock::now_ms())?;
    (principal.node.is_none() && principal.role.allows(Role::Viewer)).then_some(principal)
}

/// `DELETE`: ends the session and clears the cookie.
async fn log_out(
    State(config): State<Arc<Config>>,
    State(tokens): State<Arc<Tokens>>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    if let Some(cookie) = cookie(&headers) {
        tokens.log_out(cookie).await?;
    }
    Ok(with_cookie(&config, "", 0, StatusCode::NO_CONTENT))
}

fn describe(role: Role, csrf: String) -> Session {
    Session {
        role,
        csrf,
        version: env!("CARGO_PKG_VERSION").into(),
        now_ms: clock::now_ms(),
    }
}

fn with_cookie(config: &Config, value: &str, lifetime_s: i64, body: impl IntoResponse) -> Response {
    let secure = if config.tls.is_some() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lifetime_s}{secure}");
    let mut response = body.into_response();
    let mut cookie = HeaderValue::from_str(&cookie).expect("base64url and literals fit a header");
    cookie.set_sensitive(true);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}
