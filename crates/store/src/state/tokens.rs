//! API tokens, known by their hash only.

use domain::api::session::{Role, TokenView};
use domain::time::TimestampMs;

use super::{StateError, StateStore, from_word, is_taken, to_word};

/// SHA-256 of a secret. The secret itself is high-entropy and never stored.
pub type SecretHash = [u8; 32];

/// A token to be stored.
#[derive(Debug, Clone)]
pub struct NewToken<'a> {
    /// Its public id.
    pub id: &'a str,
    /// What it may do.
    pub role: Role,
    /// Hash of the secret.
    pub hash: &'a SecretHash,
    /// For people: who or what has it.
    pub note: &'a str,
    /// When it stops working; never, when empty.
    pub expires_ms: Option<TimestampMs>,
}

impl StateStore {
    /// Stores a token.
    ///
    /// # Errors
    /// [`StateError::Exists`] when id or hash is taken.
    pub async fn create_token(&self, token: NewToken<'_>, now_ms: TimestampMs) -> Result<(), StateError> {
        let inserted = sqlx::query(
            "INSERT INTO tokens (id, role, hash, note, created_ms, expires_ms) VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(token.id)
        .bind(to_word("role", &token.role)?)
        .bind(token.hash.as_slice())
        .bind(token.note)
        .bind(now_ms)
        .bind(token.expires_ms)
        .execute(self.database.writer())
        .await;
        match inserted {
            Err(error) if is_taken(&error) => Err(StateError::Exists {
                what: format!("token {}", token.id),
            }),
            other => Ok(other.map(drop)?),
        }
    }

    /// The token with that hash, unless it has expired.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn token_by_hash(
        &self,
        hash: &SecretHash,
        now_ms: TimestampMs,
    ) -> Result<Option<TokenView>, StateError> {
        let row: Option<TokenRow> = sqlx::query_as(
            "SELECT id, role, note, created_ms, expires_ms, used_ms FROM tokens
             WHERE hash = ? AND (expires_ms IS NULL OR expires_ms > ?)",
        )
        .bind(hash.as_slice())
        .bind(now_ms)
        .fetch_optional(&self.database.readers)
        .await?;
        row.map(view).transpose()
    }

    /// All tokens, the oldest first, expired ones included.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn tokens(&self) -> Result<Vec<TokenView>, StateError> {
        let rows: Vec<TokenRow> = sqlx::query_as(
            "SELECT id, role, note, created_ms, expires_ms, used_ms FROM tokens ORDER BY created_ms, rowid",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter().map(view).collect()
    }

    /// Removes a token and ends the browser sessions made with it; returns whether it was there.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn revoke_token(&self, id: &str) -> Result<bool, StateError> {
        let done = sqlx::query("DELETE FROM tokens WHERE id = ?")
            .bind(id)
            .execute(self.database.writer())
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Notes that a token was used. Callers bundle: once a minute is plenty.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn touch_token(&self, id: &str, now_ms: TimestampMs) -> Result<(), StateError> {
        sqlx::query("UPDATE tokens SET used_ms = ? WHERE id = ?")
            .bind(now_ms)
            .bind(id)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}

type TokenRow = (String, String, String, i64, Option<i64>, Option<i64>);

fn view((id, role, note, created_ms, expires_ms, used_ms): TokenRow) -> Result<TokenView, StateError> {
    Ok(TokenView {
        id,
        role: from_word("role", &role)?,
        note,
        created_ms,
        expires_ms,
        used_ms,
    })
}
