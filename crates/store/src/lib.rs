//! Everything Lockstep keeps: series of samples, and the state of nodes, runs, alerts and users.
//!
//! The only crate that knows SQL. In the data folder:
//!
//! ```text
//! lock               held while a process uses the folder
//! lockstep.db        series: names, sealed chunks                   series::SeriesStore
//! wal-000001.db …    series: batches not yet sealed into chunks
//! state.db           nodes, runs, events, alerts, tokens, …          state::StateStore
//! backup-in-progress a copy on its way into an archive                backup
//! restore-…          a backup on its way into place                   restore
//! ```
//! What was acknowledged survives a kill -9 and a power loss. Time arrives as a value; only the age of unsealed samples is
//! measured by the store's own (monotonic) clock.

mod sqlite;

pub mod backup;
pub mod check;
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

/// A data folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No folder there and none could be made, or a file in it cannot be opened.
    #[error("cannot use {path}; check that it may be written by this user")]
    Folder {
        /// Folder or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Another collector has it open.
    #[error(
        "the data folder {path} is used by another process; stop that one, or give this one a folder of its own"
    )]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// SQLite refused.
    #[error("cannot open the database {path}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: sqlx::Error,
    },
    /// The tables could not be brought up to date.
    #[error("cannot bring the database {path} up to date; it may have been written by a newer version")]
    Migration {
        /// The file.
        path: PathBuf,
        /// Which step.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// A blob or row that does not read back.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
}

impl Store {
    /// Opens or creates a data folder: replays what is not sealed yet, and starts the committer and the sealer.
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

    /// Takes no more appends, finishes the ones under way, and closes the files.
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

/// How long a process that is just ending may still hold the folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Two collectors on one folder would overwrite each other's numbers. The lock is let go of when the last task of the
/// series store has ended, or the process, however it ends.
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
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
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
