//! The event log that pages show, and the audit log of what people do.

use domain::event::Event;
use store::StateStore;
use store::state::StateError;
use store::state::audit::AuditEntry;

use crate::changes::{Change, Changes};
use crate::clock;

/// Appends to both logs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventLog {
    state: StateStore,
    changes: Changes,
}

impl EventLog {
    /// Logs into `state`, and tells the pages.
    #[must_use]
    pub fn new(state: StateStore, changes: Changes) -> Self {
        Self { state, changes }
    }

    /// Notes who is about to do what to what. An action that cannot be noted must not be carried out.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn audit(&self, who: &str, what: &str, target: &str) -> Result<(), StateError> {
        let entry = AuditEntry {
            at_ms: clock::now_ms(),
            who: who.into(),
            what: what.into(),
            target: target.into(),
        };
        tracing::info!(who, what, target, "audit");
        self.state.append_audit(&entry).await
    }

    /// Adds a line to the event log and tells the pages. A line that cannot be stored is at least in the process' own log.
    pub async fn append(&self, event: Event) {
        tracing::info!(
            kind = event.kind,
            node = event.node,
            run = event.run,
            "{}",
            event.message
        );
        match self.state.append_event(&event).await {
            Ok(()) => self.changes.send(Change::Events),
            Err(error) => tracing::error!(%error, kind = event.kind, "an event could not be stored"),
        }
    }
}
