//! What the streams of agents use: the collector's other parts, and the bounds that all streams share.

use std::sync::Arc;

use store::{SeriesStore, StateStore};
use tokio::sync::Semaphore;

use super::telemetry::node_series::NodeSeries;
use super::waiting::WaitingStreams;
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

/// The bounds that all streams share.
pub(crate) struct Bounds {
    /// Streams that have not sent their hello.
    pub(super) waiting: WaitingStreams,
    /// Samples between the streams and the store.
    pub(super) room: Arc<Semaphore>,
    /// Turns of streams to read what will wait for that room.
    pub(super) turns: Arc<Semaphore>,
    /// Series that each node has defined lately.
    pub(super) node_series: NodeSeries,
}

/// Samples of all agents between their streams and the store, 8 MB of values: thousands of agents that catch up at once are
/// read as fast as the store takes what they send.
pub(super) const SAMPLES_TOGETHER_MAX: usize = 1 << 20;
/// Streams that hold a whole batch which waits for room. Others are not read meanwhile: a thousand agents that catch up would
/// have the collector hold a batch each.
const TURNS: usize = 32;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            waiting: WaitingStreams::default(),
            room: Arc::new(Semaphore::new(SAMPLES_TOGETHER_MAX)),
            turns: Arc::new(Semaphore::new(TURNS)),
            node_series: NodeSeries::default(),
        }
    }
}
