//! Things that happened on the node, on their way to the collector: at most once, never waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use tokio::sync::{Mutex, mpsc};

/// The most events that wait for a connection. A node that has more to tell in one outage has told enough.
const WAITING_MAX: usize = 256;

/// Takes events. Cheap to clone; when the queue is full the newest event is dropped, and the log has it all the same.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    receiver: Arc<Mutex<mpsc::Receiver<Event>>>,
    /// When the last critical one happened or was told of; 0 when none was.
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
            tracing::warn!("too many node events wait for the collector; this one stays in this log only");
        }
    }

    /// Something critical is known of elsewhere: what is kept for such a case is wanted.
    pub(crate) fn alarm(&self, at_ms: TimestampMs) {
        self.alarmed_ms.fetch_max(at_ms, Ordering::Relaxed);
    }

    /// When the last critical event happened, or was told of, if one was.
    pub(crate) fn alarmed_at(&self) -> Option<TimestampMs> {
        Some(self.alarmed_ms.load(Ordering::Relaxed)).filter(|at_ms| *at_ms > 0)
    }

    /// The next event; waits for one. Only one caller gets each.
    pub async fn next(&self) -> Event {
        let next = self.receiver.lock().await.recv().await;
        // `self` holds a sender, so the channel cannot be closed; to be sure, wait rather than spin.
        match next {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}
