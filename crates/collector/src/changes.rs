//! Notifies subscribers of changes. A change carries no data: a subscriber reads what it needs, so a subscriber that lags only misses
//! intermediate states.

use domain::ident::RunId;
use tokio::sync::broadcast;

/// How many changes a subscriber may lag behind before it gets `Lagged` and must read everything again. A burst of a thousand changes is a
/// whole cluster that connects at once.
const BACKLOG: usize = 1_024;
/// The same for log chunks, which have their own channel: a run that logs quickly must not force subscribers to read everything else again.
const LOGS_BACKLOG: usize = 1_024;

/// A change of something that a page may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node appeared, disappeared or changed.
    Nodes,
    /// A run appeared or changed: both the list and the run's page.
    Run(RunId),
    /// An alert became pending, firing or resolved.
    Diagnoses,
    /// The event log has a new line.
    Events,
}

/// The broadcast of changes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Changes {
    changes: broadcast::Sender<Change>,
    logs: broadcast::Sender<RunId>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(BACKLOG),
            logs: broadcast::Sender::new(LOGS_BACKLOG),
        }
    }
}

impl Changes {
    /// Notifies all subscribers. There may be none.
    pub fn send(&self, change: Change) {
        let _listeners = self.changes.send(change);
    }

    /// Notifies the subscribers for logs that a log of the run has new bytes.
    pub fn send_log(&self, run: RunId) {
        let _listeners = self.logs.send(run);
    }

    /// Subscribes to changes from now on. On `RecvError::Lagged`, read everything again.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Subscribes to log changes from now on. On `RecvError::Lagged`, read all logs again.
    #[must_use]
    pub fn subscribe_logs(&self) -> broadcast::Receiver<RunId> {
        self.logs.subscribe()
    }
}
