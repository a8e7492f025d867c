//! The state of the HTTP router: each handler extracts the parts that it uses.

use std::sync::Arc;

use axum::extract::FromRef;
use domain::time::TimestampMs;
use store::{SeriesStore, StateStore, Store};
use tokio::sync::Semaphore;

use crate::analysis::Findings;
use crate::changes::Changes;
use crate::config::Config;
use crate::diagnose::{Alerts, Engine};
use crate::evaluator::Evaluator;
use crate::event_log::EventLog;
use crate::http::remote_write::RemoteWrite;
use crate::incidents::Incidents;
use crate::ingest::Ingest;
use crate::live::Live;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::tasks::Tasks;
use crate::tokens::Tokens;

/// All parts of one collector that handlers use. Cheap to clone.
#[derive(Clone, FromRef)]
pub struct App {
    /// The configuration.
    pub config: Arc<Config>,
    /// When the collector started.
    pub started: StartedAt,
    /// Series and state together, for checks and backups.
    pub store: Arc<Store>,
    /// The series store.
    pub series: SeriesStore,
    /// The state store.
    pub state: StateStore,
    /// Evaluates the queries of clients. Rules have slots of their own, so that many dashboards cannot delay them.
    pub evaluator: Evaluator,
    /// Which nodes are connected.
    pub live: Arc<Live>,
    /// Managed runs.
    pub runs: Arc<Runs>,
    /// Rules and their alerts.
    pub alerts: Alerts,
    /// User actions on alerts, and silences.
    pub incidents: Incidents,
    /// What rules are evaluated with.
    pub engine: Arc<Engine>,
    /// The findings of the analysers.
    pub(crate) findings: Arc<Findings>,
    /// Tokens, sessions and their roles.
    pub tokens: Arc<Tokens>,
    /// The state that remote write keeps between requests.
    pub remote_write: Arc<RemoteWrite>,
    /// What the streams of agents use.
    pub(crate) ingest: Arc<Ingest>,
    /// The event log and the audit log.
    pub events: EventLog,
    /// Notifies browsers of changes.
    pub changes: Changes,
    /// The collector's own metrics on `/metrics`.
    pub metrics: Arc<SelfMetrics>,
    /// Allows one check of the store at a time.
    pub checking: Checking,
    /// Background tasks.
    pub tasks: Tasks,
}

/// When the collector started.
#[derive(Debug, Clone, Copy)]
pub struct StartedAt(pub TimestampMs);

/// Held while the store is checked. A check reads all files, so only one runs at a time.
#[derive(Debug, Clone)]
pub struct Checking(pub Arc<Semaphore>);

impl Default for Checking {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}
