//! Opens database files: write-ahead journal, full synchronisation, one writer and a few readers.
//!
//! `synchronous=FULL` is required: with NORMAL, a power loss undoes acknowledged commits, and no `kill -9` test would show it.

mod local;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::ffi;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, SqlitePool, Transaction};

pub(crate) use self::local::LocalReaders;
use crate::OpenError;

/// SQLite's default. Larger pages waste space on our mix of small rows and overflowing blobs.
const PAGE_BYTES: u32 = 4_096;
/// The size to which a journal shrinks when it restarts: 4 MiB. Otherwise one large transaction would take its space for good.
const JOURNAL_BYTES: &str = "4194304";
/// How long a connection waits for a lock. Only a checkpoint or a backup can hold one for more than milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of readers per database. Callers limit the number of queries as well.
const READERS: u32 = 4;

/// A database file with its writer and its readers.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    writer: SqlitePool,
    /// Connections for everything that only reads.
    pub(crate) readers: SqlitePool,
    /// Connections for large reads on a thread that may block.
    pub(crate) local_readers: LocalReaders,
}

impl Database {
    /// Opens or creates the file, readable by its owner only, and migrates its tables to the current version.
    pub(crate) async fn open(
        path: &Path,
        migrator: &sqlx::migrate::Migrator,
        vfs: Option<&'static str>,
    ) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Database {
            path: path.to_owned(),
            source,
        };
        create_private(path).map_err(|source| OpenError::Folder {
            path: path.to_owned(),
            source,
        })?;
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            // After a disk error SQLite has already rolled back. sqlx's own rollback then fails, and it would treat the
            // connection as in a transaction for good. So the connection is closed and another one opened.
            .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
            .connect_with(options(path, vfs))
            .await
            .map_err(failed)?;
        migrator
            .run(&writer)
            .await
            .map_err(|source| OpenError::Migration {
                path: path.to_owned(),
                source,
            })?;
        // Not SQLite's own read-only mode: a read-only connection cannot take part in the recovery of a journal.
        let reading = options(path, vfs).pragma("query_only", "ON");
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            // A file does not disconnect. Testing the connection each time costs a query more than its rows.
            .test_before_acquire(false)
            .connect_with(reading)
            .await
            .map_err(failed)?;
        Ok(Self {
            writer,
            readers,
            local_readers: LocalReaders::new(path.to_owned(), vfs),
        })
    }

    /// Begins a transaction that holds the write lock from its first statement, so that it never fails in the middle because of
    /// a lock.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
        self.writer.begin_with("BEGIN IMMEDIATE").await
    }

    /// Returns the writer, for single statements.
    pub(crate) fn writer(&self) -> &SqlitePool {
        &self.writer
    }

    pub(crate) async fn close(&self) {
        self.local_readers.close();
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Migrates a state database that is not in use, and lets `change` write to it. Leaves only the file itself, so that it can be
/// moved.
pub(crate) async fn change_closed_state(
    path: &Path,
    change: impl AsyncFnOnce(&mut Transaction<'_, Sqlite>) -> Result<(), sqlx::Error>,
) -> Result<(), OpenError> {
    let failed = |source| OpenError::Database {
        path: path.to_owned(),
        source,
    };
    // Without a write-ahead journal, which would be a second file.
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Delete)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true);
    let mut connection = sqlx::SqliteConnection::connect_with(&options)
        .await
        .map_err(failed)?;
    sqlx::migrate!("../../migrations/sqlite/state")
        .run(&mut connection)
        .await
        .map_err(|source| OpenError::Migration {
            path: path.to_owned(),
            source,
        })?;
    let changed = async {
        let mut transaction = connection.begin().await?;
        change(&mut transaction).await?;
        transaction.commit().await?;
        connection.close().await
    };
    changed.await.map_err(failed)
}

/// Returns the options that all files share.
pub(crate) fn options(path: &Path, vfs: Option<&'static str>) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(path);
    match vfs {
        Some(vfs) => options.vfs(vfs),
        None => options,
    }
    .page_size(PAGE_BYTES)
    .auto_vacuum(SqliteAutoVacuum::Incremental)
    .journal_mode(SqliteJournalMode::Wal)
    .synchronous(SqliteSynchronous::Full)
    .foreign_keys(true)
    .busy_timeout(BUSY_TIMEOUT)
    .pragma("journal_size_limit", JOURNAL_BYTES)
}

/// Returns true if SQLite cannot use the content of a file.
pub(crate) fn is_damaged(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<i32>().ok());
    // The lowest byte is the primary code.
    code.is_some_and(|code| matches!(code & 0xff, ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB))
}

/// Creates the file with access for its owner only. SQLite gives its journals the same mode.
pub(crate) fn create_private(path: &Path) -> std::io::Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[tokio::test]
    async fn commits_are_synchronised_and_the_library_is_new_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let database = Database::open(&path, &sqlx::migrate!("../../migrations/sqlite/state"), None)
            .await
            .unwrap();
        let number = async |sql: &'static str| {
            sqlx::query_scalar::<_, i64>(sql)
                .fetch_one(database.writer())
                .await
                .unwrap()
        };
        assert_eq!(number("PRAGMA synchronous").await, 2, "FULL");
        assert_eq!(number("PRAGMA page_size").await, 4_096);
        assert_eq!(number("PRAGMA auto_vacuum").await, 2, "INCREMENTAL");
        assert_eq!(number("PRAGMA foreign_keys").await, 1);
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(database.writer())
            .await
            .unwrap();
        assert_eq!(mode, "wal");
        // Older versions may corrupt a database when several connections run a checkpoint (the WAL-reset bug).
        let version: String = sqlx::query_scalar("SELECT sqlite_version()")
            .fetch_one(database.writer())
            .await
            .unwrap();
        let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        assert!(parts >= vec![3, 51, 3], "{version}");
    }

    #[tokio::test]
    async fn only_the_owner_reads_the_files() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let database = Database::open(&path, &sqlx::migrate!("../../migrations/sqlite/state"), None)
            .await
            .unwrap();
        sqlx::query("INSERT INTO audit VALUES (1, 2, 'a', 'b', 'c')")
            .execute(database.writer())
            .await
            .unwrap();
        for name in ["x.db", "x.db-wal"] {
            let mode = std::fs::metadata(folder.path().join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o077, 0, "{name}");
        }
    }
}
