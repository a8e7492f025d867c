//! Authentication and authorisation: bearer tokens for programs, a session cookie for browsers. Clients of Prometheus may send a token as
//! the password of Basic authentication, on the paths of Prometheus' API.
//!
//! ```text
//! policy(method, path) ─▶ none: open to all (health, log-in, the dashboard's files)
//!                      └▶ role ─▶ bearer │ basic │ cookie ─▶ role allows? ─▶ cookie and changing: X-CSRF-Token ─▶ handler
//! ```

mod bad_tokens;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::api::session::Role;
use listener::{AddressKey, Connection};
use subtle::ConstantTimeEq;

use super::client_address::ClientAddress;
use super::error::ApiError;
use super::table::Table;

use crate::clock;
use crate::self_metrics::SelfMetrics;
use crate::tokens::Tokens;
pub(super) use bad_tokens::Attempt;
pub use bad_tokens::BadTokens;

/// The name of the session cookie.
pub const COOKIE: &str = "lockstep_session";
/// The header that proves that a changing request comes from the dashboard's own page.
pub const CSRF_HEADER: &str = "x-csrf-token";

/// The authenticated caller, in the extensions of every request that needs a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The id of the token, for the audit log.
    pub id: String,
    /// The role of the token.
    pub role: Role,
    /// The CSRF secret of the session; empty for a bearer token.
    pub(super) csrf: String,
}

/// Returns the role that a request needs, or `None` if it needs no token. A path under `/api` that is not in the table needs the role
/// viewer to read and admin to change.
#[must_use]
pub fn policy(table: &Table, method: &Method, template: Option<&str>) -> Option<Role> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match template {
        Some(template) => {
            let endpoint = table.endpoint(method, template);
            let role = if reads { Role::Viewer } else { Role::Admin };
            Some(endpoint.map_or(role, |endpoint| endpoint.role))
        }
        // The dashboard's own files.
        None if reads => None,
        None => Some(Role::Admin),
    }
}

/// The layer in front of all handlers. It reads no disk and no request body.
pub(super) async fn guard(
    State(tokens): State<Arc<Tokens>>,
    State(metrics): State<Arc<SelfMetrics>>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    Extension(bad_tokens): Extension<BadTokens>,
    mut request: Request,
    next: Next,
) -> Response {
    let extensions = request.extensions();
    let template = extensions.get().map(MatchedPath::as_str);
    let table = extensions
        .get()
        .expect("the router adds the table to each request");
    let Some(needed) = policy(table, request.method(), template) else {
        return next.run(request).await;
    };
    let caller = match identify((&tokens, &metrics), &request, address.into(), &bad_tokens) {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.authenticate();
    }
    if let Err(error) = permit(&caller, needed, &request) {
        return error.into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Identifies the caller of a request.
fn identify(
    (tokens, metrics): (&Tokens, &SelfMetrics),
    request: &Request,
    address: AddressKey,
    bad_tokens: &BadTokens,
) -> Result<Caller, ApiError> {
    let headers = request.headers();
    let password = basic(request)?;
    let identified = match bearer(headers).or(password.as_deref()) {
        Some(token) => identify_bearer(tokens, token),
        None => identify_browser(tokens, cookie(headers)),
    };
    identified.map_err(|refusal| match refusal {
        Refusal::Nothing(error) => error,
        Refusal::Bad(error) => {
            metrics.auth_failures.inc();
            bad_tokens.answer(address, Attempt::Request, error)
        }
    })
}

/// Why a request has no caller.
enum Refusal {
    /// The request has no token and no cookie.
    Nothing(ApiError),
    /// The token or cookie is not valid.
    Bad(ApiError),
}

fn identify_browser(tokens: &Tokens, cookie: Option<&str>) -> Result<Caller, Refusal> {
    let Some(cookie) = cookie else {
        return Err(Refusal::Nothing(ApiError::unauthorized(
            "a token is required: send `Authorization: Bearer TOKEN`. `lockstep token create` creates one; the admin \
             token was printed at the first start and is stored in the data folder as admin.token",
        )));
    };
    let session = tokens.session(cookie, clock::now_ms());
    let session =
        session.ok_or_else(|| Refusal::Bad(ApiError::unauthorized("the session has ended; log in again")))?;
    Ok(Caller {
        id: session.id,
        role: session.role,
        csrf: session.csrf,
    })
}

fn identify_bearer(tokens: &Tokens, token: &str) -> Result<Caller, Refusal> {
    let principal = tokens.authenticate(token, clock::now_ms());
    // An agent's credential is valid for its own streams only.
    let principal = principal.filter(|principal| principal.node.is_none());
    let principal = principal.ok_or_else(|| {
        Refusal::Bad(ApiError::unauthorized(
            "the token is unknown, expired or revoked; get a new one with `lockstep token create`",
        ))
    })?;
    Ok(Caller {
        id: principal.id,
        role: principal.role,
        csrf: String::new(),
    })
}

fn permit(caller: &Caller, needed: Role, request: &Request) -> Result<(), ApiError> {
    if !caller.role.allows(needed) {
        let word = |role: Role| format!("{role:?}").to_lowercase();
        let (has, needs) = (word(caller.role), word(needed));
        return Err(ApiError::forbidden(format!(
            "the role {needs} is required; the token {} has the role {has}",
            caller.id
        )));
    }
    let by_cookie = !caller.csrf.is_empty();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if by_cookie && !reads && !csrf_matches(&caller.csrf, request.headers()) {
        return Err(ApiError::forbidden(
            "the request lacks the session's X-CSRF-Token; reload the page, or use a bearer token",
        ));
    }
    // A page opens a WebSocket with a GET request without our header, and browsers let any page open one.
    if by_cookie && (!reads || request.uri().path() == "/api/stream") {
        same_origin(request.headers(), request.uri())?;
    }
    Ok(())
}

fn csrf_matches(expected: &str, headers: &HeaderMap) -> bool {
    let sent = headers
        .get(CSRF_HEADER)
        .map(|value| value.as_bytes())
        .unwrap_or_default();
    bool::from(expected.as_bytes().ct_eq(sent))
}

/// Rejects requests that a page of another site sends. Programs send no `Origin` header; browsers always do where it matters.
///
/// # Errors
/// Returns 403 if the origin is not the requested host.
pub(super) fn same_origin(headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str()));
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    if authority.is_some() && authority == host {
        return Ok(());
    }
    let shown: String = origin.chars().take(100).collect();
    Err(ApiError::forbidden(format!(
        "requests from pages of {shown} are not allowed; open the dashboard at its own address"
    )))
}

/// Returns the token of an `Authorization: Bearer` header.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the password of an `Authorization: Basic` header, which is a token; the user name is ignored. It is accepted only on the paths
/// that Prometheus' own clients use. A browser that stores such a password also sends it with requests of other sites' pages, so a changing
/// request must come from a program or from the dashboard's own page.
fn basic(request: &Request) -> Result<Option<String>, ApiError> {
    let path = request.uri().path();
    if !(path.starts_with("/api/v1/") || path == "/metrics") {
        return Ok(None);
    }
    let Some(password) = password(request.headers()) else {
        return Ok(None);
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        same_origin(request.headers(), request.uri())?;
    }
    Ok(Some(password))
}

fn password(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, pair) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(pair.trim()).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

/// Returns the value of the session cookie.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|line| line.to_str().ok());
    let mut pairs = lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn each_route_has_its_role() {
        let table = crate::http::endpoint_table();
        let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
        for (method, template, role) in [
            (&get, None, None),
            (&post, None, Some(Role::Admin)),
            (&get, Some("/metrics"), Some(Role::Scrape)),
            (&get, Some("/api/session"), Some(Role::Viewer)),
            (&get, Some("/api/v1/query"), Some(Role::Viewer)),
            (&post, Some("/api/v1/query_range"), Some(Role::Viewer)),
            (&post, Some("/api/v1/write"), Some(Role::Operator)),
            (&get, Some("/api/runs"), Some(Role::Viewer)),
            (&post, Some("/api/runs/{id}/stop"), Some(Role::Operator)),
            (&get, Some("/api/tokens"), Some(Role::Admin)),
            (&delete, Some("/api/tokens/{id}"), Some(Role::Admin)),
            (&get, Some("/api/webhooks"), Some(Role::Admin)),
            (&get, Some("/api/store/stats"), Some(Role::Viewer)),
            (&get, Some("/api/store/check"), Some(Role::Operator)),
            (&get, Some("/api/store/backup"), Some(Role::Admin)),
            (&post, Some("/api/store/compact"), Some(Role::Admin)),
            (&post, Some("/api/v1/admin/tsdb/delete_series"), Some(Role::Admin)),
            (&post, Some("/api/{*rest}"), Some(Role::Admin)),
        ] {
            assert_eq!(policy(&table, method, template), role, "{method} {template:?}");
        }
    }

    #[test]
    fn headers_are_read_strictly() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("bearer  abc"));
        headers.insert(
            header::COOKIE,
            HeaderValue::from_static("a=b; lockstep_session=xyz; lockstep_session2=no"),
        );
        assert_eq!((bearer(&headers), cookie(&headers)), (Some("abc"), Some("xyz")));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic abc"));
        assert_eq!((bearer(&headers), password(&headers)), (None, None));
        // "me:abc:d"
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_static("basic bWU6YWJjOmQ="),
        );
        assert_eq!(
            (bearer(&headers), password(&headers)),
            (None, Some("abc:d".into()))
        );
    }

    #[test]
    fn another_sites_page_is_refused() {
        let with = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("lockstep:8470"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            same_origin(&headers, &Uri::from_static("/api/stream")).is_ok()
        };
        assert!(with("http://lockstep:8470") && with("https://lockstep:8470"));
        assert!(!with("http://evil.example") && !with("null") && !with("http://lockstep:8470.evil.example"));
        assert!(same_origin(&HeaderMap::new(), &Uri::from_static("/")).is_ok());
    }
}
