//! When a silence begins or ends: alerts that webhooks have not heard of are held back, and told once nothing silences them.

use std::sync::Arc;
use std::time::Duration;

use domain::api::alerts::AlertView;
use domain::time::TimestampMs;
use store::state::StateError;

use super::Alerts;
use super::engine::Engine;
use crate::changes::Change;
use crate::clock;

/// How long to wait at most. A message that was under way when its alert was silenced, and failed, is taken back after this time.
const LOOK_EVERY: Duration = Duration::from_secs(10);

impl Alerts {
    /// Follows the silences until the collector stops.
    pub(super) async fn follow_silences(self, engine: Arc<Engine>) {
        let silences = self.incidents.silences().clone();
        // At the start a silence may have ended while the collector was away.
        let mut has_changed = true;
        loop {
            let began_ms = clock::now_ms();
            let applied = self.apply_silences(&engine, has_changed, began_ms).await;
            if let Err(error) = &applied {
                tracing::error!(%error, "alerts could not be held back or told as silences say; trying again");
            }
            let next_ms = silences.next_change_ms(began_ms);
            let wait = next_ms.map_or(LOOK_EVERY, |at_ms| {
                Duration::from_millis(u64::try_from(at_ms - clock::now_ms()).unwrap_or_default())
                    .min(LOOK_EVERY)
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

    /// Holds silenced alerts back, and tells the others if silences have changed.
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
        let (silenced, told): (Vec<AlertView>, Vec<AlertView>) =
            firing.partition(|alert| silences.silenced_until(&alert.labels, now_ms).is_some());
        if !silenced.is_empty() {
            engine.state.silence_alerts(&silenced).await?;
        }
        if has_changed && !told.is_empty() {
            engine.state.tell_unsilenced(&told, now_ms).await?;
            engine.notifier.wake();
        }
        Ok(())
    }
}
