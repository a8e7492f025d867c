//! Events of the node on their way to the collector. Each is sent at most once, and nothing waits for its delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use tokio::sync::{Mutex, mpsc};

/// The maximum number of events that wait for a connection. More events from one outage add little.
const WAITING_MAX: usize = 256;

/// A bounded queue of events. Cheap to clone. When the queue is full, the newest event is dropped; it is still in the log.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    receiver: Arc<Mutex<mpsc::Receiver<Event>>>,
    /// The time of the last critical event or alarm, in milliseconds since 1970. 0 if there was none.
    alarmed_ms: Arc<AtomicI64>,
}

impl Default for Events {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        Self {
            sender,
            receiver: Arc::new(Mutex::new(receiver)),
            alarmed_ms: Arc::default(),
        }
    }
}

impl Events {
    /// Logs an event and queues it for the collector.
    pub fn report(&self, event: Event) {
        tracing::info!(
            kind = event.kind,
            gpu = event.gpu,
            run = event.run,
            "{}",
            event.message
        );
        if event.severity == Severity::Critical {
            self.alarm(event.at_ms);
        }
        if self.sender.try_send(event).is_err() {
            tracing::warn!("too many node events wait for the collector; this event is only in this log");
        }
    }

    /// Records that something critical happened at this time, so that the data kept for this case (the burst) is sent.
    pub(crate) fn alarm(&self, at_ms: TimestampMs) {
        self.alarmed_ms.fetch_max(at_ms, Ordering::Relaxed);
    }

    /// Returns the time of the last critical event or alarm, or `None` if there was none.
    pub(crate) fn alarmed_at(&self) -> Option<TimestampMs> {
        Some(self.alarmed_ms.load(Ordering::Relaxed)).filter(|at_ms| *at_ms > 0)
    }

    /// Waits for the next event and returns it. Each event goes to only one caller.
    pub async fn next(&self) -> Event {
        let next = self.receiver.lock().await.recv().await;
        // `self` holds a sender, so the channel cannot be closed. If it were, wait here instead of spinning.
        match next {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}
