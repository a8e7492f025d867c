//! Browser sessions: the hash of the cookie, the token of the log-in, and the CSRF secret.

use std::fmt;

use domain::time::TimestampMs;

use super::tokens::{SecretHash, secret_hash};
use super::{StateError, StateStore};

/// A session of one browser that has not expired.
#[derive(Clone, PartialEq)]
pub struct BrowserSession {
    /// The id of the token that was used to log in.
    pub token: String,
    /// Every request that changes something must contain this secret. It is never logged.
    pub csrf: String,
    /// The time when it expires.
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
    /// Creates a session, and deletes those that have expired.
    ///
    /// # Errors
    /// Fails if the database fails, or if the token does not exist.
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

    /// Returns all sessions that have not expired, by the hash of their cookie. The caller checks whether the token has
    /// expired.
    ///
    /// # Errors
    /// Fails if the database fails, or if a hash has the wrong length.
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

    /// Deletes a session: logs a browser out.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn delete_browser_session(&self, hash: &SecretHash) -> Result<(), StateError> {
        let delete = sqlx::query("DELETE FROM browser_sessions WHERE hash = ?");
        delete
            .bind(hash.as_slice())
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}
