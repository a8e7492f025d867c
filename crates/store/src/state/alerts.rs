//! Alerts and what is to be told about them: both change in one transaction, so that no change goes untold.

use domain::api::alerts::AlertView;
use domain::time::TimestampMs;

use super::outbox::NewMessage;
use super::{StateError, StateStore, bounded, from_json, outbox, to_json, to_word};

/// Resolved alerts kept for looking back; the oldest go first.
const HISTORY_MAX: i64 = 20_000;

/// What one evaluation of the rules changed.
#[derive(Debug, Clone, Default)]
pub struct AlertChanges<'a> {
    /// Alerts that are new or different.
    pub upserts: &'a [AlertView],
    /// Fingerprints of pending alerts whose condition went away before they fired: they leave no trace.
    pub forgotten: &'a [String],
    /// What to send because of it.
    pub messages: &'a [NewMessage],
}

impl StateStore {
    /// Alerts that are pending or firing, by their age.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn active_alerts(&self) -> Result<Vec<AlertView>, StateError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT alert FROM alerts WHERE state IN ('pending', 'firing') ORDER BY active_ms, fingerprint",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.iter().map(|row| from_json("alert", row)).collect()
    }

    /// Resolved alerts, the latest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn alert_history(&self, limit: u32) -> Result<Vec<AlertView>, StateError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT alert FROM alerts WHERE state = 'resolved' ORDER BY updated_ms DESC, rowid DESC LIMIT ?",
        )
        .bind(bounded(limit))
        .fetch_all(&self.database.readers)
        .await?;
        rows.iter().map(|row| from_json("alert", row)).collect()
    }

    /// Stores changes and their messages together. Returns how many old messages had to be dropped to make room.
    ///
    /// # Errors
    /// When the database fails; then nothing is stored.
    pub async fn apply_alerts(
        &self,
        changes: AlertChanges<'_>,
        now_ms: TimestampMs,
    ) -> Result<u64, StateError> {
        let mut transaction = self.database.begin().await?;
        for alert in changes.upserts {
            sqlx::query(
                "INSERT INTO alerts (fingerprint, active_ms, state, updated_ms, alert) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (fingerprint, active_ms)
                 DO UPDATE SET state = excluded.state, updated_ms = excluded.updated_ms, alert = excluded.alert",
            )
            .bind(&alert.fingerprint)
            .bind(alert.active_ms)
            .bind(to_word("alert state", &alert.state)?)
            .bind(now_ms)
            .bind(to_json("alert", alert)?)
            .execute(&mut *transaction)
            .await?;
        }
        for fingerprint in changes.forgotten {
            let delete = sqlx::query("DELETE FROM alerts WHERE fingerprint = ? AND state = 'pending'");
            delete.bind(fingerprint).execute(&mut *transaction).await?;
        }
        sqlx::query(
            "DELETE FROM alerts WHERE rowid IN
             (SELECT rowid FROM alerts WHERE state = 'resolved' ORDER BY updated_ms DESC LIMIT -1 OFFSET ?)",
        )
        .bind(HISTORY_MAX)
        .execute(&mut *transaction)
        .await?;
        let dropped = outbox::insert(&mut transaction, changes.messages, now_ms).await?;
        transaction.commit().await?;
        self.count_dropped(dropped);
        Ok(dropped)
    }
}
