//! The credential of a stream. A stream is open for days and its credential may expire, so it is checked periodically.

use axum::http::HeaderMap;

use crate::clock;
use crate::config::Secret;
use crate::http::auth;
use crate::tokens::Tokens;

/// The credential with which a stream was opened.
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

    /// Returns true while the credential is valid.
    pub(super) fn is_valid(&self, tokens: &Tokens) -> bool {
        let now_ms = clock::now_ms();
        match self {
            Self::Bearer(token) => tokens.authenticate(token.expose(), now_ms).is_some(),
            Self::Cookie(cookie) => tokens.session(cookie.expose(), now_ms).is_some(),
            Self::None => false,
        }
    }
}
