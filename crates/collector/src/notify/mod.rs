//! Telling the outside: messages wait in the store's outbox and are delivered at least once, each under the same
//! `webhook-id` at every try. Receivers are independent: one that is down does not hold up the others.

pub mod message;
pub mod webhook;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::time::TimestampMs;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use store::state::outbox::Message;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::app::Shared;
use crate::error::StartError;

/// Messages one receiver is sent in one turn; it gets the next turn at once.
const TURN_MESSAGES_MAX: u32 = 64;
/// When nothing wakes it, how long the notifier sleeps at most.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// The first pause after a failure; it doubles with each, up to [`PAUSE_MS_MAX`].
const PAUSE_MS_MIN: i64 = 1_000;
/// Five minutes: a receiver that comes back is told soon.
const PAUSE_MS_MAX: i64 = 300_000;
/// A message nobody took for three days is given up.
const AGE_MS_MAX: i64 = 3 * 24 * 3_600_000;

/// Delivers what is in the outbox until the collector stops.
///
/// # Errors
/// When there can be no HTTP client.
#[expect(clippy::unused_async, reason = "all background parts start alike")]
pub async fn start(app: &Shared) -> Result<(), StartError> {
    let client = webhook::client().map_err(|error| StartError::Load {
        what: "the HTTP client",
        source: error.into(),
    })?;
    let shared = Arc::clone(app);
    app.spawn(async move { shared.alerts.notifier().deliver_for_ever(&shared, &client).await });
    Ok(())
}

/// Where people find this collector, for links in messages.
#[must_use]
pub fn external_url(app: &Shared) -> String {
    match &app.config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            let scheme = if app.config.tls.is_some() { "https" } else { "http" };
            format!("{scheme}://{}", app.config.listen)
        }
    }
}

/// Wakes the delivery. Cheap to clone.
#[derive(Clone, Default)]
pub struct Notifier {
    wake: Arc<Notify>,
}

impl Notifier {
    /// New messages are in the outbox.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    async fn deliver_for_ever(&self, app: &Shared, client: &reqwest::Client) {
        let mut turns = FuturesUnordered::new();
        let mut busy = BTreeSet::new();
        loop {
            match app.store.state.due_webhooks(app.now_ms()).await {
                Ok(due) => {
                    for webhook in due {
                        if busy.insert(webhook.clone()) {
                            turns.push(turn(app, client, webhook));
                        }
                    }
                }
                Err(error) => warn!(%error, "the outbox cannot be read"),
            }
            let pause = self.sleep(app, turns.is_empty()).await;
            tokio::select! {
                Some(webhook) = turns.next(), if !turns.is_empty() => {
                    busy.remove(&webhook);
                }
                _woken_or_not = tokio::time::timeout(pause, self.wake.notified()) => {}
            }
        }
    }

    /// Until the next message is due; what is under way is due all the time and says itself when it is done.
    async fn sleep(&self, app: &Shared, idle: bool) -> Duration {
        if !idle {
            return SLEEP_MAX;
        }
        let next_ms = app.store.state.next_message_ms().await.ok().flatten();
        let wait_ms = next_ms.map_or(i64::MAX, |at_ms| at_ms - app.now_ms());
        Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)).clamp(Duration::from_millis(10), SLEEP_MAX)
    }
}

/// One receiver's turn: what is due for it, in order, until there is nothing or one does not get through.
async fn turn(app: &Shared, client: &reqwest::Client, webhook: String) -> String {
    for _ in 0..TURN_MESSAGES_MAX {
        match app.store.state.next_due_message(&webhook, app.now_ms()).await {
            Ok(Some(message)) => {
                if !deliver(app, client, message).await {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                warn!(%error, "the outbox cannot be read");
                break;
            }
        }
    }
    webhook
}

/// Delivers a message; says whether the receiver's next may follow at once.
async fn deliver(app: &Shared, client: &reqwest::Client, message: Message) -> bool {
    let state = &app.store.state;
    let (delivered, stored) = match state.webhook(&message.webhook).await {
        Ok(Some(receiver)) => match webhook::post(client, &receiver, &message, app.now_ms()).await {
            Ok(()) => {
                info!(
                    webhook = receiver.id,
                    message = message.message_id,
                    attempts = message.attempts + 1,
                    "a message was delivered"
                );
                (true, state.mark_delivered(message.id, app.now_ms()).await)
            }
            Err(error) => {
                let next_ms = next_attempt_ms(&message, app.now_ms());
                warn!(
                    webhook = receiver.id,
                    message = message.message_id,
                    %error,
                    given_up = next_ms.is_none(),
                    "a message was not delivered"
                );
                (
                    false,
                    state.mark_failed(message.id, next_ms, &error.to_string()).await,
                )
            }
        },
        Ok(None) => (
            true,
            state
                .mark_failed(message.id, None, "the webhook was deleted")
                .await,
        ),
        Err(error) => (false, Err(error)),
    };
    if let Err(error) = stored {
        warn!(%error, "the fate of a message could not be stored; it will be sent again");
        // Not at once: a disk that is full would turn one message into a flood.
        tokio::time::sleep(SLEEP_MAX).await;
        return false;
    }
    delivered
}

/// When to try again, or `None` to give up.
fn next_attempt_ms(message: &Message, now_ms: TimestampMs) -> Option<TimestampMs> {
    let pause_ms = PAUSE_MS_MIN
        .saturating_mul(1_i64 << message.attempts.min(20))
        .min(PAUSE_MS_MAX);
    (now_ms - message.created_ms < AGE_MS_MAX).then(|| now_ms + pause_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let message = |attempts| Message {
            id: 1,
            webhook: "w".into(),
            message_id: "m".into(),
            body: String::new(),
            attempts,
            created_ms: 0,
        };
        let pauses: Vec<_> = [0, 1, 4, 30].map(|n| next_attempt_ms(&message(n), 1_000)).into();
        assert_eq!(pauses, [Some(2_000), Some(3_000), Some(17_000), Some(301_000)]);
        assert_eq!(next_attempt_ms(&message(3), AGE_MS_MAX), None);
    }
}
