//! Alerts and the notifications about them. Both change in one transaction, so that no change is missed.

use std::collections::BTreeMap;

use domain::api::alerts::AlertView;
use domain::incident::{Context, DiagnosisId};
use domain::time::TimestampMs;
use serde::Serialize;

use super::{StateError, StateStore, bounded, deliveries, from_json, incidents, to_json, to_word};

/// The maximum number of resolved alerts that are kept. The oldest are deleted first.
const HISTORY_MAX: i64 = 20_000;

/// The changes of one evaluation of the rules.
#[derive(Debug, Clone, Default)]
pub struct AlertChanges<'a> {
    /// Alerts that are new or different.
    pub upserts: &'a [AlertView],
    /// Fingerprints of pending alerts whose condition ended before they fired. They are deleted.
    pub forgotten: &'a [String],
    /// The context of alerts among `upserts`.
    pub contexts: &'a [(DiagnosisId, Context)],
    /// Fingerprints of alerts among `upserts` that are silenced: no webhook is notified that they fire.
    pub silenced: &'a [String],
}

/// What all alerts of one rule have in common.
#[derive(Debug, Clone, Serialize)]
pub struct RuleKey<'a> {
    /// The rule's name.
    pub name: &'a str,
    /// Labels with the same value in all alerts.
    pub labels: BTreeMap<&'a str, &'a str>,
}

impl StateStore {
    /// Returns the alerts that are pending or firing, oldest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn active_alerts(&self) -> Result<Vec<AlertView>, StateError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT alert FROM alerts WHERE state IN ('pending', 'firing') ORDER BY active_ms, fingerprint",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.iter().map(|row| from_json("alert", row)).collect()
    }

    /// Returns resolved alerts, the latest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn alert_history(&self, limit: u32) -> Result<Vec<AlertView>, StateError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT alert FROM alerts WHERE state = 'resolved' ORDER BY updated_ms DESC, rowid DESC LIMIT ?",
        )
        .bind(bounded(limit))
        .fetch_all(&self.database.readers)
        .await?;
        rows.iter().map(|row| from_json("alert", row)).collect()
    }

    /// Returns when an alert of each rule last began to fire, in the order of `rules`. `None` if no stored alert of the rule has fired.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn last_fired(&self, rules: &[RuleKey<'_>]) -> Result<Vec<Option<TimestampMs>>, StateError> {
        // The alert that became active last is the one that fired last, and an index has this order.
        let fired_ms: Vec<Option<TimestampMs>> = sqlx::query_scalar(
            "SELECT (SELECT alert ->> '$.fired_ms' FROM alerts
               WHERE alert ->> '$.rule' = rule.value ->> '$.name' AND alert ->> '$.fired_ms' IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM json_each(rule.value, '$.labels') AS label
                   WHERE coalesce(alert -> '$.labels' ->> label.key, '') <> label.value)
               ORDER BY active_ms DESC LIMIT 1)
             FROM json_each(?) AS rule ORDER BY rule.key",
        )
        .bind(to_json("list of rules", &rules)?)
        .fetch_all(&self.database.readers)
        .await?;
        Ok(fired_ms)
    }

    /// Stores changes of alerts, and the resulting notifications for each webhook.
    ///
    /// # Errors
    /// Fails if the database fails. Nothing is then stored.
    pub async fn apply_alerts(
        &self,
        changes: AlertChanges<'_>,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
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
        incidents::store_contexts(&mut transaction, changes.contexts).await?;
        deliveries::note_changes(&mut transaction, changes.upserts, changes.silenced, now_ms).await?;
        // Alerts with pending notifications are kept.
        sqlx::query(
            "DELETE FROM alerts WHERE rowid IN
             (SELECT rowid FROM alerts WHERE state = 'resolved' ORDER BY updated_ms DESC LIMIT -1 OFFSET ?)
             AND NOT EXISTS (SELECT 1 FROM webhook_alerts AS sent
                 WHERE sent.fingerprint = alerts.fingerprint AND sent.active_ms = alerts.active_ms)",
        )
        .bind(HISTORY_MAX)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }
}
