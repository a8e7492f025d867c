//! Browsers that are logged in: the cookie's hash, the token behind it, and the CSRF secret.

use std::fmt;

use domain::api::session::Role;
use domain::time::TimestampMs;

use super::tokens::SecretHash;
use super::{StateError, StateStore, from_word};

/// A browser's session, alive.
#[derive(Clone, PartialEq)]
pub struct BrowserSession {
    /// Id of the token it was made with.
    pub token: String,
    /// What that token may do.
    pub role: Role,
    /// To be echoed by every request that changes something. Never logged.
    pub csrf: String,
    /// When it ends.
    pub expires_ms: TimestampMs,
}

impl fmt::Debug for BrowserSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrowserSession")
            .field("token", &self.token)
            .field("role", &self.role)
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

    /// The session of a cookie, when neither it nor its token has expired.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn browser_session(
        &self,
        hash: &SecretHash,
        now_ms: TimestampMs,
    ) -> Result<Option<BrowserSession>, StateError> {
        let row: Option<(String, String, String, i64)> = sqlx::query_as(
            "SELECT s.token, t.role, s.csrf, s.expires_ms FROM browser_sessions s JOIN tokens t ON t.id = s.token
             WHERE s.hash = ? AND s.expires_ms > ? AND (t.expires_ms IS NULL OR t.expires_ms > ?)",
        )
        .bind(hash.as_slice())
        .bind(now_ms)
        .bind(now_ms)
        .fetch_optional(&self.database.readers)
        .await?;
        row.map(|(token, role, csrf, expires_ms)| {
            Ok(BrowserSession {
                token,
                role: from_word("role", &role)?,
                csrf,
                expires_ms,
            })
        })
        .transpose()
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
