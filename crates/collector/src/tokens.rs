//! Who may do what: tokens are random, shown once, and kept as SHA-256 only.
//!
//! ```text
//! lsa_ lso_ lsv_ lss_   admin, operator, viewer, scrape     people and programs
//! lsj_                  join                                 an agent's first connection; short-lived
//! lsn_                  node credential                      what the agent gets in return, bound to its node's name
//! ```
//! Behind the prefix: 32 random bytes, base64url. The admin's own token is the one exception to "never stored": it lies in
//! DATA/admin.token, readable by its owner only, so that commands on the collector's own machine just work.

mod admin_file;
mod known;

use std::collections::HashMap;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::api::session::{NewToken, Role, TokenView};
use domain::ident::NodeName;
use domain::time::TimestampMs;
use sha2::{Digest, Sha256};
use store::StateStore;
use store::state::StateError;
use store::state::tokens::SecretHash;

use crate::config::{Config, Secret};
use crate::error::StartError;
use known::Known;

/// How long a join token works when nothing else is asked for: long enough to walk through a rack, short enough to forget.
pub const JOIN_LIFETIME_S: u64 = 3_600;
/// A token's use is noted at most this often: writing on every request would wear the disk for a date nobody reads that exactly.
const TOUCH_EVERY_MS: i64 = 60_000;
/// Credentials a node may hold at once; the oldest go. Both streams of a first connection get one each, and a re-installed
/// machine joins again.
const CREDENTIALS_A_NODE: usize = 4;
/// The longest secret that is looked at; ours have 47 characters.
const SECRET_BYTES_MAX: usize = 512;
/// The admin token's id.
const ADMIN_ID: &str = "admin";

/// The book of tokens.
pub struct Tokens {
    state: StateStore,
    known: Known,
    touched: Mutex<HashMap<String, TimestampMs>>,
}

/// Who a secret turned out to belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The token's id, for the audit log.
    pub id: String,
    /// What it may do.
    pub role: Role,
    /// The node it is bound to, for an agent's credential.
    pub node: Option<NodeName>,
}

impl Tokens {
    /// Sets up the admin token. Returns it when it was made just now, to be shown once.
    ///
    /// # Errors
    /// When the token file or the store cannot be used.
    pub(crate) async fn open(
        config: &Config,
        state: StateStore,
        now_ms: TimestampMs,
    ) -> Result<(Self, Option<Secret>), StartError> {
        let (admin, created) = match &config.admin_token {
            Some(given) => (given.clone(), false),
            None => admin_file::read_or_create(&config.data_dir.join("admin.token"))?,
        };
        let tokens = Self {
            state,
            known: Known::default(),
            touched: Mutex::default(),
        };
        let load = |source: StateError| StartError::Load {
            what: "tokens",
            source: Box::new(source),
        };
        tokens.set_admin(&admin, now_ms).await.map_err(load)?;
        Ok((tokens, created.then_some(admin)))
    }

    /// Makes the admin row match the token; a changed token ends the sessions made with the old one.
    async fn set_admin(&self, admin: &Secret, now_ms: TimestampMs) -> Result<(), StateError> {
        let hash = hash(admin.expose());
        let known = self.state.token_by_hash(&hash, now_ms).await?;
        if known.is_some_and(|token| token.id == ADMIN_ID) {
            return Ok(());
        }
        self.revoke(ADMIN_ID).await?;
        let note = "made at the first start, or given by LOCKSTEP_ADMIN_TOKEN";
        let row = store::state::tokens::NewToken {
            id: ADMIN_ID,
            role: Role::Admin,
            hash: &hash,
            note,
            expires_ms: None,
        };
        self.state.create_token(row, now_ms).await
    }

    /// Makes a token.
    ///
    /// # Errors
    /// When the store fails.
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
        self.store_new(&id, role, &secret, note, expires_ms, now_ms)
            .await?;
        Ok(NewToken {
            id,
            token: secret.expose().to_owned(),
            expires_ms,
        })
    }

    /// Makes the lasting credential of a node that came with a join token.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn enrol(&self, node: &NodeName, now_ms: TimestampMs) -> Result<Secret, StateError> {
        let prefix = credential_prefix(node);
        let of_node = self
            .state
            .tokens()
            .await?
            .into_iter()
            .filter(|token| token.id.starts_with(&prefix));
        let ids: Vec<String> = of_node.map(|token| token.id).collect();
        for id in ids.iter().rev().skip(CREDENTIALS_A_NODE - 1) {
            self.revoke(id).await?;
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
        let hash = hash(secret.expose());
        self.state
            .create_token(
                store::state::tokens::NewToken {
                    id,
                    role,
                    hash: &hash,
                    note,
                    expires_ms,
                },
                now_ms,
            )
            .await
    }

    /// Finds out whose secret this is; `None` for one that is unknown, revoked or expired.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn authenticate(
        &self,
        secret: &str,
        now_ms: TimestampMs,
    ) -> Result<Option<Principal>, StateError> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return Ok(None);
        }
        let Some(token) = self.look_up(hash(secret), now_ms).await? else {
            return Ok(None);
        };
        self.touch(&token.id, now_ms).await;
        Ok(Some(Principal {
            node: bound_node(&token.id),
            id: token.id,
            role: token.role,
        }))
    }

    async fn look_up(&self, hash: SecretHash, now_ms: TimestampMs) -> Result<Option<TokenView>, StateError> {
        let generation = match self.known.get(&hash, now_ms) {
            Ok(token) => return Ok(Some(token)),
            Err(generation) => generation,
        };
        let token = self.state.token_by_hash(&hash, now_ms).await?;
        if let Some(token) = &token {
            self.known.keep(generation, hash, token);
        }
        Ok(token)
    }

    /// All tokens, without their secrets.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self) -> Result<Vec<TokenView>, StateError> {
        self.state.tokens().await
    }

    /// Ends a token and the sessions made with it; false when there is none of that id.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn revoke(&self, id: &str) -> Result<bool, StateError> {
        let revoked = self.state.revoke_token(id).await;
        // A failed deletion may have been one.
        self.known.forget_all();
        revoked
    }

    async fn touch(&self, id: &str, now_ms: TimestampMs) {
        {
            let mut touched = self.touched.lock().expect("nothing panics while holding it");
            if touched
                .get(id)
                .is_some_and(|before| now_ms - before < TOUCH_EVERY_MS)
            {
                return;
            }
            touched.insert(id.to_owned(), now_ms);
        }
        if let Err(error) = self.state.touch_token(id, now_ms).await {
            tracing::warn!(%error, token = id, "could not note that a token was used");
        }
    }
}

/// Whether this is the token the collector was set up with; revoking it would lock everyone out until a restart.
#[must_use]
pub fn is_admin_id(id: &str) -> bool {
    id == ADMIN_ID
}

/// SHA-256, what is stored of any secret.
#[must_use]
pub fn hash(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// 32 random bytes behind a prefix that says what the secret is for.
#[must_use]
pub fn random_secret(prefix: &str) -> Secret {
    Secret::new(format!(
        "{prefix}{}",
        URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
    ))
}

/// Node names hold no ':', so an id says unmistakably which node a credential belongs to.
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
    fn a_credential_names_its_node_and_nothing_else_does() {
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
    fn secrets_differ_and_say_what_they_are() {
        let (a, b) = (random_secret("lsa_"), random_secret("lsa_"));
        assert!(a != b && a.expose().starts_with("lsa_") && a.expose().len() == 47);
    }
}
