//! API tokens. Only their hashes are stored.

use domain::api::session::{Role, TokenView};
use domain::time::TimestampMs;

use super::{StateError, StateStore, from_word, is_taken, to_word};

/// The SHA-256 of a secret. The secret itself has high entropy and is never stored.
pub type SecretHash = [u8; 32];

/// A new token.
#[derive(Debug, Clone)]
pub struct NewToken<'a> {
    /// Its public id.
    pub id: &'a str,
    /// The role that it grants.
    pub role: Role,
    /// The hash of the secret.
    pub hash: &'a SecretHash,
    /// A note for people: who or what uses the token.
    pub note: &'a str,
    /// The time when it expires; `None` for never.
    pub expires_ms: Option<TimestampMs>,
}

impl StateStore {
    /// Stores a token.
    ///
    /// # Errors
    /// [`StateError::Exists`] if the id or the hash is taken.
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

    /// Returns all tokens with the hashes of their secrets, including expired ones. The caller keeps them in memory for
    /// authentication.
    ///
    /// # Errors
    /// Fails if the database fails, or if a hash has the wrong length.
    pub async fn tokens_by_hash(&self) -> Result<Vec<(SecretHash, TokenView)>, StateError> {
        let rows: Vec<HashedTokenRow> =
            sqlx::query_as("SELECT hash, id, role, note, created_ms, expires_ms, used_ms FROM tokens")
                .fetch_all(&self.database.readers)
                .await?;
        rows.into_iter()
            .map(|(hash, id, role, note, created_ms, expires_ms, used_ms)| {
                let token = view((id, role, note, created_ms, expires_ms, used_ms))?;
                Ok((secret_hash(&hash)?, token))
            })
            .collect()
    }

    /// Returns all tokens, oldest first, including expired ones.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn tokens(&self) -> Result<Vec<TokenView>, StateError> {
        let rows: Vec<TokenRow> = sqlx::query_as(
            "SELECT id, role, note, created_ms, expires_ms, used_ms FROM tokens ORDER BY created_ms, rowid",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter().map(view).collect()
    }

    /// Deletes a token and the browser sessions that were created with it. Returns true if it existed.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn revoke_token(&self, id: &str) -> Result<bool, StateError> {
        let done = sqlx::query("DELETE FROM tokens WHERE id = ?")
            .bind(id)
            .execute(self.database.writer())
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Stores when tokens were last used, in one transaction.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn touch_tokens(&self, used: &[(String, TimestampMs)]) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        for (id, used_ms) in used {
            sqlx::query("UPDATE tokens SET used_ms = ? WHERE id = ?")
                .bind(used_ms)
                .bind(id)
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }
}

/// Converts the hash in a column.
pub(super) fn secret_hash(bytes: &[u8]) -> Result<SecretHash, StateError> {
    bytes
        .try_into()
        .map_err(|error| StateError::Database(sqlx::Error::Decode(Box::new(error))))
}

type HashedTokenRow = (Vec<u8>, String, String, String, i64, Option<i64>, Option<i64>);
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
