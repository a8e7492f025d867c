//! The storage of Lockstep: series of samples, and the state of nodes, runs, alerts and users.
//!
//! This is the only crate that contains SQL. Files of the data folder:
//!
//! ```text
//! lock               held while a process uses the folder
//! lockstep.db        series: names, sealed chunks                   series::SeriesStore
//! wal-000001.db …    series: batches not yet sealed into chunks
//! state.db           nodes, runs, events, alerts, tokens, …         state::StateStore
//! backup-in-progress a copy that is being written to an archive     backup
//! restore-…          a backup that is being restored                restore
//! ```
//! Acknowledged samples survive `kill -9` and a power loss. The time is an argument; the store uses its own (monotonic) clock
//! only for the age of unsealed samples.

mod sqlite;

pub mod backup;
pub mod check;
pub mod machine;
pub mod restore;
pub mod series;
pub mod state;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use series::{SeriesStore, StoreConfig};
pub use state::StateStore;

/// An open data folder.
#[derive(Debug)]
pub struct Store {
    /// The series.
    pub series: SeriesStore,
    /// Everything else.
    pub state: StateStore,
}

/// The reason why a data folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder does not exist and cannot be created, or a file in it cannot be opened.
    #[error("cannot use {path}; check that this user may write to it")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the folder open.
    #[error("the data folder {path} is used by another process; stop that process, or use another folder")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// SQLite cannot open the database.
    #[error("cannot open the database {path}")]
    Database {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: sqlx::Error,
    },
    /// The tables could not be migrated to the current version.
    #[error("cannot migrate the database {path}; it may have been written by a newer version")]
    Migration {
        /// The file.
        path: PathBuf,
        /// The failed migration.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// A blob or row cannot be decoded.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is inconsistent.
        what: String,
    },
}

impl Store {
    /// Opens or creates a data folder: reads unsealed samples from the write-ahead log, and starts the committer and the
    /// sealer.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(config: StoreConfig) -> Result<Self, OpenError> {
        create_folder(&config.data_dir)?;
        let folder_lock = Arc::new(lock_folder(&config.data_dir).await?);
        restore::finish(&config.data_dir).map_err(|source| OpenError::Folder {
            path: config.data_dir.clone(),
            source,
        })?;
        backup::remove_left_over(&config.data_dir);
        let state = StateStore::open(&config.data_dir, config.vfs).await?;
        let series = SeriesStore::open(config, folder_lock).await?;
        Ok(Self { series, state })
    }

    /// Accepts no more appends, finishes those in flight, and closes the files.
    pub async fn close(self) {
        self.series.close().await;
        self.state.close().await;
    }
}

fn create_folder(path: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    made.map_err(|source| OpenError::Folder {
        path: path.to_owned(),
        source,
    })
}

/// How long a process that is ending may still hold the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Locks the data folder: two collectors on one folder would overwrite each other's data. The lock is released when the last
/// task of the series store ends, or when the process ends for any reason.
async fn lock_folder(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("lock");
    let failed = |source| OpenError::Folder {
        path: path.clone(),
        source,
    };
    sqlite::create_private(&path).map_err(failed)?;
    let file = File::open(&path).map_err(failed)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: folder.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}
