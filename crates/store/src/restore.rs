//! Restores a backup into a data folder that is not in use: completely or not at all.
//!
//! ```text
//! archive → restore-in-progress/   unpacked, sums compared, checked          after a crash: deleted at the next start
//!         → restore-ready/         old files moved to before-restore-N/      after a crash: finished at the next start
//!         → restore-placing/       new files moved into place                after a crash: finished at the next start
//! ```
//! Before the files are moved into place, the state is migrated and the restore is recorded in it. The collector needs this
//! because nodes may hold attempts of runs that the state does not contain.
//!
//! These folders are inside the data folder, because that may be a separate volume, which cannot be renamed. What a backup does
//! not contain (the admin's token, logs of runs, the local agent's folder) stays where it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use domain::api::store::{BackupHead, CheckProgress, CheckReport};
use domain::bytes::DisplayBytes;
use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use crate::backup::{ArchiveError, FILES, read_archive};
use crate::check::{self, CheckError};
use crate::{OpenError, sqlite};

const IN_PROGRESS: &str = "restore-in-progress";
const READY: &str = "restore-ready";
const PLACING: &str = "restore-placing";
/// The file in [`READY`] with the name of the folder for the old files.
const ASIDE: &str = "aside";
/// Entries of a folder that still counts as empty.
const IGNORED_NAMES: [&str; 2] = ["lock", "lost+found"];

/// The reason why a backup was not restored. The data folder is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The folder is in use or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The folder is not empty.
    #[error(
        "{path} is not empty; restore into an empty folder, or use --force to move its series and state aside",
        path = path.display()
    )]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The disk has no room for the files.
    #[error("the backup needs {} and {path} has {} free", DisplayBytes(*needed), DisplayBytes(*free), path = path.display())]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The size of the files in bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The unpacked files could not be checked.
    #[error("the content of the backup cannot be checked")]
    Check(#[from] CheckError),
    /// The unpacked files are damaged.
    #[error("the content of the backup is damaged: {} problems, the first: {first}", report.problems_total)]
    Damaged {
        /// All problems.
        report: Box<CheckReport>,
        /// The first problem in words.
        first: String,
    },
    /// A file could not be written or moved.
    #[error("cannot write to {path}", path = path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A completed restore.
#[derive(Debug)]
pub struct Restored {
    /// The description in the backup.
    pub head: BackupHead,
    /// The result of the check, without problems.
    pub report: CheckReport,
    /// The folder of the old files, if there were any.
    pub aside: Option<PathBuf>,
}

/// Restores an archive into a folder.
///
/// # Errors
/// See [`RestoreError`]. The folder is then unchanged.
pub async fn restore(
    archive: impl Read + Send + 'static,
    data: &Path,
    force: bool,
    now_ms: TimestampMs,
    tell: &(dyn Fn(CheckProgress) + Send + Sync),
) -> Result<Restored, RestoreError> {
    crate::create_folder(data)?;
    let _lock = crate::lock_folder(data).await?;
    let failed = |source| RestoreError::Io {
        path: data.to_owned(),
        source,
    };
    finish(data).map_err(failed)?;
    if !force && !is_empty(data).map_err(failed)? {
        return Err(RestoreError::NotEmpty {
            path: data.to_owned(),
        });
    }
    let unpacking = Unpacking::begin(data).map_err(failed)?;
    let head = {
        let folder = unpacking.0.clone();
        let unpacked = tokio::task::spawn_blocking(move || unpack(archive, &folder)).await;
        unpacked.map_err(|panic| failed(io::Error::other(panic)))??
    };
    let report = check::check_files(&unpacking.0, false, tell).await?;
    if let Some(problem) = report.problems.first() {
        let first = format!("{}, {}: {}", problem.file, problem.place, problem.what);
        return Err(RestoreError::Damaged {
            first,
            report: Box::new(report),
        });
    }
    note_restore(&unpacking.0, now_ms, head.created_ms).await?;
    let aside = unpacking.place(data).map_err(failed)?;
    Ok(Restored { head, report, aside })
}

async fn note_restore(
    folder: &Path,
    now_ms: TimestampMs,
    backup_ms: TimestampMs,
) -> Result<(), RestoreError> {
    let note = async |transaction: &mut Transaction<'_, Sqlite>| {
        sqlx::query("INSERT INTO restores (restored_ms, backup_ms) VALUES (?, ?)")
            .bind(now_ms)
            .bind(backup_ms)
            .execute(&mut **transaction)
            .await
            .map(drop)
    };
    Ok(sqlite::change_closed_state(&folder.join("state.db"), note).await?)
}

fn is_empty(data: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(data)? {
        let name = entry?.file_name();
        if !IGNORED_NAMES.iter().any(|ignored| name == *ignored) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The folder with the unpacked files. It is removed unless they are moved into place.
struct Unpacking(PathBuf);

impl Unpacking {
    fn begin(data: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = data.join(IN_PROGRESS);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Moves the files into place. From here on, the next start finishes the restore after a crash.
    fn place(self, data: &Path) -> io::Result<Option<PathBuf>> {
        let aside = old_files(data)?.next().is_some().then(|| free_name(data));
        if let Some(aside) = &aside {
            std::fs::write(self.0.join(ASIDE), aside.as_bytes())?;
            File::open(self.0.join(ASIDE))?.sync_all()?;
        }
        sync(&self.0)?;
        std::fs::rename(&self.0, data.join(READY))?;
        sync(data)?;
        finish(data)?;
        Ok(aside.map(|name| data.join(name)))
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        // Does not exist any more after a successful restore.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn unpack(archive: impl Read, folder: &Path) -> Result<BackupHead, RestoreError> {
    let mut no_room = None;
    let begin = |head: &BackupHead| {
        let needed: u64 = head.files.iter().map(|file| file.bytes).sum();
        let stat = rustix::fs::statvfs(folder)?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if needed > free {
            no_room = Some((needed, free));
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    };
    let take = |file: &domain::api::store::BackupFile, content: &mut dyn Read| {
        let path = folder.join(&file.name);
        sqlite::create_private(&path)?;
        let mut out = File::options().write(true).open(&path)?;
        io::copy(content, &mut out)?;
        out.sync_all()
    };
    let read = read_archive(archive, begin, take);
    match no_room {
        Some((needed, free)) => Err(RestoreError::NoRoom {
            path: folder.to_owned(),
            needed,
            free,
        }),
        None => Ok(read?),
    }
}

/// Finishes an interrupted restore, or deletes one that is incomplete. The caller holds the lock of the folder.
pub(crate) fn finish(data: &Path) -> io::Result<()> {
    let (ready, placing) = (data.join(READY), data.join(PLACING));
    if ready.exists() {
        if let Ok(aside) = std::fs::read_to_string(ready.join(ASIDE)) {
            move_aside(data, &data.join(aside))?;
            std::fs::remove_file(ready.join(ASIDE))?;
        }
        std::fs::rename(&ready, &placing)?;
        sync(data)?;
    }
    if placing.exists() {
        for file in FILES {
            match std::fs::rename(placing.join(file), data.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        sync(data)?;
        std::fs::remove_dir_all(&placing)?;
        tracing::info!(folder = %data.display(), "restored a backup");
    }
    let unfinished = data.join(IN_PROGRESS);
    if unfinished.exists() {
        std::fs::remove_dir_all(unfinished)?;
    }
    Ok(())
}

fn move_aside(data: &Path, aside: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(aside)?;
    for name in old_files(data)? {
        std::fs::rename(data.join(&name), aside.join(&name))?;
    }
    sync(aside)?;
    sync(data)
}

/// Returns the files of series and state, including their journals.
fn old_files(data: &Path) -> io::Result<impl Iterator<Item = String>> {
    let names: Vec<String> = std::fs::read_dir(data)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_store_file(name))
        .collect();
    Ok(names.into_iter())
}

fn is_store_file(name: &str) -> bool {
    let stem = ["-wal", "-shm", "-journal"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    FILES.contains(&stem) || (stem.starts_with("wal-") && stem.ends_with(".db"))
}

fn free_name(data: &Path) -> String {
    let names = (1_u32..).map(|n| format!("before-restore-{n}"));
    let free = names.into_iter().find(|name| !data.join(name).exists());
    free.expect("no folder holds four billion folders")
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(name), text).unwrap();
    }

    fn text(path: PathBuf) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Returns a folder with a restore that is ready for its second step.
    fn ready() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        for name in ["lockstep.db", "lockstep.db-wal", "state.db", "wal-000007.db"] {
            write(data, name, "old");
        }
        write(data, "admin.token", "kept");
        for file in FILES {
            write(&data.join(READY), file, "new");
        }
        write(&data.join(READY), ASIDE, "before-restore-1");
        folder
    }

    fn assert_placed(data: &Path) {
        for file in FILES {
            assert_eq!(text(data.join(file)), "new");
            assert_eq!(text(data.join("before-restore-1").join(file)), "old");
        }
        for name in ["lockstep.db-wal", "wal-000007.db"] {
            assert_eq!(text(data.join("before-restore-1").join(name)), "old", "{name}");
            assert!(!data.join(name).exists(), "{name}");
        }
        assert_eq!(text(data.join("admin.token")), "kept");
        assert!(!data.join(READY).exists() && !data.join(PLACING).exists());
    }

    #[test]
    fn a_restore_interrupted_anywhere_is_finished() {
        let whole = ready();
        finish(whole.path()).unwrap();
        assert_placed(whole.path());

        let half_aside = ready();
        let data = half_aside.path();
        std::fs::create_dir(data.join("before-restore-1")).unwrap();
        std::fs::rename(
            data.join("lockstep.db"),
            data.join("before-restore-1/lockstep.db"),
        )
        .unwrap();
        finish(data).unwrap();
        assert_placed(data);

        let half_placed = ready();
        let data = half_placed.path();
        move_aside(data, &data.join("before-restore-1")).unwrap();
        std::fs::remove_file(data.join(READY).join(ASIDE)).unwrap();
        std::fs::rename(data.join(READY), data.join(PLACING)).unwrap();
        std::fs::rename(data.join(PLACING).join("lockstep.db"), data.join("lockstep.db")).unwrap();
        finish(data).unwrap();
        assert_placed(data);
    }

    #[test]
    fn what_was_not_whole_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "state.db", "old");
        write(&folder.path().join(IN_PROGRESS), "state.db", "half");
        finish(folder.path()).unwrap();
        assert_eq!(text(folder.path().join("state.db")), "old");
        assert!(!folder.path().join(IN_PROGRESS).exists());
    }
}
