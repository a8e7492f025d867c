//! The effect of silences on notifications: alerts that a receiver has not heard of are held back, and sent when the silence is
//! over.

use domain::api::alerts::AlertView;
use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, deliveries, to_json};

impl StateStore {
    /// Withdraws notifications of firing alerts, as far as no receiver may have received them.
    ///
    /// # Errors
    /// Fails if the database fails. Nothing is then changed.
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

    /// Schedules a notification to every webhook that existed when one of these alerts began to fire, unless it already knows
    /// the alert as firing.
    ///
    /// # Errors
    /// Fails if the database fails. Nothing is then changed.
    pub async fn notify_unsilenced(
        &self,
        alerts: &[AlertView],
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        for alert in alerts {
            // The alert may have ended since the caller read it.
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
            // A receiver that has not been sent the end of the previous alert with this fingerprint is sent the new one
            // instead.
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

/// Returns the rules of the alerts, without duplicates.
fn rules(alerts: &[AlertView]) -> Vec<&str> {
    let mut rules: Vec<&str> = alerts.iter().map(|alert| alert.rule.as_str()).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}
