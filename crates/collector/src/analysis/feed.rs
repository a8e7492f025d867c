//! The way of readings from the streams of agents to the analysers.

use std::sync::Arc;

use domain::ident::NodeName;
use domain::series::{Frame, is_absent, is_stale};
use domain::time::TimestampMs;
use prometheus::IntCounter;
use tokio::sync::mpsc;

use super::column::Column;

/// Messages that wait for the analysers: some seconds of a thousand nodes. When full, a message is dropped and counted.
const WAITING_MAX: usize = 4_096;
/// Older readings come from an agent that catches up. They are history, not the state of a run.
pub(super) const AGE_MAX_MS: i64 = 30_000;

/// A row of a frame that feeds the analysers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FedColumn {
    /// Which row.
    pub(crate) row: usize,
    /// What it tells.
    pub(crate) column: Column,
}

/// The rows of one frame that feed the analysers.
#[derive(Debug, Clone)]
pub(crate) struct FedFrame {
    pub(super) columns: Arc<[FedColumn]>,
    pub(super) times_ms: Vec<TimestampMs>,
    /// `columns.len() × times_ms.len()` values, by column.
    pub(super) values: Vec<f64>,
}

impl FedFrame {
    /// Copies the rows out of a frame; `None` when it has none, or is old.
    pub(crate) fn of(columns: &Arc<[FedColumn]>, frame: &Frame, now_ms: TimestampMs) -> Option<Self> {
        let last = *frame.times_ms.last()?;
        if columns.is_empty() || last < now_ms - AGE_MAX_MS {
            return None;
        }
        let rows = columns.iter().flat_map(|column| frame.row(column.row));
        Some(Self {
            columns: Arc::clone(columns),
            times_ms: frame.times_ms.clone(),
            values: rows.copied().collect(),
        })
    }

    /// Each value with its column and time.
    pub(super) fn values(&self) -> impl Iterator<Item = (&Column, TimestampMs, f64)> {
        let rows = self.values.chunks(self.times_ms.len().max(1));
        self.columns.iter().zip(rows).flat_map(|(column, row)| {
            let cells = self.times_ms.iter().zip(row);
            let there = cells.filter(|(_, value)| !is_absent(**value) && !is_stale(**value));
            there.map(|(at_ms, value)| (&column.column, *at_ms, *value))
        })
    }
}

/// What one node has measured and the store has taken.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) node: NodeName,
    /// The latest time of all its samples, fed or not.
    pub(super) until_ms: TimestampMs,
    pub(super) frames: Vec<FedFrame>,
}

/// The streams' end of the queue.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    queue: mpsc::Sender<Fed>,
    dropped: IntCounter,
}

/// A queue with its two ends; `dropped` counts messages for which there was no room.
pub(crate) fn feed(dropped: IntCounter) -> (Feed, FedQueue) {
    let (queue, waiting) = mpsc::channel(WAITING_MAX);
    (Feed { queue, dropped }, FedQueue(waiting))
}

/// The analysers' end of the queue.
#[derive(Debug)]
pub(crate) struct FedQueue(pub(super) mpsc::Receiver<Fed>);

impl Feed {
    /// Hands over what was stored. Never waits.
    pub(crate) fn send(&self, node: &NodeName, until_ms: TimestampMs, frames: Vec<FedFrame>) {
        let fed = Fed {
            node: node.clone(),
            until_ms,
            frames,
        };
        if self.queue.try_send(fed).is_err() {
            self.dropped.inc();
        }
    }
}
