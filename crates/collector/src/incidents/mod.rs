//! Diagnoses as incidents: what people did about them, and what happened around them.

mod surroundings;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::incident::{DiagnosisId, Entry, Handling, handling};
use store::StateStore;
use store::state::StateError;

pub(crate) use self::surroundings::{changed_before, similar};

/// What people did about the alerts that fire. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Incidents {
    known: Arc<Mutex<BTreeMap<DiagnosisId, Vec<Entry>>>>,
}

impl Incidents {
    /// Reads what is stored of the alerts that are active.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(state: &StateStore) -> Result<Self, StateError> {
        let entries = state.active_entries().await?;
        Ok(Self {
            known: Arc::new(Mutex::new(entries)),
        })
    }

    /// Where the handling of an active alert stands.
    #[must_use]
    pub fn handling(&self, id: &DiagnosisId) -> Handling {
        self.known().get(id).map(handling).unwrap_or_default()
    }

    /// Forgets an alert that has ended; the store keeps its entries.
    pub(crate) fn forget(&self, id: &DiagnosisId) {
        self.known().remove(id);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<DiagnosisId, Vec<Entry>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
