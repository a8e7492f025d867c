//! The collector's parts, as the state of the router: each handler takes the parts that it uses.

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
    /// What it was told at the start.
    pub config: Arc<Config>,
    /// When it started.
    pub started: StartedAt,
    /// Series and state together, for checks and backups.
    pub store: Arc<Store>,
    /// Series.
    pub series: SeriesStore,
    /// State.
    pub state: StateStore,
    /// Questions of clients go through here. The rules have slots of their own: a flood of dashboards must not hold them up.
    pub evaluator: Evaluator,
    /// Which nodes are heard.
    pub live: Arc<Live>,
    /// Managed runs.
    pub runs: Arc<Runs>,
    /// Rules and what became of them.
    pub alerts: Alerts,
    /// What people did about alerts, and silences.
    pub incidents: Incidents,
    /// What rules are evaluated with.
    pub engine: Arc<Engine>,
    /// What the analysers have found.
    pub(crate) findings: Arc<Findings>,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
    /// What remote write keeps between requests.
    pub remote_write: Arc<RemoteWrite>,
    /// What the streams of agents use.
    pub(crate) ingest: Arc<Ingest>,
    /// The event log and the audit log.
    pub events: EventLog,
    /// Tells browsers what changed.
    pub changes: Changes,
    /// What the collector says about itself on `/metrics`.
    pub metrics: Arc<SelfMetrics>,
    /// One check of the store at a time.
    pub checking: Checking,
    /// Background tasks.
    pub tasks: Tasks,
}

/// When the collector started.
#[derive(Debug, Clone, Copy)]
pub struct StartedAt(pub TimestampMs);

/// Taken while the store is checked: one check at a time reads through all files.
#[derive(Debug, Clone)]
pub struct Checking(pub Arc<Semaphore>);

impl Default for Checking {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}
