//! The parts of the collector that a tab reads from.

use std::sync::Arc;

use axum::extract::FromRef;

use crate::app::App;
use crate::changes::Changes;
use crate::diagnose::Alerts;
use crate::evaluator::Evaluator;
use crate::live::Live;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::tasks::Tasks;
use crate::tokens::Tokens;

/// The parts of the collector that a tab reads from.
#[derive(Clone)]
pub(super) struct Sources {
    pub(super) changes: Changes,
    pub(super) runs: Arc<Runs>,
    pub(super) live: Arc<Live>,
    pub(super) alerts: Alerts,
    pub(super) evaluator: Evaluator,
    pub(super) tokens: Arc<Tokens>,
    pub(super) metrics: Arc<SelfMetrics>,
    pub(super) tasks: Tasks,
}

impl FromRef<App> for Sources {
    fn from_ref(app: &App) -> Self {
        Self {
            changes: app.changes.clone(),
            runs: Arc::clone(&app.runs),
            live: Arc::clone(&app.live),
            alerts: app.alerts.clone(),
            evaluator: app.evaluator.clone(),
            tokens: Arc::clone(&app.tokens),
            metrics: Arc::clone(&app.metrics),
            tasks: app.tasks.clone(),
        }
    }
}
