//! What changed, told to whoever shows it. A change carries no data: the listener reads what it needs, so a listener that
//! lags loses nothing but intermediate states.

use domain::ident::RunId;
use tokio::sync::broadcast;

/// How many changes a listener may lag behind before it is told so (and reads everything anew). A burst of a thousand
/// changes is a whole cluster connecting at once.
const BACKLOG: usize = 1_024;

/// Something that a page may be showing is different now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node appeared, went, or changed.
    Nodes,
    /// A run appeared or changed: both the list and the run's own page.
    Run(RunId),
    /// Bytes were added to a log of the run.
    Log(RunId),
    /// An alert began to pend or fire, or was resolved.
    Diagnoses,
    /// The event log has a new line.
    Events,
}

/// The broadcast of changes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl Changes {
    /// Tells everyone who listens; nobody listening is fine.
    pub fn send(&self, change: Change) {
        let _listeners = self.0.send(change);
    }

    /// Listens from now on. `RecvError::Lagged` means: read everything anew.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
