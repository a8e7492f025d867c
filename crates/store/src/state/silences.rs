//! Silences. They are kept for a while after their end, so that a person who misses a notification can see who silenced it and
//! why.

use domain::incident::Silence;
use domain::time::TimestampMs;

use super::{StateError, StateStore, from_json, to_json};

/// The maximum number of silences, including those that have ended.
pub const SILENCES_MAX: usize = 1_000;
/// How long a silence is kept after its end.
const KEPT_MS: i64 = 30 * 24 * 3_600_000;

impl StateStore {
    /// Returns all silences; those that end last come first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn silences(&self) -> Result<Vec<Silence>, StateError> {
        let rows: Vec<String> = sqlx::query_scalar("SELECT silence FROM silences ORDER BY ends_ms DESC, id")
            .fetch_all(&self.database.readers)
            .await?;
        rows.iter().map(|row| from_json("silence", row)).collect()
    }

    /// Stores a silence, or replaces the one with the same id. Deletes silences that ended more than 30 days ago.
    ///
    /// # Errors
    /// Fails if the database fails, or if there are already [`SILENCES_MAX`] others.
    pub async fn put_silence(&self, silence: &Silence, now_ms: TimestampMs) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        sqlx::query("DELETE FROM silences WHERE ends_ms < ?")
            .bind(now_ms - KEPT_MS)
            .execute(&mut *transaction)
            .await?;
        let others: i64 = sqlx::query_scalar("SELECT count(*) FROM silences WHERE id <> ?")
            .bind(&silence.id)
            .fetch_one(&mut *transaction)
            .await?;
        if usize::try_from(others).is_ok_and(|others| others >= SILENCES_MAX) {
            return Err(StateError::Full {
                what: "silences",
                max: SILENCES_MAX,
            });
        }
        sqlx::query(
            "INSERT INTO silences (id, ends_ms, silence) VALUES (?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET ends_ms = excluded.ends_ms, silence = excluded.silence",
        )
        .bind(&silence.id)
        .bind(silence.ends_ms)
        .bind(to_json("silence", silence)?)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }
}
