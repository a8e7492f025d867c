//! Tokens and roles: tokens are random, shown once, and stored only as SHA-256.
//!
//! ```text
//! lsa_ lso_ lsv_ lss_   admin, operator, viewer, scrape     people and programs
//! lsj_                  join                                 an agent's first connection; short-lived
//! lsn_                  node credential                      what the agent gets in return, bound to its node's name
//! ```
//! After the prefix follow 32 random bytes, base64url. The admin token is the only one that is stored: it is in DATA/admin.token, readable
//! by its owner only, so that commands on the collector's machine need no token.

mod admin_file;
mod known;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::api::session::{NewToken, Role, TokenView};
use domain::ident::NodeName;
use domain::time::TimestampMs;
use sha2::{Digest, Sha256};
use store::StateStore;
use store::state::StateError;
use store::state::sessions::BrowserSession;
use store::state::tokens::SecretHash;
use tokio::time::MissedTickBehavior;

use crate::config::{Config, Secret};
use crate::error::StartError;
use known::Known;

/// Default lifetime of a join token, in seconds: long enough to set up a rack, short enough to need no revocation.
pub const JOIN_LIFETIME_S: u64 = 3_600;
/// How long a browser stays logged in: one week. This is enough for a wall display, and a forgotten browser does not stay logged in
/// forever.
pub(crate) const SESSION_LIFETIME_MS: i64 = 7 * 24 * 3_600 * 1_000;
/// Minimum time between two recorded uses of a token. No one needs this date more exactly.
const TOUCH_EVERY_MS: i64 = 60_000;
/// How often recorded uses are written to the database.
const STORE_USES_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of credentials of a node; the oldest are removed. Both streams of a first connection get one each, and a re-installed
/// machine joins again.
const CREDENTIALS_A_NODE: usize = 4;
/// Maximum number of tokens, all of which are in memory (about 300 bytes each): four credentials for each of a thousand nodes, and more
/// than twenty times as much room to spare.
const TOKENS_MAX: usize = 100_000;
/// Maximum number of browser sessions of one token; the oldest end.
const SESSIONS_PER_TOKEN_MAX: usize = 1_000;
/// Maximum length of a secret that is checked, in bytes. Generated ones have 47 characters.
const SECRET_BYTES_MAX: usize = 512;
/// The id of the admin token.
const ADMIN_ID: &str = "admin";

/// All tokens. Authentication reads memory only.
pub struct Tokens {
    state: StateStore,
    known: RwLock<Known>,
    /// Uses that are not stored yet, by token id: at most one entry per token.
    used: Mutex<HashMap<String, TimestampMs>>,
    /// Held during a change, so that database and memory change in the same order.
    changing: tokio::sync::Mutex<()>,
}

/// A browser that is logged in.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    /// The id of its token.
    pub id: String,
    /// The role of the token.
    pub role: Role,
    /// The CSRF secret, which changing requests must send. Never logged.
    pub csrf: String,
}

/// The owner of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The id of the token, for the audit log.
    pub id: String,
    /// The role of the token.
    pub role: Role,
    /// The node that an agent's credential is bound to.
    pub node: Option<NodeName>,
}

impl Tokens {
    /// Loads the tokens and sets up the admin token. Returns the admin token if it was generated now, to be shown once.
    ///
    /// # Errors
    /// Returns an error if the token file or the store cannot be used.
    pub(crate) async fn open(
        config: &Config,
        state: StateStore,
        now_ms: TimestampMs,
    ) -> Result<(Self, Option<Secret>), StartError> {
        let (admin, created) = match &config.admin_token {
            Some(given) => (given.clone(), false),
            None => admin_file::read_or_create(&config.data_dir().join("admin.token"))?,
        };
        let load = |error: StateError| StartError::load("tokens", error);
        let tokens = Self {
            state,
            known: RwLock::default(),
            used: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        tokens.load(now_ms).await.map_err(load)?;
        tokens.set_admin(&admin, now_ms).await.map_err(load)?;
        Ok((tokens, created.then_some(admin)))
    }

    /// Loads everything from the database.
    async fn load(&self, now_ms: TimestampMs) -> Result<(), StateError> {
        let mut known = Known::default();
        for (hash, token) in self.state.tokens_by_hash().await? {
            known.insert(hash, token);
        }
        for (hash, session) in self.state.browser_sessions(now_ms).await? {
            known.insert_session(hash, session);
        }
        *self.write() = known;
        Ok(())
    }

    /// Updates the stored admin token. If it has changed, the sessions created with the old one end.
    async fn set_admin(&self, admin: &Secret, now_ms: TimestampMs) -> Result<(), StateError> {
        let hash = hash(admin.expose());
        let is_known = self
            .read()
            .token(&hash, now_ms)
            .is_some_and(|token| token.view.id == ADMIN_ID);
        if is_known {
            return Ok(());
        }
        let _changing = self.changing.lock().await;
        self.remove(ADMIN_ID, now_ms).await?;
        let note = "generated at the first start, or set by LOCKSTEP_ADMIN_TOKEN";
        self.store_new(ADMIN_ID, Role::Admin, admin, note, None, now_ms)
            .await
    }

    /// Creates a token.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn create(
        &self,
        role: Role,
        note: &str,
        expires_s: Option<u64>,
        now_ms: TimestampMs,
    ) -> Result<NewToken, StateError> {
        let (prefix, kind) = match role {
            Role::Admin => ("lsa_", "token"),
            Role::Operator => ("lso_", "token"),
            Role::Viewer => ("lsv_", "token"),
            Role::Scrape => ("lss_", "token"),
            Role::Join => ("lsj_", "join"),
        };
        let secret = random_secret(prefix);
        let id = format!("{kind}-{}", hex::encode(rand::random::<[u8; 4]>()));
        let expires_ms = expires_s.map(|s| now_ms.saturating_add_unsigned(s.saturating_mul(1_000)));
        let _changing = self.changing.lock().await;
        self.store_new(&id, role, &secret, note, expires_ms, now_ms)
            .await?;
        Ok(NewToken {
            id,
            token: secret.expose().to_owned(),
            expires_ms,
        })
    }

    /// Creates the permanent credential of a node that connected with a join token.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn enrol(&self, node: &NodeName, now_ms: TimestampMs) -> Result<Secret, StateError> {
        let prefix = credential_prefix(node);
        let _changing = self.changing.lock().await;
        let ids = self.read().ids_with_prefix(&prefix);
        for id in ids.iter().rev().skip(CREDENTIALS_A_NODE - 1) {
            self.remove(id, now_ms).await?;
        }
        let secret = random_secret("lsn_");
        let id = format!("{prefix}{}", hex::encode(rand::random::<[u8; 4]>()));
        self.store_new(&id, Role::Join, &secret, "agent credential", None, now_ms)
            .await?;
        Ok(secret)
    }

    async fn store_new(
        &self,
        id: &str,
        role: Role,
        secret: &Secret,
        note: &str,
        expires_ms: Option<TimestampMs>,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        if self.read().len() >= TOKENS_MAX {
            return Err(StateError::Full {
                what: "tokens",
                max: TOKENS_MAX,
            });
        }
        let hash = hash(secret.expose());
        let row = store::state::tokens::NewToken {
            id,
            role,
            hash: &hash,
            note,
            expires_ms,
        };
        self.state.create_token(row, now_ms).await?;
        let token = TokenView {
            id: id.to_owned(),
            role,
            note: note.to_owned(),
            created_ms: now_ms,
            expires_ms,
            used_ms: None,
        };
        self.write().insert(hash, token);
        Ok(())
    }

    /// Returns the owner of a secret, or `None` if it is unknown, revoked or expired.
    #[must_use]
    pub fn authenticate(&self, secret: &str, now_ms: TimestampMs) -> Option<Principal> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return None;
        }
        let hash = hash(secret);
        let known = self.read();
        let token = known.token(&hash, now_ms)?;
        self.touch(token, now_ms);
        Some(Principal {
            node: bound_node(&token.view.id),
            id: token.view.id.clone(),
            role: token.view.role,
        })
    }

    /// Returns the name by which people know the user of a token: its note, or its id if it has none.
    #[must_use]
    pub fn name(&self, id: &str) -> String {
        let known = self.read();
        let note = known.by_id(id).map(|token| token.view.note.trim());
        // The note of the admin token says where the token comes from, not who uses it.
        let note = note.filter(|note| !note.is_empty() && !is_admin_id(id));
        note.unwrap_or(id).to_owned()
    }

    /// Returns all tokens, without their secrets.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn list(&self) -> Result<Vec<TokenView>, StateError> {
        let mut tokens = self.state.tokens().await?;
        let known = self.read();
        for token in &mut tokens {
            token.used_ms = known
                .by_id(&token.id)
                .and_then(known::Token::used_ms)
                .or(token.used_ms);
        }
        Ok(tokens)
    }

    /// Revokes a token and ends the sessions created with it. Returns false if there is no token with this id.
    ///
    /// # Errors
    /// Returns an error if the store fails. The token is then valid or not as the database says, and invalid as long as the database cannot
    /// be read either.
    pub async fn revoke(&self, id: &str, now_ms: TimestampMs) -> Result<bool, StateError> {
        let _changing = self.changing.lock().await;
        self.remove(id, now_ms).await
    }

    /// Removes a token, from memory first, so that it is invalid from now on.
    async fn remove(&self, id: &str, now_ms: TimestampMs) -> Result<bool, StateError> {
        self.write().remove(id);
        let revoked = self.state.revoke_token(id).await;
        if revoked.is_err() {
            // A failed deletion may have been carried out or not.
            let _stays_refused = self.load(now_ms).await;
        }
        revoked
    }

    /// Logs a browser in. Returns its cookie and the session.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the token was revoked meanwhile.
    pub async fn log_in(
        &self,
        principal: &Principal,
        now_ms: TimestampMs,
    ) -> Result<(Secret, Session), StateError> {
        let (cookie, csrf) = (random_secret(""), random_secret(""));
        let session = BrowserSession {
            token: principal.id.clone(),
            csrf: csrf.expose().to_owned(),
            expires_ms: now_ms + SESSION_LIFETIME_MS,
        };
        let _changing = self.changing.lock().await;
        let before = self.read().sessions_of(&principal.id);
        for oldest in before.iter().rev().skip(SESSIONS_PER_TOKEN_MAX - 1) {
            self.remove_session(oldest).await?;
        }
        let hash = hash(cookie.expose());
        self.state
            .create_browser_session(&hash, &session.token, &session.csrf, now_ms, session.expires_ms)
            .await?;
        let shown = Session {
            id: session.token.clone(),
            role: principal.role,
            csrf: session.csrf.clone(),
        };
        self.write().insert_session(hash, session);
        Ok((cookie, shown))
    }

    /// Returns the session of a cookie, or `None` if it is unknown or has ended.
    #[must_use]
    pub fn session(&self, cookie: &str, now_ms: TimestampMs) -> Option<Session> {
        if cookie.len() > SECRET_BYTES_MAX {
            return None;
        }
        let hash = hash(cookie);
        let known = self.read();
        let (session, token) = known.session(&hash, now_ms)?;
        Some(Session {
            id: session.token.clone(),
            role: token.view.role,
            csrf: session.csrf.clone(),
        })
    }

    /// Logs a browser out.
    ///
    /// # Errors
    /// Returns an error if the store fails. The cookie is then invalid until the collector is restarted.
    pub async fn log_out(&self, cookie: &str) -> Result<(), StateError> {
        let _changing = self.changing.lock().await;
        self.remove_session(&hash(cookie)).await
    }

    async fn remove_session(&self, hash: &SecretHash) -> Result<(), StateError> {
        self.write().remove_session(hash);
        self.state.delete_browser_session(hash).await
    }

    fn touch(&self, token: &known::Token, now_ms: TimestampMs) {
        if token.touch(now_ms, TOUCH_EVERY_MS) {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.insert(token.view.id.clone(), now_ms);
        }
    }

    async fn store_uses(&self) {
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        if used.is_empty() {
            return;
        }
        let used: Vec<_> = used.into_iter().collect();
        if let Err(error) = self.state.touch_tokens(&used).await {
            tracing::warn!(%error, tokens = used.len(), "the last uses of tokens could not be stored");
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes recorded uses of tokens to the database, until the collector stops.
pub(crate) async fn store_uses(tokens: Arc<Tokens>) {
    let mut ticks = tokio::time::interval(STORE_USES_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tokens.store_uses().await;
    }
}

/// Returns true for the admin token of the configuration. Revoking it would lock everyone out until a restart.
#[must_use]
pub fn is_admin_id(id: &str) -> bool {
    id == ADMIN_ID
}

/// Returns the SHA-256 of a secret, which is what is stored.
#[must_use]
pub fn hash(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// Returns a secret of 32 random bytes after a prefix that names its purpose.
#[must_use]
pub fn random_secret(prefix: &str) -> Secret {
    Secret::new(format!(
        "{prefix}{}",
        URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
    ))
}

/// Node names contain no ':', so an id identifies the node of a credential without ambiguity.
fn credential_prefix(node: &NodeName) -> String {
    format!("agent:{node}:")
}

fn bound_node(id: &str) -> Option<NodeName> {
    let (node, _) = id.strip_prefix("agent:")?.split_once(':')?;
    NodeName::new(node).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_credential_names_a_node() {
        let node = NodeName::new("gpu-1.rack_2").expect("a good name");
        assert_eq!(
            bound_node(&format!("{}abcd", credential_prefix(&node))),
            Some(node)
        );
        for other in ["admin", "token-12345678", "join-12345678", "agent:"] {
            assert_eq!(bound_node(other), None, "{other}");
        }
    }

    #[test]
    fn secrets_differ_and_show_their_kind() {
        let (a, b) = (random_secret("lsa_"), random_secret("lsa_"));
        assert!(a != b && a.expose().starts_with("lsa_") && a.expose().len() == 47);
    }
}
