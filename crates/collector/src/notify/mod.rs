//! Delivery of alerts to webhooks. Each receiver gets the newest state of each group of alerts at least once, and never an older state
//! after a newer one. Receivers are independent: one that is down does not delay the others.
//!
//! The store keeps what must be sent to each receiver ([`store::state::deliveries`]); the body is built here when it is sent. A webhook has
//! one request in progress at a time, so its requests begin in the order of the states that they carry.

pub mod message;
pub mod webhook;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::time::TimestampMs;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use store::StateStore;
use store::state::StateError;
use store::state::deliveries::{Delivery, GroupDelivery, QueuedMessage};
use store::state::webhooks::Webhook;
use tokio::sync::Notify;
use tracing::{info, warn};

use self::message::Message;
use self::webhook::DeliveryError;
use crate::clock;
use crate::error::StartError;
use crate::tasks::Tasks;

/// Maximum number of deliveries to one receiver in one turn. It gets the next turn at once.
const TURN_DELIVERIES_MAX: u32 = 64;
/// Maximum time that the notifier sleeps if nothing wakes it.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// The first pause after a failure, in milliseconds. It doubles with each failure, up to [`PAUSE_MS_MAX`].
const PAUSE_MS_MIN: i64 = 1_000;
/// Five minutes, so that a receiver that is back soon gets what it missed.
const PAUSE_MS_MAX: i64 = 300_000;
/// A message queued by an earlier version is dropped after three days, as in that version.
const QUEUED_AGE_MS_MAX: i64 = 3 * 24 * 3_600_000;
/// A queued message that the receiver rejects this often, over about 14 minutes, is dropped, so that later states can be sent.
const QUEUED_REFUSALS_MAX: u32 = 10;

/// Delivers notifications to webhooks until the collector stops. `external_url` is the collector's URL in messages.
///
/// # Errors
/// Returns an error if the HTTP client cannot be created.
pub(crate) fn start(
    notifier: Notifier,
    state: StateStore,
    external_url: String,
    tasks: &Tasks,
) -> Result<(), StartError> {
    let client = webhook::client().map_err(|error| StartError::load("the HTTP client", error))?;
    let sender = Sender {
        notifier,
        state,
        client,
        external_url,
    };
    tasks.spawn(async move { sender.deliver_for_ever().await });
    Ok(())
}

/// Wakes the delivery. Cheap to clone.
#[derive(Clone, Default)]
pub struct Notifier {
    wake: Arc<Notify>,
}

impl Notifier {
    /// Signals that there is something new to deliver.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

/// Delivers to all webhooks.
struct Sender {
    notifier: Notifier,
    state: StateStore,
    client: reqwest::Client,
    external_url: String,
}

impl Sender {
    async fn deliver_for_ever(&self) {
        let mut turns = FuturesUnordered::new();
        let mut busy = BTreeSet::new();
        loop {
            match self.state.due_webhooks(clock::now_ms()).await {
                Ok(due) => {
                    for webhook in due {
                        if busy.insert(webhook.clone()) {
                            turns.push(self.turn(webhook));
                        }
                    }
                }
                Err(error) => warn!(%error, "the deliveries to webhooks cannot be read"),
            }
            let pause = self.sleep(turns.is_empty()).await;
            tokio::select! {
                Some(webhook) = turns.next(), if !turns.is_empty() => {
                    busy.remove(&webhook);
                }
                _woken_or_not = tokio::time::timeout(pause, self.notifier.wake.notified()) => {}
            }
        }
    }

    /// Returns the time until the next delivery is due. A delivery in progress counts as due, and its end wakes the loop.
    async fn sleep(&self, idle: bool) -> Duration {
        if !idle {
            return SLEEP_MAX;
        }
        let next_ms = self.state.next_delivery_ms().await.ok().flatten();
        let wait_ms = next_ms.map_or(i64::MAX, |at_ms| at_ms - clock::now_ms());
        Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)).clamp(Duration::from_millis(10), SLEEP_MAX)
    }

    /// One receiver's turn: delivers what is due for it, one after the other, until nothing is due or a delivery fails.
    async fn turn(&self, webhook: String) -> String {
        for _ in 0..TURN_DELIVERIES_MAX {
            match self.deliver_next(&webhook).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    warn!(%error, "a delivery to a webhook could not be read or recorded; it is sent again");
                    // Not at once: with a full disk, one delivery would be repeated without end.
                    tokio::time::sleep(SLEEP_MAX).await;
                    break;
                }
            }
        }
        webhook
    }

    /// Delivers what is due for a webhook. Returns true if the next delivery may follow at once.
    async fn deliver_next(&self, webhook: &str) -> Result<bool, StateError> {
        let state = &self.state;
        let Some(receiver) = state.webhook(webhook).await? else {
            return Ok(false);
        };
        match state.begin_delivery(webhook, clock::now_ms()).await? {
            None => Ok(false),
            Some(Delivery::Group(delivery)) => self.deliver_group(&receiver, delivery).await,
            Some(Delivery::Queued(queued)) => self.deliver_queued(&receiver, queued).await,
        }
    }

    async fn deliver_group(&self, receiver: &Webhook, delivery: GroupDelivery) -> Result<bool, StateError> {
        let state = &self.state;
        let message = Message::of(&delivery, &self.external_url);
        match webhook::post(&self.client, receiver, &message, clock::now_ms()).await {
            Ok(()) => {
                let (webhook, rule, message_id) = (&receiver.id, &delivery.rule, &message.id);
                let attempts = delivery.attempts + 1;
                info!(
                    webhook,
                    rule, message_id, attempts, "alerts were delivered to a webhook"
                );
                state.group_delivered(&delivery, clock::now_ms()).await?;
                Ok(true)
            }
            Err(error) => {
                let (webhook, rule, message_id) = (&receiver.id, &delivery.rule, &message.id);
                warn!(webhook, rule, message_id, %error, "alerts were not delivered to a webhook; their newest state is sent later");
                let next_ms = clock::now_ms() + pause_ms(delivery.attempts);
                let was_sent = error.was_sent();
                let error = error.to_string();
                state.group_failed(&delivery, was_sent, next_ms, &error).await?;
                Ok(false)
            }
        }
    }

    async fn deliver_queued(&self, receiver: &Webhook, queued: QueuedMessage) -> Result<bool, StateError> {
        let state = &self.state;
        let message = Message {
            id: queued.message_id.clone(),
            body: queued.body.clone(),
        };
        match webhook::post(&self.client, receiver, &message, clock::now_ms()).await {
            Ok(()) => {
                let (webhook, message_id) = (&receiver.id, &message.id);
                info!(
                    webhook,
                    message_id, "a message that an earlier version queued was delivered"
                );
                state.queued_delivered(&queued, clock::now_ms()).await?;
                Ok(true)
            }
            Err(error) => {
                let next_ms = next_queued_attempt_ms(&queued, &error, clock::now_ms());
                let (webhook, message_id, given_up) = (&receiver.id, &message.id, next_ms.is_none());
                warn!(webhook, message_id, %error, given_up, "a message that an earlier version queued was not delivered");
                state.queued_failed(&queued, next_ms, &error.to_string()).await?;
                Ok(given_up)
            }
        }
    }
}

/// Returns the pause after a failure, in milliseconds, if `attempts` deliveries failed before it.
fn pause_ms(attempts: u32) -> i64 {
    PAUSE_MS_MIN
        .saturating_mul(1_i64 << attempts.min(20))
        .min(PAUSE_MS_MAX)
}

/// Returns when to try again, or `None` to drop the message.
fn next_queued_attempt_ms(
    message: &QueuedMessage,
    error: &DeliveryError,
    now_ms: TimestampMs,
) -> Option<TimestampMs> {
    let is_too_old = now_ms - message.created_ms >= QUEUED_AGE_MS_MAX;
    let is_refused = error.is_refusal() && message.attempts + 1 >= QUEUED_REFUSALS_MAX;
    (!is_too_old && !is_refused).then(|| now_ms + pause_ms(message.attempts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let pauses: Vec<_> = [0, 1, 4, 30].map(pause_ms).into();
        assert_eq!(pauses, [1_000, 2_000, 16_000, 300_000]);
    }

    #[test]
    fn a_queued_message_is_given_up_when_it_is_old_or_refused_too_often() {
        let next = |attempts, error: &DeliveryError, now_ms| {
            let message = QueuedMessage {
                id: 1,
                webhook: "w".into(),
                message_id: "m".into(),
                body: String::new(),
                attempts,
                created_ms: 0,
            };
            next_queued_attempt_ms(&message, error, now_ms)
        };
        let unreachable = DeliveryError::Unreachable {
            reason: "connection refused".into(),
            was_sent: false,
        };
        let refused = DeliveryError::Refused(reqwest::StatusCode::BAD_REQUEST);
        assert_eq!(next(3, &unreachable, 1_000), Some(9_000));
        assert_eq!(next(50, &unreachable, 1_000), Some(301_000), "it may come back");
        assert_eq!(next(3, &unreachable, QUEUED_AGE_MS_MAX), None);
        assert_eq!(next(8, &refused, 1_000), Some(257_000));
        assert_eq!(next(9, &refused, 1_000), None);
    }
}
