//! The queue of values from the streams of agents to the analysers.

use std::sync::Arc;
use std::time::Instant;

use domain::ident::NodeName;
use domain::series::{Frame, is_absent, is_stale};
use domain::time::TimestampMs;
use prometheus::{Histogram, IntCounter};
use tokio::sync::mpsc;

use super::column::Column;

/// Bound of the queue: some seconds of messages of a thousand nodes. If it is full, a message is dropped and counted.
const WAITING_MAX: usize = 4_096;
/// Maximum age of a value. Older values come from an agent that catches up: they are history, not the current state of a run.
pub(super) const AGE_MAX_MS: i64 = 30_000;

/// A row of a frame that feeds the analysers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FedColumn {
    /// The index of the row.
    pub(crate) row: usize,
    /// The meaning of the row.
    pub(crate) column: Column,
}

/// The rows of one frame that feed the analysers.
#[derive(Debug, Clone)]
pub(crate) struct FedFrame {
    pub(super) columns: Arc<[FedColumn]>,
    pub(super) times_ms: Vec<TimestampMs>,
    /// `columns.len() × times_ms.len()` values, ordered by column.
    pub(super) values: Vec<f64>,
}

impl FedFrame {
    /// Copies the rows out of a frame. Returns `None` if the frame has none or is too old. `node_now_ms` is the time by the clock of the node.
    pub(crate) fn of(columns: &Arc<[FedColumn]>, frame: &Frame, node_now_ms: TimestampMs) -> Option<Self> {
        let last = *frame.times_ms.last()?;
        if columns.is_empty() || last < node_now_ms - AGE_MAX_MS {
            return None;
        }
        let rows = columns.iter().flat_map(|column| frame.row(column.row));
        Some(Self {
            columns: Arc::clone(columns),
            times_ms: frame.times_ms.clone(),
            values: rows.copied().collect(),
        })
    }

    /// Returns each value with its column and time.
    pub(super) fn values(&self) -> impl Iterator<Item = (&Column, TimestampMs, f64)> {
        let rows = self.values.chunks(self.times_ms.len().max(1));
        self.columns.iter().zip(rows).flat_map(|(column, row)| {
            let cells = self.times_ms.iter().zip(row);
            let there = cells.filter(|(_, value)| !is_absent(**value) && !is_stale(**value));
            there.map(|(at_ms, value)| (&column.column, *at_ms, *value))
        })
    }
}

/// Values that one node has measured and the store has stored.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) node: NodeName,
    /// The latest time of all its samples, also of those that do not feed the analysers.
    pub(super) until_ms: TimestampMs,
    pub(super) frames: Vec<FedFrame>,
    sent: Instant,
}

/// The sending end of the queue, for the streams.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    queue: mpsc::Sender<Fed>,
    dropped: IntCounter,
}

/// Creates the queue with its two ends. `dropped` counts messages that did not fit, `waits` measures how long the others wait.
pub(crate) fn feed(dropped: IntCounter, waits: Histogram) -> (Feed, FedQueue) {
    let (queue, waiting) = mpsc::channel(WAITING_MAX);
    (Feed { queue, dropped }, FedQueue { waiting, waits })
}

/// The receiving end of the queue, for the analysers.
#[derive(Debug)]
pub(crate) struct FedQueue {
    waiting: mpsc::Receiver<Fed>,
    waits: Histogram,
}

impl FedQueue {
    /// Waits for messages and appends at most `limit` of them. Returns 0 once all senders are gone.
    pub(super) async fn receive(&mut self, messages: &mut Vec<Fed>, limit: usize) -> usize {
        let count = self.waiting.recv_many(messages, limit).await;
        for fed in messages.iter().rev().take(count) {
            self.waits.observe(fed.sent.elapsed().as_secs_f64());
        }
        count
    }

    /// Appends the messages that wait now, without waiting for others.
    pub(super) fn receive_waiting(&mut self, messages: &mut Vec<Fed>) {
        // There may be more while this runs, but not without end.
        for _ in 0..WAITING_MAX {
            let Ok(fed) = self.waiting.try_recv() else { return };
            self.waits.observe(fed.sent.elapsed().as_secs_f64());
            messages.push(fed);
        }
    }
}

impl Feed {
    /// Sends stored values to the analysers. Never waits.
    pub(crate) fn send(&self, node: &NodeName, until_ms: TimestampMs, frames: Vec<FedFrame>) {
        let fed = Fed {
            node: node.clone(),
            until_ms,
            frames,
            sent: Instant::now(),
        };
        if self.queue.try_send(fed).is_err() {
            self.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::HistogramOpts;

    use super::*;

    #[test]
    fn messages_that_wait_are_received_at_once() {
        let dropped = IntCounter::new("dropped", "Messages.").expect("a good name");
        let waits = Histogram::with_opts(HistogramOpts::new("waits", "Seconds.")).expect("a good name");
        let node = NodeName::new("a").expect("a good name");
        let (sender, mut queue) = feed(dropped, waits);
        for until_ms in 0..100 {
            sender.send(&node, until_ms, Vec::new());
        }
        let mut messages = Vec::new();
        queue.receive_waiting(&mut messages);
        let times: Vec<TimestampMs> = messages.iter().map(|fed| fed.until_ms).collect();
        assert_eq!(times, (0..100).collect::<Vec<_>>());
        queue.receive_waiting(&mut messages);
        assert_eq!(messages.len(), 100, "none waits any more");
    }
}
