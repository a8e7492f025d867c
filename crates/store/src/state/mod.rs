//! The state: nodes, runs, events, alerts, tokens. Records are small, each noun has one file, and the time is an argument.
//!
//! Domain types that are only shown or returned are stored as JSON. Fields that are searched or sorted by have a column.

pub mod nodes;
pub mod runs;
pub mod unknown_attempts;
pub mod unread;

pub mod alerts;
pub mod deliveries;
pub mod events;
pub mod incidents;
mod silenced;
pub mod silences;
pub mod webhooks;

pub mod audit;
pub mod sessions;
pub mod tokens;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::OpenError;
use crate::sqlite::Database;

/// The maximum number of rows of any list, whatever limit is requested: people read them page by page.
pub const LIST_MAX: u32 = 10_000;

/// The state on disk. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StateStore {
    database: Database,
}

/// The reason why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// SQLite failed: disk full, I/O error, damaged file.
    #[error("the state database failed; check the free space and health of its disk")]
    Database(#[from] sqlx::Error),
    /// A record cannot be decoded.
    #[error("a stored {what} cannot be decoded; it may have been written by a newer version")]
    Record {
        /// The kind of record.
        what: &'static str,
        /// The error of the decoder.
        #[source]
        source: serde_json::Error,
    },
    /// Another task changed the record after it was read.
    #[error("{what} was changed after it was read (expected version {expected}); read it again")]
    Conflict {
        /// The name of the record.
        what: String,
        /// The version that was expected.
        expected: i64,
    },
    /// The maximum number of records of a kind is reached.
    #[error("the limit of {max} {what} is reached; remove some that are not used")]
    Full {
        /// The kind of record, in the plural.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A record with this name already exists.
    #[error("{what} already exists")]
    Exists {
        /// The name of the record.
        what: String,
    },
}

impl StateStore {
    pub(crate) async fn open(folder: &Path, vfs: Option<&'static str>) -> Result<Self, OpenError> {
        let database = Database::open(
            &folder.join("state.db"),
            &sqlx::migrate!("../../migrations/sqlite/state"),
            vfs,
        )
        .await?;
        Ok(Self { database })
    }

    pub(crate) async fn close(&self) {
        self.database.close().await;
    }
}

fn to_json<T: Serialize>(what: &'static str, value: &T) -> Result<String, StateError> {
    serde_json::to_string(value).map_err(|source| StateError::Record { what, source })
}

fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StateError> {
    serde_json::from_str(text).map_err(|source| StateError::Record { what, source })
}

/// Returns serde's name of an enum variant without fields, such as `firing` for `AlertState::Firing`. Columns store this.
fn to_word<T: Serialize>(what: &'static str, value: &T) -> Result<String, StateError> {
    Ok(to_json(what, value)?.trim_matches('"').to_owned())
}

fn from_word<T: DeserializeOwned>(what: &'static str, word: &str) -> Result<T, StateError> {
    serde_json::from_value(serde_json::Value::from(word))
        .map_err(|source| StateError::Record { what, source })
}

/// Returns the limit of a list, at most [`LIST_MAX`].
fn bounded(limit: u32) -> i64 {
    i64::from(limit.min(LIST_MAX))
}

/// Returns true if an insert failed because the key is taken.
fn is_taken(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation())
}
