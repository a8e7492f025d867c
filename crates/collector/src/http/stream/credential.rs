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

    /// Returns true while it is valid.
    pub(super) fn is_valid(&self, app: &Shared) -> bool {
        let now_ms = app.now_ms();
        match self {
            Self::Bearer(token) => app.tokens.authenticate(token.expose(), now_ms).is_some(),
            Self::Cookie(cookie) => app.tokens.session(cookie.expose(), now_ms).is_some(),
            Self::None => false,
        }
    }
}
