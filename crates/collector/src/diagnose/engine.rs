//! What rules are evaluated with: the collector's other parts, as far as rules use them.

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

/// What rules are evaluated with.
pub struct Engine {
    /// Answers the queries of rules.
    pub evaluator: Evaluator,
    /// Takes recorded samples and the traces of alerts.
    pub series: SeriesStore,
    /// Takes changes of alerts, and what webhooks are to be sent about them.
    pub state: StateStore,
    /// Tells pages that alerts changed.
    pub changes: Changes,
    /// Counts samples.
    pub metrics: Arc<SelfMetrics>,
    /// Whose nodes are asked for bursts, and whose logs are evidence.
    pub runs: Arc<Runs>,
    /// What people did about alerts.
    pub incidents: Incidents,
    /// What the analysers have found, which some rules read.
    pub(crate) findings: Arc<Findings>,
    /// Wakes the delivery to webhooks.
    pub notifier: Notifier,
    /// Where people find this collector, for links in messages.
    pub external_url: String,
    /// Where groups are evaluated.
    pub tasks: Tasks,
}
