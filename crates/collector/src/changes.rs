//! Notifies subscribers of changes. A change carries no data: a subscriber reads what it needs, so a subscriber that lags only misses
//! intermediate states.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// How often each list that pages show may have changed. The numbers only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListCounts {
    pub(crate) runs: u64,
    pub(crate) diagnoses: u64,
    pub(crate) nodes: u64,
}

/// The broadcast of changes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Changes {
    changes: broadcast::Sender<Change>,
    logs: broadcast::Sender<RunId>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    runs: AtomicU64,
    diagnoses: AtomicU64,
    nodes: AtomicU64,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(BACKLOG),
            logs: broadcast::Sender::new(LOGS_BACKLOG),
            counters: Arc::default(),
        }
    }
}

impl Changes {
    /// Notifies all subscribers. There may be none. What has changed must be readable before.
    pub fn send(&self, change: Change) {
        self.counters.count(&change);
        let _listeners = self.changes.send(change);
    }

    /// Notifies the subscribers for logs that a log of the run has new bytes.
    pub fn send_log(&self, run: RunId) {
        let _listeners = self.logs.send(run);
    }

    /// Returns how often each list may have changed. A list that is read afterwards contains all changes counted here.
    pub(crate) fn list_counts(&self) -> ListCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        ListCounts {
            runs: count(&self.counters.runs),
            diagnoses: count(&self.counters.diagnoses),
            nodes: count(&self.counters.nodes),
        }
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

impl Counters {
    fn count(&self, change: &Change) {
        let add_one = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Release);
        };
        match change {
            Change::Nodes => add_one(&self.nodes),
            Change::Run(_) => {
                add_one(&self.runs);
                // Nodes contain the runs on them.
                add_one(&self.nodes);
            }
            Change::Diagnoses => add_one(&self.diagnoses),
            Change::Events => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_counted_for_the_lists_that_it_concerns() {
        let changes = Changes::default();
        let run = RunId::new("a").expect("a run's id");
        for change in [Change::Nodes, Change::Run(run), Change::Diagnoses, Change::Events] {
            changes.send(change);
        }
        let expected = ListCounts {
            runs: 1,
            diagnoses: 1,
            nodes: 2,
        };
        assert_eq!(changes.list_counts(), expected);
    }
}
