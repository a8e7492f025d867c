//! Webhooks: the receivers of notifications.

use std::fmt;

use domain::time::TimestampMs;

use super::{StateError, StateStore, is_taken};

/// The query of a [`Webhook`].
macro_rules! columns {
    () => {
        "SELECT id, url, secret, created_ms, last_error, delivered_ms,
             (SELECT count(*) FROM outbox WHERE webhook = webhooks.id)
             + (SELECT count(*) FROM webhook_groups WHERE webhook = webhooks.id AND next_attempt_ms IS NOT NULL) AS pending
         FROM webhooks "
    };
}

/// A receiver of notifications.
#[derive(Clone, PartialEq, sqlx::FromRow)]
pub struct Webhook {
    /// The id of the webhook.
    pub id: String,
    /// The URL of its POST requests.
    pub url: String,
    /// The signing secret. It is never logged.
    pub secret: String,
    /// The time when it was created.
    pub created_ms: TimestampMs,
    /// The last error. A success clears it.
    pub last_error: Option<String>,
    /// The time of the last success.
    pub delivered_ms: Option<TimestampMs>,
    /// The number of pending deliveries: groups of alerts with changes, and messages queued by an earlier version.
    #[sqlx(try_from = "i64")]
    pub pending: u64,
}

impl fmt::Debug for Webhook {
    /// Without the secret, and without the URL, because its path is a secret for many receivers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("id", &self.id)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl StateStore {
    /// Adds a webhook.
    ///
    /// # Errors
    /// [`StateError::Exists`] if the id is taken.
    pub async fn create_webhook(
        &self,
        id: &str,
        url: &str,
        secret: &str,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let insert = sqlx::query("INSERT INTO webhooks (id, url, secret, created_ms) VALUES (?, ?, ?, ?)");
        match insert
            .bind(id)
            .bind(url)
            .bind(secret)
            .bind(now_ms)
            .execute(self.database.writer())
            .await
        {
            Err(error) if is_taken(&error) => Err(StateError::Exists {
                what: format!("webhook {id}"),
            }),
            other => Ok(other.map(drop)?),
        }
    }

    /// Returns all webhooks, oldest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, StateError> {
        let all = sqlx::query_as(concat!(columns!(), "ORDER BY created_ms, rowid"));
        Ok(all.fetch_all(&self.database.readers).await?)
    }

    /// Returns one webhook, or `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn webhook(&self, id: &str) -> Result<Option<Webhook>, StateError> {
        let one = sqlx::query_as(concat!(columns!(), "WHERE id = ?")).bind(id);
        Ok(one.fetch_optional(&self.database.readers).await?)
    }

    /// Deletes a webhook and its pending deliveries. Returns true if it existed.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn delete_webhook(&self, id: &str) -> Result<bool, StateError> {
        let done = sqlx::query("DELETE FROM webhooks WHERE id = ?")
            .bind(id)
            .execute(self.database.writer())
            .await?;
        Ok(done.rows_affected() > 0)
    }
}
