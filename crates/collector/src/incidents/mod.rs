//! Diagnoses as incidents: what people did about them, silences, and what happened around them.
//!
//! What is needed for each evaluation and each page (entries of alerts that fire, silences) is held in memory; the store has it first.

mod silences;
mod surroundings;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::api::alerts::AlertState;
use domain::incident::{DiagnosisId, Entry, Handling, handling};
use domain::series::Labels;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;

use crate::changes::{Change, Changes};

pub use self::silences::{SilenceError, Silences};
pub(crate) use self::surroundings::{changed_before, similar, timeline};

/// What people did about alerts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Incidents {
    state: StateStore,
    changes: Changes,
    /// Of alerts that fire.
    entries: Arc<Mutex<BTreeMap<DiagnosisId, Vec<Entry>>>>,
    silences: Silences,
}

impl Incidents {
    /// Reads what is stored.
    ///
    /// # Errors
    /// When the store cannot be read, or holds a silence that cannot be used.
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

    /// Silences, and what they match.
    #[must_use]
    pub fn silences(&self) -> &Silences {
        &self.silences
    }

    /// Where the handling of an alert that fires stands.
    #[must_use]
    pub fn handling(&self, id: &DiagnosisId, labels: &Labels, now_ms: TimestampMs) -> Handling {
        Handling {
            silenced_until_ms: self.silences.silenced_until(labels, now_ms),
            ..self.known().get(id).map(handling).unwrap_or_default()
        }
    }

    /// Adds to what people did about an alert that has fired. Returns false when there is no such alert.
    ///
    /// # Errors
    /// When the store fails, or there are too many entries.
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

    /// Forgets an alert that has ended; the store keeps its entries.
    pub(crate) fn forget(&self, id: &DiagnosisId) {
        self.known().remove(id);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<DiagnosisId, Vec<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
