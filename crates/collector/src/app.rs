//! What every part of the collector can reach.

use std::sync::Arc;

use domain::event::Event;
use domain::time::TimestampMs;
use store::Store;
use store::state::StateError;
use store::state::audit::AuditEntry;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::changes::{Change, Changes};
use crate::config::Config;
use crate::diagnose::Alerts;
use crate::evaluator::Evaluator;
use crate::ingest::WaitingStreams;
use crate::ingest::remote_write::RemoteWrite;
use crate::ingest::telemetry::node_series::NodeSeries;
use crate::live::Live;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::state_series::StateSeries;
use crate::tokens::Tokens;

/// The application, as handlers and background tasks hold it.
pub type Shared = Arc<App>;

/// All parts of one collector.
pub struct App {
    /// What it was told at the start.
    pub config: Config,
    /// When it started.
    pub started_ms: TimestampMs,
    /// Series and state.
    pub store: Store,
    /// Rules and our own questions go through here.
    pub evaluator: Evaluator,
    /// The same for clients, with slots of its own: a flood of dashboards must not hold up the rules.
    pub client_evaluator: Evaluator,
    /// Which nodes are heard.
    pub live: Live,
    /// Managed runs.
    pub runs: Runs,
    /// The state of runs and nodes, as rules see it.
    pub(crate) state_series: StateSeries,
    /// Rules and what became of them.
    pub alerts: Alerts,
    /// Who may do what.
    pub tokens: Tokens,
    /// Streams of agents that have not sent their hello.
    pub waiting_streams: WaitingStreams,
    /// Samples of agents that may be between their streams and the store.
    pub telemetry_room: Arc<Semaphore>,
    /// Turns of agents' streams to read what will wait for that room.
    pub telemetry_turns: Arc<Semaphore>,
    /// Series that each node has defined lately.
    pub(crate) node_series: NodeSeries,
    /// What remote write keeps between requests.
    pub remote_write: RemoteWrite,
    /// Tells browsers what changed.
    pub changes: Changes,
    /// What the collector says about itself on `/metrics`.
    pub metrics: SelfMetrics,
    /// Taken while the store is checked: one check at a time reads through all files.
    pub checking: Arc<Semaphore>,
    /// Cancelled when the collector stops; streams and background tasks end by it.
    pub stopping: CancellationToken,
    /// Background tasks: waited for at the end.
    pub tasks: TaskTracker,
}

impl App {
    /// Now, in milliseconds since the epoch.
    #[must_use]
    pub fn now_ms(&self) -> TimestampMs {
        crate::clock::now_ms()
    }

    /// Runs `task` in the background until the collector stops; it is dropped at its next await then.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Notes who is about to do what to what. An action that cannot be noted must not be carried out.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn audit(&self, who: &str, what: &str, target: &str) -> Result<(), StateError> {
        let entry = AuditEntry {
            at_ms: self.now_ms(),
            who: who.into(),
            what: what.into(),
            target: target.into(),
        };
        tracing::info!(who, what, target, "audit");
        self.store.state.append_audit(&entry).await
    }

    /// Adds a line to the event log and tells the pages. A line that cannot be stored is at least in the process' own log.
    pub async fn event(&self, event: Event) {
        tracing::info!(
            kind = event.kind,
            node = event.node,
            run = event.run,
            "{}",
            event.message
        );
        match self.store.state.append_event(&event).await {
            Ok(()) => self.changes.send(Change::Events),
            Err(error) => tracing::error!(%error, kind = event.kind, "an event could not be stored"),
        }
    }
}
