//! Tokens that were looked up lately: a program asks many times a second, and each look into the database costs more than many
//! a query.
//!
//! ```text
//! lookup:  generation ─▶ SELECT ─▶ keep, unless the generation is another one by now
//! revoke:  DELETE ─▶ generation + 1, all forgotten
//! ```
//! So a token that was revoked opens nothing from then on, whoever was looking it up meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::api::session::TokenView;
use domain::time::TimestampMs;
use store::state::tokens::SecretHash;

/// Tokens kept; when there are more, all are looked up anew.
const KNOWN_MAX: usize = 4_096;

/// What is known by the hash of the secret.
#[derive(Default)]
pub(super) struct Known(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    generation: u64,
    tokens: HashMap<SecretHash, TokenView>,
}

/// Changes whenever a token is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Known {
    /// A token that works now, or what to show with it once it was looked up.
    pub(super) fn get(&self, hash: &SecretHash, now_ms: TimestampMs) -> Result<TokenView, Generation> {
        let inner = self.lock();
        let token = inner.tokens.get(hash);
        token
            .filter(|token| token.expires_ms.is_none_or(|expires_ms| expires_ms > now_ms))
            .cloned()
            .ok_or(Generation(inner.generation))
    }

    /// Keeps what was looked up in a generation.
    pub(super) fn keep(&self, generation: Generation, hash: SecretHash, token: &TokenView) {
        let mut inner = self.lock();
        if inner.generation != generation.0 {
            return;
        }
        if inner.tokens.len() >= KNOWN_MAX {
            inner.tokens.clear();
        }
        inner.tokens.insert(hash, token.clone());
    }

    /// A token was revoked. To be said after the database knows it.
    pub(super) fn forget_all(&self) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.tokens.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use domain::api::session::Role;

    use super::*;

    fn token(expires_ms: Option<TimestampMs>) -> TokenView {
        TokenView {
            id: "token-1".into(),
            role: Role::Viewer,
            note: String::new(),
            created_ms: 0,
            expires_ms,
            used_ms: None,
        }
    }

    #[test]
    fn a_token_is_known_until_it_expires_or_one_is_revoked() {
        let known = Known::default();
        let (lasting, ending) = ([1; 32], [2; 32]);
        let before = known.get(&lasting, 5).expect_err("nothing is known");
        known.keep(before, lasting, &token(None));
        known.keep(before, ending, &token(Some(10)));
        assert!(known.get(&lasting, 1 << 60).is_ok() && known.get(&ending, 9).is_ok());
        assert!(known.get(&ending, 10).is_err());
        known.forget_all();
        assert!(known.get(&lasting, 5).is_err() && known.get(&ending, 5).is_err());
        known.keep(before, lasting, &token(None));
        assert!(
            known.get(&lasting, 5).is_err(),
            "it may be the one that was revoked"
        );
    }

    #[test]
    fn a_flood_of_tokens_takes_bounded_memory() {
        let known = Known::default();
        let generation = known.get(&[0; 32], 0).expect_err("nothing is known");
        for n in 0..2 * KNOWN_MAX as u64 {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&n.to_le_bytes());
            known.keep(generation, hash, &token(None));
        }
        assert!(known.lock().tokens.len() <= KNOWN_MAX);
    }
}
