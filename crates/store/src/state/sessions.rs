//! Browsers that are logged in: the cookie's hash, the token it was made with, and the CSRF secret.

use std::fmt;

use domain::time::TimestampMs;

use super::tokens::{SecretHash, secret_hash};
use super::{StateError, StateStore};

/// A browser's session, alive.
#[derive(Clone, PartialEq)]
pub struct BrowserSession {
    /// Id of the token it was made with.
    pub token: String,
    /// To be echoed by every request that changes something. Never logged.
    pub csrf: String,
    /// When it ends.
    pub expires_ms: TimestampMs,
}

impl fmt::Debug for BrowserSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrowserSession")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl StateStore {
    /// Starts a session, and sweeps out those that ended.
    ///
    /// # Errors
    /// When the database fails, or there is no such token.
    pub async fn create_browser_session(
        &self,
        hash: &SecretHash,
        token: &str,
        csrf: &str,
        now_ms: TimestampMs,
        expires_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        sqlx::query("DELETE FROM browser_sessions WHERE expires_ms <= ?")
            .bind(now_ms)
            .execute(&mut *transaction)
            .await?;
        sqlx::query(
            "INSERT INTO browser_sessions (hash, token, csrf, created_ms, expires_ms) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(hash.as_slice())
        .bind(token)
        .bind(csrf)
        .bind(now_ms)
        .bind(expires_ms)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    /// All sessions that have not expired, by the hash of their cookie. Whether the token has expired is up to the caller.
    ///
    /// # Errors
    /// When the database fails, or a hash has another length.
    pub async fn browser_sessions(
        &self,
        now_ms: TimestampMs,
    ) -> Result<Vec<(SecretHash, BrowserSession)>, StateError> {
        let rows: Vec<(Vec<u8>, String, String, i64)> =
            sqlx::query_as("SELECT hash, token, csrf, expires_ms FROM browser_sessions WHERE expires_ms > ?")
                .bind(now_ms)
                .fetch_all(&self.database.readers)
                .await?;
        rows.into_iter()
            .map(|(hash, token, csrf, expires_ms)| {
                let session = BrowserSession {
                    token,
                    csrf,
                    expires_ms,
                };
                Ok((secret_hash(&hash)?, session))
            })
            .collect()
    }

    /// Logs a browser out.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_browser_session(&self, hash: &SecretHash) -> Result<(), StateError> {
        let delete = sqlx::query("DELETE FROM browser_sessions WHERE hash = ?");
        delete
            .bind(hash.as_slice())
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}
