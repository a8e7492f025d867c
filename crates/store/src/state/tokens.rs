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

    /// All tokens with the hashes of their secrets, expired ones included: who authenticates keeps them in memory.
    ///
    /// # Errors
    /// When the database fails, or a hash has another length.
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

    /// Stores when tokens were used last, in one transaction.
    ///
    /// # Errors
    /// When the database fails.
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

/// The hash in a column.
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
