//! Nodes, runs, events, alerts, tokens: small records, one file a noun, plain functions with time as a value.
//!
//! Domain types that are only shown or handed back are kept as JSON; what is searched or sorted by has a column.

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

/// The most rows any list returns, whatever was asked for: they are read by people, page by page.
pub const LIST_MAX: u32 = 10_000;

/// Records on disk. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StateStore {
    database: Database,
}

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// SQLite failed: disk full, I/O error, damaged file.
    #[error("the state database failed; look at the free space and health of its disk")]
    Database(#[from] sqlx::Error),
    /// A record does not read back as what it should be.
    #[error("a stored {what} cannot be read; it may have been written by a newer version")]
    Record {
        /// The kind of record.
        what: &'static str,
        /// Where it breaks.
        #[source]
        source: serde_json::Error,
    },
    /// The record was changed by somebody else since it was read.
    #[error("{what} has moved on since it was read (version {expected} was expected); read it again")]
    Conflict {
        /// Which record.
        what: String,
        /// The version that was expected.
        expected: i64,
    },
    /// There are as many records of a kind as there may be.
    #[error("there are {max} {what} already, which is the most there may be; remove some that nobody uses")]
    Full {
        /// The kind of record, in the plural.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A record of that name exists.
    #[error("{what} already exists")]
    Exists {
        /// Which record.
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

/// The word serde writes for an enum without fields, `firing` for `AlertState::Firing`: what columns hold.
fn to_word<T: Serialize>(what: &'static str, value: &T) -> Result<String, StateError> {
    Ok(to_json(what, value)?.trim_matches('"').to_owned())
}

fn from_word<T: DeserializeOwned>(what: &'static str, word: &str) -> Result<T, StateError> {
    serde_json::from_value(serde_json::Value::from(word))
        .map_err(|source| StateError::Record { what, source })
}

/// A list's limit, bounded.
fn bounded(limit: u32) -> i64 {
    i64::from(limit.min(LIST_MAX))
}

/// Whether an insert failed because the key is taken.
fn is_taken(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation())
}
