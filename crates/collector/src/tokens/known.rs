//! All tokens and browser sessions, in memory: a request with an invalid token must cost only a hash.
//!
//! The content is the same as in the database. A change is written there first; a removal is applied here first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::api::session::TokenView;
use domain::time::TimestampMs;
use store::state::sessions::BrowserSession;
use store::state::tokens::SecretHash;

/// Tokens by the hash of their secret, and sessions by the hash of their cookie.
#[derive(Debug, Default)]
pub(super) struct Known {
    tokens: HashMap<SecretHash, Token>,
    /// The hash of a token's secret, by the token's id.
    hashes: HashMap<String, SecretHash>,
    sessions: HashMap<SecretHash, BrowserSession>,
}

/// A token, and the time of its last use.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) view: TokenView,
    /// 0 if it was never used.
    used_ms: AtomicI64,
}

impl Known {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn insert(&mut self, hash: SecretHash, view: TokenView) {
        self.hashes.insert(view.id.clone(), hash);
        let used_ms = AtomicI64::new(view.used_ms.unwrap_or_default());
        self.tokens.insert(hash, Token { view, used_ms });
    }

    /// Removes a token and its sessions.
    pub(super) fn remove(&mut self, id: &str) {
        if let Some(hash) = self.hashes.remove(id) {
            self.tokens.remove(&hash);
        }
        self.sessions.retain(|_, session| session.token != id);
    }

    /// Returns the token with this hash, unless it has expired.
    pub(super) fn token(&self, hash: &SecretHash, now_ms: TimestampMs) -> Option<&Token> {
        self.tokens.get(hash).filter(|token| token.is_valid(now_ms))
    }

    pub(super) fn by_id(&self, id: &str) -> Option<&Token> {
        self.tokens.get(self.hashes.get(id)?)
    }

    /// Returns the ids that begin with `prefix`, the oldest first.
    pub(super) fn ids_with_prefix(&self, prefix: &str) -> Vec<String> {
        let tokens = self.tokens.values().map(|token| &token.view);
        let mut of_prefix: Vec<_> = tokens.filter(|view| view.id.starts_with(prefix)).collect();
        of_prefix.sort_by_key(|view| view.created_ms);
        of_prefix.into_iter().map(|view| view.id.clone()).collect()
    }

    pub(super) fn insert_session(&mut self, hash: SecretHash, session: BrowserSession) {
        self.sessions
            .retain(|_, other| other.expires_ms > session.expires_ms - super::SESSION_LIFETIME_MS);
        self.sessions.insert(hash, session);
    }

    pub(super) fn remove_session(&mut self, hash: &SecretHash) {
        self.sessions.remove(hash);
    }

    /// Returns the session with this hash and its token, if neither has expired.
    pub(super) fn session(
        &self,
        hash: &SecretHash,
        now_ms: TimestampMs,
    ) -> Option<(&BrowserSession, &Token)> {
        let session = self
            .sessions
            .get(hash)
            .filter(|session| session.expires_ms > now_ms)?;
        let token = self
            .by_id(&session.token)
            .filter(|token| token.is_valid(now_ms))?;
        Some((session, token))
    }

    /// Returns the sessions of a token, ordered by their end.
    pub(super) fn sessions_of(&self, token: &str) -> Vec<SecretHash> {
        let sessions = self.sessions.iter().filter(|(_, session)| session.token == token);
        let mut sessions: Vec<_> = sessions
            .map(|(hash, session)| (session.expires_ms, *hash))
            .collect();
        sessions.sort_unstable();
        sessions.into_iter().map(|(_, hash)| hash).collect()
    }
}

impl Token {
    fn is_valid(&self, now_ms: TimestampMs) -> bool {
        self.view.expires_ms.is_none_or(|expires_ms| expires_ms > now_ms)
    }

    /// Returns the time of the last use.
    pub(super) fn used_ms(&self) -> Option<TimestampMs> {
        Some(self.used_ms.load(Ordering::Relaxed)).filter(|ms| *ms != 0)
    }

    /// Records a use. Returns true if the last recorded use is at least `every_ms` ago.
    pub(super) fn touch(&self, now_ms: TimestampMs, every_ms: i64) -> bool {
        let before = self.used_ms.load(Ordering::Relaxed);
        let is_due = now_ms - before >= every_ms;
        is_due
            && self
                .used_ms
                .compare_exchange(before, now_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use domain::api::session::Role;

    use super::*;

    fn token(id: &str, expires_ms: Option<TimestampMs>) -> TokenView {
        TokenView {
            id: id.into(),
            role: Role::Viewer,
            note: String::new(),
            created_ms: 0,
            expires_ms,
            used_ms: None,
        }
    }

    fn session(token: &str, expires_ms: TimestampMs) -> BrowserSession {
        BrowserSession {
            token: token.into(),
            csrf: "csrf".into(),
            expires_ms,
        }
    }

    #[test]
    fn a_token_and_its_sessions_work_until_they_expire_or_are_removed() {
        let mut known = Known::default();
        let (lasting, ending) = ([1; 32], [2; 32]);
        known.insert(lasting, token("lasting", None));
        known.insert(ending, token("ending", Some(10)));
        known.insert_session([3; 32], session("lasting", 20));
        known.insert_session([4; 32], session("ending", 20));
        assert!(known.token(&lasting, 1 << 60).is_some());
        assert!(known.token(&ending, 9).is_some() && known.token(&ending, 10).is_none());
        assert!(known.session(&[3; 32], 19).is_some() && known.session(&[3; 32], 20).is_none());
        assert!(known.session(&[4; 32], 9).is_some() && known.session(&[4; 32], 10).is_none());
        known.remove("lasting");
        assert!(known.token(&lasting, 0).is_none() && known.by_id("lasting").is_none());
        assert!(known.session(&[3; 32], 0).is_none());
        assert!(known.session(&[4; 32], 0).is_some(), "another token's");
    }

    #[test]
    fn a_use_is_noted_once_in_a_while() {
        let mut known = Known::default();
        known.insert([1; 32], token("t", None));
        let token = known.by_id("t").expect("it is there");
        assert_eq!(token.used_ms(), None);
        let noted: Vec<bool> = [100, 101, 159, 160].map(|now_ms| token.touch(now_ms, 60)).into();
        assert_eq!(noted, [true, false, false, true]);
        assert_eq!(token.used_ms(), Some(160));
    }
}
