//! Applies silences when they begin or end: notifications of silenced alerts are held back, and sent when no silence matches any more.

use std::sync::Arc;
use std::time::Duration;

use domain::api::alerts::AlertView;
use domain::time::TimestampMs;
use store::state::StateError;

use super::Alerts;
use super::engine::Engine;
use crate::changes::Change;
use crate::clock;

/// Maximum time between two checks. A message that was being sent when its alert was silenced, and failed, is held back after this time.
const CHECK_EVERY: Duration = Duration::from_secs(10);

impl Alerts {
    /// Follows the silences until the collector stops.
    pub(super) async fn follow_silences(self, engine: Arc<Engine>) {
        let silences = self.incidents.silences().clone();
        // A silence may have ended before the collector started.
        let mut has_changed = true;
        loop {
            let began_ms = clock::now_ms();
            let applied = self.apply_silences(&engine, has_changed, began_ms).await;
            if let Err(error) = &applied {
                tracing::error!(%error, "silences could not be applied to notifications; trying again");
            }
            let next_ms = silences.next_change_ms(began_ms);
            let wait = next_ms.map_or(CHECK_EVERY, |at_ms| {
                Duration::from_millis(u64::try_from(at_ms - clock::now_ms()).unwrap_or_default())
                    .min(CHECK_EVERY)
            });
            has_changed = tokio::select! {
                () = silences.changed() => true,
                () = tokio::time::sleep(wait) => next_ms.is_some_and(|at_ms| clock::now_ms() >= at_ms),
            };
            if has_changed {
                engine.changes.send(Change::Diagnoses);
            }
            has_changed |= applied.is_err();
        }
    }

    /// Holds silenced alerts back. If silences have changed, queues the notifications of alerts that are not silenced.
    async fn apply_silences(
        &self,
        engine: &Engine,
        has_changed: bool,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let silences = self.incidents.silences();
        if silences.list().is_empty() {
            return Ok(());
        }
        let firing = self.active().into_iter().filter(|alert| alert.fired_ms.is_some());
        let (silenced, audible): (Vec<AlertView>, Vec<AlertView>) =
            firing.partition(|alert| silences.silenced_until(&alert.labels, now_ms).is_some());
        if !silenced.is_empty() {
            engine.state.silence_alerts(&silenced).await?;
        }
        if has_changed && !audible.is_empty() {
            engine.state.notify_unsilenced(&audible, now_ms).await?;
            engine.notifier.wake();
        }
        Ok(())
    }
}
