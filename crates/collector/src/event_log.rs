//! The event log that pages show, and the audit log of control actions.

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
    /// Creates an event log that writes to `state` and notifies the pages through `changes`.
    #[must_use]
    pub fn new(state: StateStore, changes: Changes) -> Self {
        Self { state, changes }
    }

    /// Records in the audit log who is about to do what to what. An action that cannot be recorded must not be carried out.
    ///
    /// # Errors
    /// Returns an error if the store fails.
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

    /// Adds a line to the event log and notifies the pages. The process log gets the line too, also if it cannot be stored.
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
