//! What the streams of agents use: the collector's other parts, and the bounds shared by all streams.

use std::sync::Arc;

use store::{SeriesStore, StateStore};
use tokio::sync::Semaphore;

use super::hello_slots::HelloSlots;
use super::telemetry::node_series::NodeSeries;
use crate::analysis::Feed;
use crate::changes::Changes;
use crate::event_log::EventLog;
use crate::live::Live;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::tasks::Tasks;
use crate::tokens::Tokens;

/// What the streams of agents use.
pub(crate) struct Ingest {
    pub(crate) series: SeriesStore,
    pub(crate) state: StateStore,
    pub(crate) live: Arc<Live>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) analysis: Feed,
    pub(crate) events: EventLog,
    pub(crate) changes: Changes,
    pub(crate) metrics: Arc<SelfMetrics>,
    pub(crate) tasks: Tasks,
    pub(crate) bounds: Bounds,
}

/// The bounds shared by all streams.
pub(crate) struct Bounds {
    /// Streams that have not sent their hello.
    pub(super) hello_slots: HelloSlots,
    /// Permits for samples between the streams and the store, one per sample.
    pub(super) room: Arc<Semaphore>,
    /// Permits for streams to read a batch that then waits for `room`.
    pub(super) turns: Arc<Semaphore>,
    /// Series that each node defined recently.
    pub(super) node_series: NodeSeries,
}

/// Bound of the samples of all agents between their streams and the store: 8 MB of values. When thousands of agents catch up at once, their
/// streams are read as fast as the store accepts samples.
pub(super) const SAMPLES_TOGETHER_MAX: usize = 1 << 20;
/// Number of streams that may hold a whole batch while it waits for room. Other streams are not read meanwhile. Without this bound, a
/// thousand agents that catch up would make the collector hold one batch each.
const TURNS: usize = 32;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            hello_slots: HelloSlots::default(),
            room: Arc::new(Semaphore::new(SAMPLES_TOGETHER_MAX)),
            turns: Arc::new(Semaphore::new(TURNS)),
            node_series: NodeSeries::default(),
        }
    }
}
