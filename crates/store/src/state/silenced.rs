//! What silences change about deliveries: alerts that a receiver has not heard of are not sent, and are sent once the silence is over.

use domain::api::alerts::AlertView;
use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, deliveries, to_json};

impl StateStore {
    /// Takes back the word that alerts fire, as far as no receiver may have heard it.
    ///
    /// # Errors
    /// When the database fails; then nothing is changed.
    pub async fn silence_alerts(&self, alerts: &[AlertView]) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        let fingerprints: Vec<&str> = alerts.iter().map(|alert| alert.fingerprint.as_str()).collect();
        sqlx::query(
            "DELETE FROM webhook_alerts WHERE heard = 0 AND firing = 1
             AND fingerprint IN (SELECT value FROM json_each(?))",
        )
        .bind(to_json("list of alerts", &fingerprints)?)
        .execute(&mut *transaction)
        .await?;
        for rule in rules(alerts) {
            deliveries::settle_groups(&mut transaction, rule).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Makes sure that every webhook which was there when one of these alerts began to fire is told about it. Those that know it
    /// already are not told again.
    ///
    /// # Errors
    /// When the database fails; then nothing is changed.
    pub async fn tell_unsilenced(&self, alerts: &[AlertView], now_ms: TimestampMs) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        for alert in alerts {
            // It may have ended since the caller looked.
            if !still_fires(&mut transaction, alert).await? {
                continue;
            }
            let fired_ms = alert.fired_ms.unwrap_or(alert.active_ms);
            sqlx::query(
                "INSERT INTO webhook_groups (webhook, rule) SELECT id, ? FROM webhooks WHERE created_ms <= ?
                 ON CONFLICT (webhook, rule) DO NOTHING",
            )
            .bind(&alert.rule)
            .bind(fired_ms)
            .execute(&mut *transaction)
            .await?;
            // A receiver that is still to be sent the end of the alert's last life is told of this one.
            sqlx::query(
                "INSERT INTO webhook_alerts (webhook, rule, fingerprint, active_ms, firing, pending, heard, version)
                 SELECT id, ?, ?, ?, 1, 1, 0, 1 FROM webhooks WHERE created_ms <= ?
                 ON CONFLICT (webhook, rule, fingerprint)
                 DO UPDATE SET active_ms = excluded.active_ms, firing = 1, pending = 1, version = version + 1
                 WHERE webhook_alerts.firing = 0",
            )
            .bind(&alert.rule)
            .bind(&alert.fingerprint)
            .bind(alert.active_ms)
            .bind(fired_ms)
            .execute(&mut *transaction)
            .await?;
        }
        for rule in rules(alerts) {
            deliveries::schedule(&mut transaction, rule, now_ms).await?;
        }
        Ok(transaction.commit().await?)
    }
}

async fn still_fires(
    transaction: &mut Transaction<'static, Sqlite>,
    alert: &AlertView,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM alerts WHERE fingerprint = ? AND active_ms = ? AND state = 'firing')",
    )
    .bind(&alert.fingerprint)
    .bind(alert.active_ms)
    .fetch_one(&mut **transaction)
    .await
}

/// Each once.
fn rules(alerts: &[AlertView]) -> Vec<&str> {
    let mut rules: Vec<&str> = alerts.iter().map(|alert| alert.rule.as_str()).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}
