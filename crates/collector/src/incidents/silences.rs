//! The silences: which alerts they match, and when the next one begins or ends.

use std::sync::{Arc, PoisonError, RwLock};

use domain::incident::{Silence, SilenceState};
use domain::series::matcher::{CompiledMatcher, InvalidRegex};
use domain::series::{Labels, Matcher};
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;
use tokio::sync::Notify;

use crate::changes::{Change, Changes};

/// All silences. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Silences {
    state: StateStore,
    changes: Changes,
    all: Arc<RwLock<Arc<[Compiled]>>>,
    changed: Arc<Notify>,
}

/// Why a silence is not stored.
#[derive(Debug, thiserror::Error)]
pub enum SilenceError {
    /// A regular expression is invalid.
    #[error(transparent)]
    Regex(#[from] InvalidRegex),
    /// The store failed.
    #[error(transparent)]
    State(#[from] StateError),
}

#[derive(Debug, Clone)]
struct Compiled {
    silence: Silence,
    matchers: Vec<CompiledMatcher>,
}

impl Compiled {
    fn new(silence: Silence) -> Result<Self, InvalidRegex> {
        let matchers = silence
            .matchers
            .iter()
            .map(|matcher| CompiledMatcher::new(&Matcher::from(matcher)));
        Ok(Self {
            matchers: matchers.collect::<Result<_, _>>()?,
            silence,
        })
    }

    fn matches(&self, labels: &Labels) -> bool {
        self.matchers
            .iter()
            .all(|matcher| matcher.matches(labels.get(matcher.name()).unwrap_or_default()))
    }
}

impl Silences {
    /// Loads the stored silences. A silence whose expression this version cannot compile is ignored: too many alerts are better than none.
    pub(super) async fn load(state: StateStore, changes: Changes) -> Result<Self, StateError> {
        let silences = Self {
            state,
            changes,
            all: Arc::new(RwLock::new(Arc::from([]))),
            changed: Arc::default(),
        };
        silences.read().await?;
        Ok(silences)
    }

    async fn read(&self) -> Result<(), StateError> {
        let mut all = Vec::new();
        for silence in self.state.silences().await? {
            let id = silence.id.clone();
            match Compiled::new(silence) {
                Ok(compiled) => all.push(compiled),
                Err(error) => tracing::error!(%error, id, "a stored silence cannot be used"),
            }
        }
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = all.into();
        Ok(())
    }

    fn all(&self) -> Arc<[Compiled]> {
        Arc::clone(&self.all.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns all stored silences, those that end last first.
    #[must_use]
    pub fn list(&self) -> Vec<Silence> {
        self.all().iter().map(|one| one.silence.clone()).collect()
    }

    /// Returns one silence.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Silence> {
        let all = self.all();
        let found = all.iter().find(|one| one.silence.id == id);
        found.map(|one| one.silence.clone())
    }

    /// Returns true if a silence matches these labels, at any time.
    #[must_use]
    pub fn matches(&self, id: &str, labels: &Labels) -> bool {
        let all = self.all();
        all.iter().any(|one| one.silence.id == id && one.matches(labels))
    }

    /// Returns until when an alert with these labels is silenced, or `None` if it is not silenced.
    #[must_use]
    pub fn silenced_until(&self, labels: &Labels, now_ms: TimestampMs) -> Option<TimestampMs> {
        let all = self.all();
        let active = all
            .iter()
            .filter(|one| one.silence.state(now_ms) == SilenceState::Active);
        active
            .filter(|one| one.matches(labels))
            .map(|one| one.silence.ends_ms)
            .max()
    }

    /// Stores a new or changed silence, and applies it.
    ///
    /// # Errors
    /// Returns an error if a regular expression is invalid, or if the store fails.
    pub async fn put(&self, silence: Silence, now_ms: TimestampMs) -> Result<(), SilenceError> {
        let compiled = Compiled::new(silence)?;
        self.state.put_silence(&compiled.silence, now_ms).await?;
        self.read().await?;
        self.changed.notify_one();
        self.changes.send(Change::Diagnoses);
        Ok(())
    }

    /// Returns when the next silence begins or ends.
    #[must_use]
    pub fn next_change_ms(&self, now_ms: TimestampMs) -> Option<TimestampMs> {
        let all = self.all();
        let times = all
            .iter()
            .flat_map(|one| [one.silence.starts_ms, one.silence.ends_ms]);
        times.filter(|at_ms| *at_ms > now_ms).min()
    }

    /// Waits until a user creates or changes a silence.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
