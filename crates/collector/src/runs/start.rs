//! The background tasks of runs, and how active runs continue when the collector starts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::run::state::Event;
use store::StoreConfig;
use tokio::time::{MissedTickBehavior, interval};

use super::stored::unless_unreadable;
use super::{Runs, verdicts};
use crate::clock;
use crate::config::Config;
use crate::error::StartError;

/// How often commands that no agent has accepted are sent again.
const SEND_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// How often the wait for nodes after a restore is checked for its time limit.
const AWAITED_EVERY: Duration = Duration::from_secs(1);
/// How often old logs are removed.
const KEEP_EVERY: Duration = Duration::from_secs(3_600);
/// Number of ended runs, the newest ones, whose state is shown as series after a start.
const ENDED_SHOWN: u32 = 200;

impl Runs {
    /// Continues the active runs, and starts the background tasks of runs.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    pub async fn start(self: &Arc<Self>, config: &Config) -> Result<(), StartError> {
        let taken_up = self.unknown.load(&self.parts.state, clock::now_ms()).await;
        taken_up.map_err(|error| StartError::load("attempts that nodes hold", error))?;
        let unfinished = self.parts.state.unfinished_runs().await;
        let unfinished = unfinished.map_err(|error| StartError::load("runs", error))?;
        let read = self.read_kept().await;
        read.map_err(|error| StartError::load("reports that were not read", error))?;
        for run in unfinished {
            let taken = self.take(&run.id, Event::CollectorStarted).await;
            unless_unreadable(taken).map_err(|error| StartError::load("runs", error))?;
        }
        match self.newest(ENDED_SHOWN).await {
            Ok(runs) => runs.iter().for_each(|run| self.parts.state_series.set_run(run)),
            Err(error) => {
                tracing::warn!(%error, "the series of runs that ended before the start are not available")
            }
        }
        self.parts.tasks.spawn(Arc::clone(self).place_runs());
        self.parts.tasks.spawn(Arc::clone(self).send_pending_again());
        self.parts.tasks.spawn(Arc::clone(self).follow_changes());
        self.parts
            .tasks
            .spawn(Arc::clone(self).keep_logs_within(logs_kept_ms(&config.store)));
        Ok(())
    }

    async fn send_pending_again(self: Arc<Self>) {
        let mut ticks = interval(AWAITED_EVERY);
        let every = SEND_AGAIN_EVERY.as_secs() / AWAITED_EVERY.as_secs();
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for n in 1_u64.. {
            ticks.tick().await;
            let mut done = self.give_up_awaited().await;
            if done.is_ok() && n.is_multiple_of(every) {
                done = self.send_pending(None).await;
            }
            if let Err(error) = done {
                tracing::error!(%error, "the periodic tasks of runs failed");
            }
        }
    }

    async fn follow_changes(self: Arc<Self>) {
        let (mut ticks, mut followed) = (interval(verdicts::EVERY), BTreeSet::new());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.judge_changes(&mut followed).await {
                tracing::error!(%error, "verdicts on changes of knobs cannot be computed");
            }
            if let Err(error) = self.note_recoveries().await {
                tracing::error!(%error, "losses of diverged runs cannot be followed");
            }
        }
    }

    async fn keep_logs_within(self: Arc<Self>, kept_ms: i64) {
        let mut ticks = interval(KEEP_EVERY);
        loop {
            ticks.tick().await;
            self.keep_logs(clock::now_ms(), kept_ms).await;
        }
    }
}

/// Logs are kept as long as the run's per-minute series, so that its values and its output are available for the same time.
fn logs_kept_ms(store: &StoreConfig) -> i64 {
    store.retention_ms.max(store.rollup_1m_ms)
}
