//! Publishes a change of a run to pages, rules and the event log.

use std::sync::Arc;

use domain::event::{Event as LogLine, Severity};
use domain::ident::RunId;
use domain::run::state::{Machine, RunState};

use super::{Runs, checkpoints, divergence, inspect, knobs};
use crate::changes::{Change, Changes};
use crate::clock;

impl Runs {
    /// Adds the news to the event log, then notifies the pages: a page that reads the log finds there what it is notified of.
    pub(super) async fn publish(self: &Arc<Self>, before: Option<&Machine>, after: &Machine) {
        let _at_the_end = Notification {
            changes: &self.parts.changes,
            run: &after.id,
        };
        self.parts.state_series.set_run(after);
        self.parts.attempts.set_run(after);
        let now_ms = clock::now_ms();
        let news = |before: &Machine| {
            let mut lines = checkpoints::news(before, after, now_ms);
            lines.extend(knobs::news(before, after, now_ms));
            lines.extend(divergence::news(before, after, now_ms));
            lines
        };
        for line in before.map_or_else(Vec::new, news) {
            self.parts.events.append(line).await;
        }
        if inspect::stands_still(before, after) {
            self.note_stacks(after.id.clone());
        }
        if before.map(|run| run.state) == Some(after.state) {
            return;
        }
        let why = after
            .outcome
            .as_ref()
            .map(|outcome| format!(": {}", outcome.message))
            .unwrap_or_default();
        let severity = match after.state {
            RunState::Failed => Severity::Critical,
            RunState::Lost | RunState::Restarting => Severity::Warning,
            _ => Severity::Info,
        };
        let message = format!("run {} is {}{why}", after.id, after.state.as_str());
        let line = LogLine {
            run: Some(after.id.to_string()),
            ..LogLine::new(clock::now_ms(), severity, "run_state", message)
        };
        self.parts.events.append(line).await;
    }
}

/// Notifies the pages when it is dropped: also if the event log cannot be written, and if the client whose request is being handled
/// disconnects.
struct Notification<'a> {
    changes: &'a Changes,
    run: &'a RunId,
}

impl Drop for Notification<'_> {
    fn drop(&mut self) {
        self.changes.send(Change::Run(self.run.clone()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::pin::pin;
    use std::task::{Context, Waker};

    use domain::run::spec::Spec;
    use store::{Store, StoreConfig};

    use super::*;
    use crate::config::Config;
    use crate::evaluator::Evaluator;
    use crate::event_log::EventLog;
    use crate::live::Live;
    use crate::runs::Parts;
    use crate::self_metrics::SelfMetrics;
    use crate::tasks::Tasks;

    #[tokio::test]
    async fn pages_are_notified_when_the_event_is_stored_and_also_if_it_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let changes = Changes::default();
        let runs = runs(&store, &changes, &Config::new(folder.path()));
        let mut heard = changes.subscribe();
        let (mut machine, _) = Machine::submit(RunId::new("ddp-1").unwrap(), Spec::default(), 0);
        let of_run = Change::Run(machine.id.clone());

        runs.publish(None, &machine).await;
        assert_eq!(
            [heard.try_recv(), heard.try_recv()],
            [Ok(Change::Events), Ok(of_run.clone())]
        );

        let before = machine.clone();
        machine.state = RunState::Stopped;
        {
            // The client disconnects while the event is being stored.
            let publish = pin!(runs.publish(Some(&before), &machine));
            assert!(publish.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(heard.is_empty());
        }
        // Whether the event is stored nevertheless is up to the store.
        assert_eq!(heard.recv().await, Ok(of_run.clone()));

        store.close().await;
        runs.publish(Some(&before), &machine).await;
        assert_eq!(heard.try_recv(), Ok(of_run));
        assert!(heard.is_empty());
    }

    fn runs(store: &Store, changes: &Changes, config: &Config) -> Arc<Runs> {
        let metrics = Arc::new(SelfMetrics::default());
        let parts = Parts {
            state: store.state.clone(),
            changes: changes.clone(),
            evaluator: Evaluator::new(store.series.clone(), &metrics),
            events: EventLog::new(store.state.clone(), changes.clone()),
            tasks: Tasks::default(),
            live: Arc::new(Live::from_records(Vec::new())),
            state_series: Arc::default(),
            attempts: Arc::default(),
            metrics,
            critical_nodes: Box::new(Vec::<String>::new),
        };
        Arc::new(Runs::new(config, parts))
    }
}
