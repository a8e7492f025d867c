//! Connections that read on the thread of whoever asks, which may block.
//!
//! sqlx gives each connection a thread of its own and hands over row by row. That is right for a web server; of reading a
//! cold chunk it was more than half.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags};

use super::BUSY_TIMEOUT;

/// Connections kept for the next ones who ask. More are opened when more ask at once, and closed behind them.
const IDLE_MAX: usize = 4;

/// Connections to one file, opened as they are needed.
#[derive(Debug, Clone)]
pub(crate) struct LocalReaders(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    vfs: Option<&'static str>,
    idle: Mutex<Idle>,
}

/// A connection in use; closed when it is dropped, as one that failed should be.
#[derive(Debug)]
pub(crate) struct Taken {
    connection: Connection,
    readers: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Idle {
    connections: Vec<Connection>,
    closed: bool,
}

impl LocalReaders {
    /// Readers of a database that exists; none is opened yet.
    pub(super) fn new(path: PathBuf, vfs: Option<&'static str>) -> Self {
        let idle = Mutex::default();
        Self(Arc::new(Inner { path, vfs, idle }))
    }

    /// A connection that nobody else uses meanwhile.
    pub(crate) fn take(&self) -> Result<Taken, rusqlite::Error> {
        let known = self.0.lock().connections.pop();
        let connection = match known {
            Some(connection) => connection,
            None => self.0.open()?,
        };
        let readers = Arc::clone(&self.0);
        Ok(Taken { connection, readers })
    }

    /// Closes all, those in use as soon as they are done: SQLite tidies up when the last connection goes, and that is to be
    /// the writer.
    pub(super) fn close(&self) {
        let mut idle = self.0.lock();
        idle.closed = true;
        idle.connections.clear();
    }
}

impl Inner {
    fn open(&self) -> Result<Connection, rusqlite::Error> {
        // Not SQLite's own read-only mode: such a connection cannot take part in the recovery of a journal.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match self.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(&self.path, flags, vfs)?,
            None => Connection::open_with_flags(&self.path, flags)?,
        };
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "query_only", "ON")?;
        Ok(connection)
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// It did not fail: others may use it.
    pub(crate) fn give_back(self) {
        let mut idle = self.readers.lock();
        if !idle.closed && idle.connections.len() < IDLE_MAX {
            idle.connections.push(self.connection);
        }
    }
}

impl Deref for Taken {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn readers(folder: &tempfile::TempDir) -> LocalReaders {
        let path = folder.path().join("x.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (7)")
            .unwrap();
        LocalReaders::new(path, None)
    }

    fn number(connection: &Connection) -> i64 {
        connection
            .query_one("SELECT n FROM t", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn a_connection_is_used_again_unless_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder);
        let idle = || readers.0.lock().connections.len();
        for _ in 0..2 {
            let taken = readers.take().unwrap();
            assert_eq!((number(&taken), idle()), (7, 0));
            taken.give_back();
            assert_eq!(idle(), 1);
        }
        let (one, two) = (readers.take().unwrap(), readers.take().unwrap());
        assert!(one.execute("DELETE FROM t", []).is_err(), "it only reads");
        drop(one);
        two.give_back();
        assert_eq!((idle(), number(&readers.take().unwrap())), (1, 7));
    }

    #[test]
    fn none_is_kept_once_closed() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder);
        let taken = readers.take().unwrap();
        readers.close();
        assert_eq!(number(&taken), 7);
        taken.give_back();
        assert!(readers.0.lock().connections.is_empty());
    }
}
