//! Connections that read on the caller's thread, which may block.
//!
//! sqlx gives each connection its own thread and passes one row at a time. That suits a web server, but it took more than half
//! of the time for reading a cold chunk.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags, ffi};

use super::BUSY_TIMEOUT;

/// Connections to one file. They are opened when they are needed, and then kept.
#[derive(Debug, Clone)]
pub(crate) struct LocalReaders(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    vfs: Option<&'static str>,
    /// The maximum number of connections in use. Further callers wait.
    max: usize,
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    in_use: usize,
    closed: bool,
}

/// A connection in use. It is closed when this is dropped, as a failed connection must be.
#[derive(Debug)]
pub(crate) struct ReaderGuard {
    connection: Connection,
    slot: Slot,
}

/// One of the slots of connections in use.
#[derive(Debug)]
struct Slot(Arc<Inner>);

impl LocalReaders {
    /// Readers of an existing database: at most two per core. None is opened yet.
    pub(super) fn new(path: PathBuf, vfs: Option<&'static str>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::at_most(2 * cores, path, vfs)
    }

    fn at_most(max: usize, path: PathBuf, vfs: Option<&'static str>) -> Self {
        Self(Arc::new(Inner {
            path,
            vfs,
            max,
            state: Mutex::default(),
            released: Condvar::new(),
        }))
    }

    /// Returns a connection for the caller alone. The caller must release it before it takes another one.
    pub(crate) fn take(&self) -> Result<ReaderGuard, rusqlite::Error> {
        let mut state = self.0.lock();
        while !state.closed && state.in_use >= self.0.max {
            let waited = self.0.released.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            let misuse = ffi::Error::new(ffi::SQLITE_MISUSE);
            let text = "the store is closed".to_owned();
            return Err(rusqlite::Error::SqliteFailure(misuse, Some(text)));
        }
        state.in_use += 1;
        let slot = Slot(Arc::clone(&self.0));
        let known = state.idle.pop();
        drop(state);
        let connection = match known {
            Some(connection) => connection,
            None => self.0.open()?,
        };
        Ok(ReaderGuard { connection, slot })
    }

    /// Closes all connections; those in use as soon as they are released. SQLite cleans up when the last connection closes, and
    /// that must be the writer.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.idle.clear();
        self.0.released.notify_all();
    }
}

impl Inner {
    fn open(&self) -> Result<Connection, rusqlite::Error> {
        // Not SQLite's own read-only mode: a read-only connection cannot take part in the recovery of a journal.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match self.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(&self.path, flags, vfs)?,
            None => Connection::open_with_flags(&self.path, flags)?,
        };
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "query_only", "ON")?;
        Ok(connection)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderGuard {
    /// Releases a connection that did not fail, so that others may use it.
    pub(crate) fn release(self) {
        let Self { connection, slot } = self;
        let mut state = slot.0.lock();
        if !state.closed {
            state.idle.push(connection);
        }
        // `slot` is dropped after the lock is released.
        drop(state);
    }
}

impl Deref for ReaderGuard {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.lock().in_use -= 1;
        self.0.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn readers(folder: &tempfile::TempDir, max: usize) -> LocalReaders {
        let path = folder.path().join("x.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (7)")
            .unwrap();
        LocalReaders::at_most(max, path, None)
    }

    fn number(connection: &Connection) -> i64 {
        connection
            .query_one("SELECT n FROM t", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn a_connection_is_used_again_unless_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder, 2);
        let idle = || readers.0.lock().idle.len();
        for _ in 0..2 {
            let reader = readers.take().unwrap();
            assert_eq!((number(&reader), idle()), (7, 0));
            reader.release();
            assert_eq!(idle(), 1);
        }
        let (one, two) = (readers.take().unwrap(), readers.take().unwrap());
        assert!(one.execute("DELETE FROM t", []).is_err(), "it only reads");
        drop(one);
        two.release();
        assert_eq!((idle(), number(&readers.take().unwrap())), (1, 7));
        assert_eq!(readers.0.lock().in_use, 0);
    }

    #[test]
    fn a_caller_waits_while_all_connections_are_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder, 1);
        let reader = readers.take().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| number(&readers.take().unwrap()));
            // However long it waits, there is no connection while this one is in use.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!waiting.is_finished());
            reader.release();
            assert_eq!(waiting.join().unwrap(), 7);
        });
    }

    #[test]
    fn none_is_kept_or_opened_once_closed() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder, 1);
        let reader = readers.take().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| readers.take().is_err());
            readers.close();
            assert!(waiting.join().unwrap());
        });
        assert_eq!(number(&reader), 7);
        reader.release();
        assert!(readers.0.lock().idle.is_empty());
        assert!(readers.take().is_err());
    }
}
