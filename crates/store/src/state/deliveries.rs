//! The notifications that each webhook must be sent: the newest state of each group of alerts, not a log of messages.
//!
//! A group is a rule, identified by its name. For each webhook and group there is one row with the time of the next delivery
//! attempt, and for each alert of the group one row with its newest state:
//!
//! ```text
//! alert fires      → pending                            heard is unchanged
//! alert resolves   → not heard: the row is deleted      heard: pending, as resolved
//! begin_delivery   → the firing alerts that it takes become heard: they may arrive even without a response
//! delivered        → firing: no longer pending          resolved: the row is deleted     changed in between: stays pending
//! failed           → stays pending; heard is reset if no request was sent
//! ```
//! A pending change replaces an earlier one, so a receiver that is down costs one row per alert that is firing or that it knows
//! as firing, and nothing is ever dropped. A delivery has the newest state, so a late retry cannot set a receiver back to an
//! older state.
//!
//! Messages that were queued before the upgrade to this design are in `outbox`. They are sent first, oldest first.

use domain::api::alerts::{AlertState, AlertView};
use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, from_json, to_json};

/// The maximum number of alerts in one message: a receiver with a limit for the size of requests must not refuse a day with
/// many alerts.
pub const ALERTS_PER_MESSAGE_MAX: usize = 64;
/// A change of an alert shortens a longer pause after failures to this, so that a receiver that works again gets a new alert
/// soon.
const PAUSE_AFTER_CHANGE_MS: i64 = 10_000;
/// The maximum length of a stored error text: enough to see the response of a receiver.
const ERROR_CHARS_MAX: usize = 500;

/// A common table expression `next_attempts (webhook, at_ms)`: of each webhook the oldest queued message, or else its groups.
macro_rules! next_attempts {
    () => {
        "WITH oldest_queued AS (SELECT webhook, next_attempt_ms, min(id) FROM outbox GROUP BY webhook),
              next_attempts (webhook, at_ms) AS (
                  SELECT webhook, next_attempt_ms FROM oldest_queued
                  UNION ALL
                  SELECT webhook, min(next_attempt_ms) FROM webhook_groups
                  WHERE next_attempt_ms IS NOT NULL AND webhook NOT IN (SELECT webhook FROM outbox)
                  GROUP BY webhook) "
    };
}

/// The next message to a webhook.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// A message that an earlier version queued.
    Queued(QueuedMessage),
    /// The newest state of a group.
    Group(GroupDelivery),
}

/// A message that an earlier version queued.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedMessage {
    /// The key of the row.
    pub id: i64,
    /// The webhook.
    pub webhook: String,
    /// The `webhook-id` header, the same in every attempt.
    pub message_id: String,
    /// The JSON body.
    pub body: String,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The time when it was queued.
    pub created_ms: TimestampMs,
}

/// Changes of one group that a webhook has not confirmed yet, in their newest state; at most [`ALERTS_PER_MESSAGE_MAX`].
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDelivery {
    /// The webhook.
    pub webhook: String,
    /// The rule.
    pub rule: String,
    /// The alerts to send, resolved ones first. If all of them are resolved while others of the group still fire, firing ones
    /// are added: the message as a whole must not say that everything is resolved.
    pub alerts: Vec<AlertView>,
    /// The number of failed attempts since the last success.
    pub attempts: u32,
    /// The changes that a success confirms.
    changes: Vec<SentChange>,
}

/// The change of one alert that a delivery contains.
#[derive(Debug, Clone, PartialEq)]
struct SentChange {
    fingerprint: String,
    /// The version when it was taken. A response confirms only this version.
    version: i64,
    /// True if no earlier delivery contained the change.
    is_first: bool,
}

impl GroupDelivery {
    /// Creates a delivery that confirms nothing, for callers that need only its content.
    #[must_use]
    pub fn new(webhook: &str, rule: &str, alerts: Vec<AlertView>) -> Self {
        Self {
            webhook: webhook.to_owned(),
            rule: rule.to_owned(),
            alerts,
            attempts: 0,
            changes: Vec::new(),
        }
    }
}

impl StateStore {
    /// Returns the webhooks with a message that is due.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn due_webhooks(&self, now_ms: TimestampMs) -> Result<Vec<String>, StateError> {
        let due = sqlx::query_scalar(concat!(
            next_attempts!(),
            "SELECT DISTINCT webhook FROM next_attempts WHERE at_ms <= ?"
        ));
        Ok(due.bind(now_ms).fetch_all(&self.database.readers).await?)
    }

    /// Returns when the next delivery is due, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn next_delivery_ms(&self) -> Result<Option<TimestampMs>, StateError> {
        let next = sqlx::query_scalar(concat!(next_attempts!(), "SELECT min(at_ms) FROM next_attempts"));
        Ok(next.fetch_one(&self.database.readers).await?)
    }

    /// Takes the message that is due for a webhook, if there is one. Its firing alerts count as heard from now on, even after a
    /// crash. There is one delivery per webhook at a time: the caller finishes it before it begins the next.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn begin_delivery(
        &self,
        webhook: &str,
        now_ms: TimestampMs,
    ) -> Result<Option<Delivery>, StateError> {
        let mut transaction = self.database.begin().await?;
        if let Some((message, at_ms)) = oldest_queued(&mut transaction, webhook).await? {
            return Ok((at_ms <= now_ms).then_some(Delivery::Queued(message)));
        }
        let group: Option<(String, u32)> = sqlx::query_as(
            "SELECT rule, attempts FROM webhook_groups WHERE webhook = ? AND next_attempt_ms <= ?
             ORDER BY next_attempt_ms, rule LIMIT 1",
        )
        .bind(webhook)
        .bind(now_ms)
        .fetch_optional(&mut *transaction)
        .await?;
        let Some((rule, attempts)) = group else {
            return Ok(None);
        };
        let delivery = take_changes(&mut transaction, (webhook, &rule), attempts).await?;
        transaction.commit().await?;
        Ok(Some(Delivery::Group(delivery)))
    }

    /// Records that the receiver has confirmed the changes of a group. What changed during the delivery is still pending.
    ///
    /// # Errors
    /// Fails if the database fails. The changes are then sent again.
    pub async fn group_delivered(
        &self,
        delivery: &GroupDelivery,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        for change in &delivery.changes {
            for confirm in [
                "DELETE FROM webhook_alerts
                 WHERE webhook = ? AND rule = ? AND fingerprint = ? AND version = ? AND firing = 0",
                "UPDATE webhook_alerts SET pending = 0
                 WHERE webhook = ? AND rule = ? AND fingerprint = ? AND version = ?",
            ] {
                sqlx::query(confirm)
                    .bind(&delivery.webhook)
                    .bind(&delivery.rule)
                    .bind(&change.fingerprint)
                    .bind(change.version)
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        sqlx::query(
            "UPDATE webhook_groups SET attempts = 0, next_attempt_ms = ? WHERE webhook = ? AND rule = ?",
        )
        .bind(now_ms)
        .bind(&delivery.webhook)
        .bind(&delivery.rule)
        .execute(&mut *transaction)
        .await?;
        settle_groups(&mut transaction, &delivery.rule).await?;
        note_success(&mut transaction, &delivery.webhook, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// Records that the changes of a group were not delivered: they are due again at `next_ms`. `was_sent` is true if a request
    /// may have reached the receiver. Otherwise its alerts count as not heard, and an alert that resolves before the next
    /// attempt is not sent at all.
    ///
    /// # Errors
    /// Fails if the database fails. The changes are then due as before.
    pub async fn group_failed(
        &self,
        delivery: &GroupDelivery,
        was_sent: bool,
        next_ms: TimestampMs,
        error: &str,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        let unheard = delivery
            .changes
            .iter()
            .filter(|change| !was_sent && change.is_first);
        for change in unheard {
            for forget in [
                "UPDATE webhook_alerts SET heard = 0 WHERE webhook = ? AND rule = ? AND fingerprint = ?",
                // The alert was resolved while the request could not be sent.
                "DELETE FROM webhook_alerts
                 WHERE webhook = ? AND rule = ? AND fingerprint = ? AND heard = 0 AND firing = 0",
            ] {
                sqlx::query(forget)
                    .bind(&delivery.webhook)
                    .bind(&delivery.rule)
                    .bind(&change.fingerprint)
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        sqlx::query(
            "UPDATE webhook_groups SET attempts = attempts + 1, next_attempt_ms = ? WHERE webhook = ? AND rule = ?",
        )
        .bind(next_ms)
        .bind(&delivery.webhook)
        .bind(&delivery.rule)
        .execute(&mut *transaction)
        .await?;
        settle_groups(&mut transaction, &delivery.rule).await?;
        note_failure(&mut transaction, &delivery.webhook, error).await?;
        Ok(transaction.commit().await?)
    }

    /// Removes a queued message that was delivered.
    ///
    /// # Errors
    /// Fails if the database fails. The message is then sent again.
    pub async fn queued_delivered(
        &self,
        message: &QueuedMessage,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        remove_queued(&mut transaction, message.id).await?;
        note_success(&mut transaction, &message.webhook, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// Records that a queued message was not delivered: it is due again at `next_ms`, or removed if that is `None`.
    ///
    /// # Errors
    /// Fails if the database fails. The message is then due as before.
    pub async fn queued_failed(
        &self,
        message: &QueuedMessage,
        next_ms: Option<TimestampMs>,
        error: &str,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        match next_ms {
            Some(next_ms) => {
                sqlx::query("UPDATE outbox SET attempts = attempts + 1, next_attempt_ms = ? WHERE id = ?")
                    .bind(next_ms)
                    .bind(message.id)
                    .execute(&mut *transaction)
                    .await?;
            }
            None => remove_queued(&mut transaction, message.id).await?,
        }
        note_failure(&mut transaction, &message.webhook, error).await?;
        Ok(transaction.commit().await?)
    }
}

/// Records for every webhook that alerts began to fire or were resolved. The alerts themselves are already stored. For
/// `silenced` fingerprints the beginning is not recorded; their end is sent to receivers that know them as firing.
pub(super) async fn note_changes(
    transaction: &mut Transaction<'static, Sqlite>,
    alerts: &[AlertView],
    silenced: &[String],
    now_ms: TimestampMs,
) -> Result<(), StateError> {
    let has_webhooks: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM webhooks)")
        .fetch_one(&mut **transaction)
        .await?;
    if !has_webhooks {
        return Ok(());
    }
    let mut rules: Vec<&str> = Vec::new();
    for alert in alerts {
        match alert.state {
            AlertState::Pending => continue,
            AlertState::Firing if silenced.contains(&alert.fingerprint) => continue,
            AlertState::Firing => note_firing(transaction, alert).await?,
            AlertState::Resolved => note_resolved(transaction, alert).await?,
        }
        if !rules.contains(&alert.rule.as_str()) {
            rules.push(&alert.rule);
        }
    }
    for rule in rules {
        schedule(transaction, rule, now_ms).await?;
    }
    Ok(())
}

/// Makes the groups of a rule due soon after its alerts changed, if there is anything to send.
pub(super) async fn schedule(
    transaction: &mut Transaction<'static, Sqlite>,
    rule: &str,
    now_ms: TimestampMs,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE webhook_groups SET next_attempt_ms =
             CASE WHEN next_attempt_ms IS NULL OR attempts = 0 THEN ? ELSE min(next_attempt_ms, ?) END
         WHERE rule = ?",
    )
    .bind(now_ms)
    .bind(now_ms + PAUSE_AFTER_CHANGE_MS)
    .bind(rule)
    .execute(&mut **transaction)
    .await?;
    settle_groups(transaction, rule).await
}

async fn note_firing(
    transaction: &mut Transaction<'static, Sqlite>,
    alert: &AlertView,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO webhook_groups (webhook, rule) SELECT id, ? FROM webhooks WHERE true
         ON CONFLICT (webhook, rule) DO NOTHING",
    )
    .bind(&alert.rule)
    .execute(&mut **transaction)
    .await?;
    sqlx::query(
        "INSERT INTO webhook_alerts (webhook, rule, fingerprint, active_ms, firing, pending, heard, version)
         SELECT id, ?, ?, ?, 1, 1, 0, 1 FROM webhooks WHERE true
         ON CONFLICT (webhook, rule, fingerprint)
         DO UPDATE SET active_ms = excluded.active_ms, firing = 1, pending = 1, version = version + 1",
    )
    .bind(&alert.rule)
    .bind(&alert.fingerprint)
    .bind(alert.active_ms)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// As with Alertmanager, a receiver that never heard of the alert gets no notification of its end.
async fn note_resolved(
    transaction: &mut Transaction<'static, Sqlite>,
    alert: &AlertView,
) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM webhook_alerts WHERE fingerprint = ? AND rule = ? AND heard = 0")
        .bind(&alert.fingerprint)
        .bind(&alert.rule)
        .execute(&mut **transaction)
        .await?;
    sqlx::query(
        "UPDATE webhook_alerts SET active_ms = ?, firing = 0, pending = 1, version = version + 1
         WHERE fingerprint = ? AND rule = ?",
    )
    .bind(alert.active_ms)
    .bind(&alert.fingerprint)
    .bind(&alert.rule)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Clears the next attempt of groups that have nothing to send, and deletes groups without alerts.
pub(super) async fn settle_groups(
    transaction: &mut Transaction<'static, Sqlite>,
    rule: &str,
) -> Result<(), sqlx::Error> {
    for settle in [
        "UPDATE webhook_groups SET attempts = 0, next_attempt_ms = NULL WHERE rule = ? AND NOT EXISTS
             (SELECT 1 FROM webhook_alerts AS alert
              WHERE alert.webhook = webhook_groups.webhook AND alert.rule = webhook_groups.rule AND pending = 1)",
        "DELETE FROM webhook_groups WHERE rule = ? AND NOT EXISTS
             (SELECT 1 FROM webhook_alerts AS alert
              WHERE alert.webhook = webhook_groups.webhook AND alert.rule = webhook_groups.rule)",
    ] {
        sqlx::query(settle).bind(rule).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Takes the changes for the next message of a group. Resolved alerts go first: this bounds what a receiver knows as firing by
/// what really fires.
async fn take_changes(
    transaction: &mut Transaction<'static, Sqlite>,
    (webhook, rule): (&str, &str),
    attempts: u32,
) -> Result<GroupDelivery, StateError> {
    // One place is reserved for a firing alert.
    let mut rows = alerts_of(
        transaction,
        (webhook, rule),
        (true, false),
        ALERTS_PER_MESSAGE_MAX - 1,
    )
    .await?;
    let room = ALERTS_PER_MESSAGE_MAX - rows.len();
    rows.extend(alerts_of(transaction, (webhook, rule), (true, true), room).await?);
    let firing: Vec<&str> = rows
        .iter()
        .filter(|row| row.is_firing)
        .map(|row| row.fingerprint.as_str())
        .collect();
    let nothing_fires = firing.is_empty();
    sqlx::query(
        "UPDATE webhook_alerts SET heard = 1
         WHERE webhook = ? AND rule = ? AND fingerprint IN (SELECT value FROM json_each(?))",
    )
    .bind(webhook)
    .bind(rule)
    .bind(to_json("list of alerts", &firing)?)
    .execute(&mut **transaction)
    .await?;
    let changes = rows
        .iter()
        .map(|row| SentChange {
            fingerprint: row.fingerprint.clone(),
            version: row.version,
            is_first: !row.is_heard,
        })
        .collect();
    if nothing_fires {
        let room = ALERTS_PER_MESSAGE_MAX - rows.len();
        rows.extend(alerts_of(transaction, (webhook, rule), (false, true), room).await?);
    }
    let alerts = rows.iter().map(|row| from_json("alert", &row.alert));
    Ok(GroupDelivery {
        webhook: webhook.to_owned(),
        rule: rule.to_owned(),
        alerts: alerts.collect::<Result<_, _>>()?,
        attempts,
        changes,
    })
}

#[derive(sqlx::FromRow)]
struct AlertRow {
    fingerprint: String,
    version: i64,
    is_firing: bool,
    is_heard: bool,
    alert: String,
}

async fn alerts_of(
    transaction: &mut Transaction<'static, Sqlite>,
    (webhook, rule): (&str, &str),
    (pending, firing): (bool, bool),
    limit: usize,
) -> Result<Vec<AlertRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT sent.fingerprint, sent.version, sent.firing AS is_firing, sent.heard AS is_heard, alerts.alert
         FROM webhook_alerts AS sent JOIN alerts USING (fingerprint, active_ms)
         WHERE sent.webhook = ? AND sent.rule = ? AND sent.pending = ? AND sent.firing = ?
         ORDER BY sent.active_ms, sent.fingerprint LIMIT ?",
    )
    .bind(webhook)
    .bind(rule)
    .bind(pending)
    .bind(firing)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut **transaction)
    .await
}

async fn oldest_queued(
    transaction: &mut Transaction<'static, Sqlite>,
    webhook: &str,
) -> Result<Option<(QueuedMessage, TimestampMs)>, sqlx::Error> {
    type Row = (i64, String, String, u32, i64, i64);
    let row: Option<Row> = sqlx::query_as(
        "SELECT id, message_id, body, attempts, created_ms, next_attempt_ms FROM outbox
         WHERE webhook = ? ORDER BY id LIMIT 1",
    )
    .bind(webhook)
    .fetch_optional(&mut **transaction)
    .await?;
    Ok(
        row.map(|(id, message_id, body, attempts, created_ms, next_attempt_ms)| {
            let message = QueuedMessage {
                id,
                webhook: webhook.to_owned(),
                message_id,
                body,
                attempts,
                created_ms,
            };
            (message, next_attempt_ms)
        }),
    )
}

async fn remove_queued(transaction: &mut Transaction<'static, Sqlite>, id: i64) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM outbox WHERE id = ?")
        .bind(id)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

async fn note_success(
    transaction: &mut Transaction<'static, Sqlite>,
    webhook: &str,
    now_ms: TimestampMs,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE webhooks SET delivered_ms = ?, last_error = NULL WHERE id = ?")
        .bind(now_ms)
        .bind(webhook)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

async fn note_failure(
    transaction: &mut Transaction<'static, Sqlite>,
    webhook: &str,
    error: &str,
) -> Result<(), sqlx::Error> {
    let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
    sqlx::query("UPDATE webhooks SET last_error = ? WHERE id = ?")
        .bind(error)
        .bind(webhook)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}
