//! A stream lives for days; the right to it may end earlier, so it is looked at again now and then.

use axum::http::HeaderMap;

use crate::Shared;
use crate::config::Secret;
use crate::http::auth;

/// What the stream was opened with.
pub(super) enum Credential {
    Bearer(Secret),
    Cookie(Secret),
    None,
}

impl Credential {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match (auth::bearer(headers), auth::cookie(headers)) {
            (Some(token), _) => Self::Bearer(Secret::new(token)),
            (None, Some(cookie)) => Self::Cookie(Secret::new(cookie)),
            (None, None) => Self::None,
        }
    }

    /// Whether it is still good. A store that cannot be read ends no stream.
    pub(super) async fn holds(&self, app: &Shared) -> bool {
        let now_ms = app.now_ms();
        match self {
            Self::Bearer(token) => !matches!(app.tokens.authenticate(token.expose(), now_ms).await, Ok(None)),
            Self::Cookie(cookie) => !matches!(auth::session(app, cookie.expose(), now_ms).await, Ok(None)),
            Self::None => false,
        }
    }
}
