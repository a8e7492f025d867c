//! Diagnoses as incidents: user actions on them, silences, and events around them.
//!
//! Entries of firing alerts and silences are needed for each evaluation and each page, so they are kept in memory. The store always has
//! them first.

mod history;
mod silences;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::api::alerts::AlertState;
use domain::incident::{DiagnosisId, Entry, Handling, handling};
use domain::series::Labels;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;

use crate::changes::{Change, Changes};

pub(crate) use self::history::{changed_before, events_around, similar, timeline};
pub use self::silences::{SilenceError, Silences};

/// User actions on alerts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Incidents {
    state: StateStore,
    changes: Changes,
    /// The entries of firing alerts.
    entries: Arc<Mutex<BTreeMap<DiagnosisId, Vec<Entry>>>>,
    silences: Silences,
}

impl Incidents {
    /// Loads the stored state.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    pub async fn load(state: StateStore, changes: Changes) -> Result<Self, StateError> {
        let entries = state.active_entries().await?;
        let silences = Silences::load(state.clone(), changes.clone()).await?;
        Ok(Self {
            state,
            changes,
            entries: Arc::new(Mutex::new(entries)),
            silences,
        })
    }

    /// The silences, and what they match.
    #[must_use]
    pub fn silences(&self) -> &Silences {
        &self.silences
    }

    /// Returns how a firing alert is being handled.
    #[must_use]
    pub fn handling(&self, id: &DiagnosisId, labels: &Labels, now_ms: TimestampMs) -> Handling {
        Handling {
            silenced_until_ms: self.silences.silenced_until(labels, now_ms),
            ..self.known().get(id).map(handling).unwrap_or_default()
        }
    }

    /// Adds an entry to an alert that has fired. Returns false if there is no such alert.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the alert has too many entries.
    pub async fn append(&self, id: &DiagnosisId, entry: &Entry) -> Result<bool, StateError> {
        if !self.state.append_entry(id, entry).await? {
            return Ok(false);
        }
        let stored = self.state.incident(id).await?;
        if let Some(incident) = stored.filter(|incident| incident.alert.state == AlertState::Firing) {
            self.known().insert(id.clone(), incident.entries);
        }
        self.changes.send(Change::Diagnoses);
        Ok(true)
    }

    /// Removes an alert that has ended from memory. The store keeps its entries.
    pub(crate) fn forget(&self, id: &DiagnosisId) {
        self.known().remove(id);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<DiagnosisId, Vec<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
