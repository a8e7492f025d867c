//! Messages that wait for their webhook. Each is delivered at least once, under the same id every time.

use std::sync::atomic::Ordering;

use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, bounded};

/// The most messages that wait: days of a receiver that is down. When full, the oldest about resolved alerts are dropped
/// first, then the oldest of all: a receiver that comes back wants to know what is wrong now.
pub const OUTBOX_MAX: i64 = 10_000;
/// The longest error text kept: enough to see what a receiver answered.
const ERROR_CHARS_MAX: usize = 500;

/// A message to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// The webhook it goes to.
    pub webhook: String,
    /// The `webhook-id` header.
    pub message_id: String,
    /// The JSON body, as it will be signed and sent.
    pub body: String,
    /// Whether it only says that alerts are over.
    pub resolved: bool,
}

/// A message that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The store's own number.
    pub id: i64,
    /// The webhook it goes to.
    pub webhook: String,
    /// The `webhook-id` header.
    pub message_id: String,
    /// The JSON body.
    pub body: String,
    /// How often it was tried in vain.
    pub attempts: u32,
    /// When it was written.
    pub created_ms: TimestampMs,
}

impl StateStore {
    /// Adds messages that no alert stands behind (a test message, say). Returns how many old ones were dropped to make room.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn enqueue_messages(
        &self,
        messages: &[NewMessage],
        now_ms: TimestampMs,
    ) -> Result<u64, StateError> {
        let mut transaction = self.database.begin().await?;
        let dropped = insert(&mut transaction, messages, now_ms).await?;
        transaction.commit().await?;
        self.count_dropped(dropped);
        Ok(dropped)
    }

    /// Messages whose time has come, the oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn due_messages(&self, now_ms: TimestampMs, limit: u32) -> Result<Vec<Message>, StateError> {
        type Row = (i64, String, String, String, u32, i64);
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT id, webhook, message_id, body, attempts, created_ms FROM outbox WHERE next_attempt_ms <= ? ORDER BY id LIMIT ?",
        )
        .bind(now_ms)
        .bind(bounded(limit))
        .fetch_all(&self.database.readers)
        .await?;
        let message = |(id, webhook, message_id, body, attempts, created_ms): Row| Message {
            id,
            webhook,
            message_id,
            body,
            attempts,
            created_ms,
        };
        Ok(rows.into_iter().map(message).collect())
    }

    /// Webhooks that have messages whose time has come.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn due_webhooks(&self, now_ms: TimestampMs) -> Result<Vec<String>, StateError> {
        let due = sqlx::query_scalar("SELECT DISTINCT webhook FROM outbox WHERE next_attempt_ms <= ?");
        Ok(due.bind(now_ms).fetch_all(&self.database.readers).await?)
    }

    /// The oldest message of a webhook whose time has come.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn next_due_message(
        &self,
        webhook: &str,
        now_ms: TimestampMs,
    ) -> Result<Option<Message>, StateError> {
        let row: Option<(i64, String, String, u32, i64)> = sqlx::query_as(
            "SELECT id, message_id, body, attempts, created_ms FROM outbox
             WHERE webhook = ? AND next_attempt_ms <= ? ORDER BY id LIMIT 1",
        )
        .bind(webhook)
        .bind(now_ms)
        .fetch_optional(&self.database.readers)
        .await?;
        Ok(row.map(|(id, message_id, body, attempts, created_ms)| Message {
            id,
            webhook: webhook.to_owned(),
            message_id,
            body,
            attempts,
            created_ms,
        }))
    }

    /// When the next message is due, if any waits.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn next_message_ms(&self) -> Result<Option<TimestampMs>, StateError> {
        Ok(sqlx::query_scalar("SELECT min(next_attempt_ms) FROM outbox")
            .fetch_one(&self.database.readers)
            .await?)
    }

    /// The receiver has it: forgets the message.
    ///
    /// # Errors
    /// When the database fails; the message is then sent again.
    pub async fn mark_delivered(&self, id: i64, now_ms: TimestampMs) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        sqlx::query("UPDATE webhooks SET delivered_ms = ?, last_error = NULL WHERE id = (SELECT webhook FROM outbox WHERE id = ?)")
            .bind(now_ms)
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("DELETE FROM outbox WHERE id = ?")
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }

    /// It did not get through: tries again at `next_attempt_ms`, or gives the message up when that is `None`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mark_failed(
        &self,
        id: i64,
        next_attempt_ms: Option<TimestampMs>,
        error: &str,
    ) -> Result<(), StateError> {
        let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
        let mut transaction = self.database.begin().await?;
        sqlx::query(
            "UPDATE webhooks SET last_error = ? WHERE id = (SELECT webhook FROM outbox WHERE id = ?)",
        )
        .bind(error)
        .bind(id)
        .execute(&mut *transaction)
        .await?;
        match next_attempt_ms {
            Some(next_ms) => {
                let retry = sqlx::query(
                    "UPDATE outbox SET attempts = attempts + 1, next_attempt_ms = ? WHERE id = ?",
                );
                retry.bind(next_ms).bind(id).execute(&mut *transaction).await?;
            }
            None => {
                sqlx::query("DELETE FROM outbox WHERE id = ?")
                    .bind(id)
                    .execute(&mut *transaction)
                    .await?;
                self.count_dropped(1);
            }
        }
        Ok(transaction.commit().await?)
    }

    /// Messages dropped since the start, because the outbox was full or their time was up.
    #[must_use]
    pub fn messages_dropped(&self) -> u64 {
        self.messages_dropped.load(Ordering::Relaxed)
    }

    pub(super) fn count_dropped(&self, dropped: u64) {
        self.messages_dropped.fetch_add(dropped, Ordering::Relaxed);
    }
}

/// Inserts what is not there yet, then makes room.
pub(super) async fn insert(
    transaction: &mut Transaction<'static, Sqlite>,
    messages: &[NewMessage],
    now_ms: TimestampMs,
) -> Result<u64, StateError> {
    if messages.is_empty() {
        return Ok(0);
    }
    for message in messages {
        sqlx::query(
            "INSERT INTO outbox (webhook, message_id, resolved, body, created_ms, next_attempt_ms)
             SELECT id, ?, ?, ?, ?, ? FROM webhooks WHERE id = ? ON CONFLICT (message_id) DO NOTHING",
        )
        .bind(&message.message_id)
        .bind(message.resolved)
        .bind(&message.body)
        .bind(now_ms)
        .bind(now_ms)
        .bind(&message.webhook)
        .execute(&mut **transaction)
        .await?;
    }
    let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox")
        .fetch_one(&mut **transaction)
        .await?;
    let excess = (waiting - OUTBOX_MAX).max(0);
    let drop = sqlx::query(
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY resolved DESC, id LIMIT ?)",
    );
    Ok(drop
        .bind(excess)
        .execute(&mut **transaction)
        .await?
        .rows_affected())
}
