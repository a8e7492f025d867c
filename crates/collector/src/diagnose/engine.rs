//! The parts of the collector that the evaluation of rules uses.

use std::sync::Arc;

use store::{SeriesStore, StateStore};

use crate::analysis::Findings;
use crate::changes::Changes;
use crate::evaluator::Evaluator;
use crate::incidents::Incidents;
use crate::notify::Notifier;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::tasks::Tasks;

/// The parts of the collector that the evaluation of rules uses.
pub struct Engine {
    /// Evaluates the queries of rules.
    pub evaluator: Evaluator,
    /// Stores recorded samples and the series of alerts.
    pub series: SeriesStore,
    /// Stores changes of alerts, and the notifications to webhooks about them.
    pub state: StateStore,
    /// Notifies pages that alerts changed.
    pub changes: Changes,
    /// Counts samples.
    pub metrics: Arc<SelfMetrics>,
    /// The runs whose nodes are requested for bursts, and whose logs are evidence.
    pub runs: Arc<Runs>,
    /// User actions on alerts.
    pub incidents: Incidents,
    /// The findings of the analysers, which some rules use.
    pub(crate) findings: Arc<Findings>,
    /// Wakes the delivery to webhooks.
    pub notifier: Notifier,
    /// The URL of this collector in the links of messages.
    pub external_url: String,
    /// Where groups are evaluated.
    pub tasks: Tasks,
}
