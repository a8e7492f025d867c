//! What changed, told to whoever shows it. A change carries no data: the listener reads what it needs, so a listener that
//! lags loses nothing but intermediate states.

use domain::ident::RunId;
use tokio::sync::broadcast;

/// How many changes a listener may lag behind before it is told so (and reads everything anew). A burst of a thousand
/// changes is a whole cluster connecting at once.
const BACKLOG: usize = 1_024;
/// The same for pieces of logs, which have a channel of their own: a run that logs quickly must not make listeners read the rest anew.
const LOGS_BACKLOG: usize = 1_024;

/// Something that a page may be showing is different now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node appeared, went, or changed.
    Nodes,
    /// A run appeared or changed: both the list and the run's own page.
    Run(RunId),
    /// An alert began to pend or fire, or was resolved.
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
    /// Tells everyone who listens; nobody listening is fine.
    pub fn send(&self, change: Change) {
        let _listeners = self.changes.send(change);
    }

    /// Tells who listens for logs that bytes were added to a log of the run.
    pub fn send_log(&self, run: RunId) {
        let _listeners = self.logs.send(run);
    }

    /// Listens from now on. `RecvError::Lagged` means: read everything anew.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Listens for logs from now on. `RecvError::Lagged` means: read all logs anew.
    #[must_use]
    pub fn subscribe_logs(&self) -> broadcast::Receiver<RunId> {
        self.logs.subscribe()
    }
}
