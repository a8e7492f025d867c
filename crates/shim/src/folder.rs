//! The folder of one attempt on one node. [`files`](crate::files) draws its contents.
//!
//! The folder is a contract between versions. A shim keeps the version that started it until its training ends, while the agent is upgraded
//! beside it. So a new agent must read what an old shim writes, and an old shim must read what a new agent writes.
//!
//! - File names and their meaning do not change.
//! - JSON gets new fields with defaults and loses none.
//! - A reader skips the lines of a file that it does not understand.
//! - An absent file keeps the meaning that its absence had before.
//!
//! [`FORMAT`] counts the changes. The agent's `testdata/folder` contains a folder of each format as it was written, and a test adopts them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use domain::ident::{AttemptNo, RunId};
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{FileName, LOCK, PROBE, WATCH};

/// The version of the folder that this program writes. Version 1 had no `owner.json`.
pub const FORMAT: u32 = 2;

/// One attempt's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Returns the folder of an attempt below the agent's data folder. The folder may not exist.
    #[must_use]
    pub fn of(data_dir: &Path, run: &RunId, attempt: AttemptNo) -> Self {
        Self {
            path: data_dir.join("runs").join(format!("{run}.{attempt}")),
        }
    }

    /// Returns the folder at this path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns all attempts that have a folder, in no particular order.
    ///
    /// # Errors
    /// If the folder of runs cannot be listed.
    pub fn all(data_dir: &Path) -> io::Result<Vec<(RunId, AttemptNo, Self)>> {
        let entries = match std::fs::read_dir(data_dir.join("runs")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry?;
            if let Some((run, attempt)) = entry.file_name().to_str().and_then(parse_name) {
                all.push((run, attempt, Self { path: entry.path() }));
            }
        }
        Ok(all)
    }

    /// Creates the folder, accessible only to the agent's user.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create(&self) -> io::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.file(PROBE))
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a name of the attempt that is unique on this machine. Several agents on one machine, as in a simulation, can have the same
    /// run and attempt, each in its own folder.
    #[must_use]
    pub fn unique_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let number = crc32c::crc32c(self.path.as_os_str().as_encoded_bytes());
        format!("lockstep-{name}-{number:08x}")
    }

    /// Writes a file that only the agent's user can read, completely or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_private(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        let beside = beside(&self.file(name));
        // A crash may have left this file, perhaps with other permissions.
        let _none = std::fs::remove_file(&beside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(beside, self.file(name))
    }

    /// Returns the path of a file in the folder.
    #[must_use]
    pub fn file(&self, name: FileName) -> PathBuf {
        self.path.join(name.as_str())
    }

    /// Returns the path of the socket of a rank's worker server.
    #[must_use]
    pub fn rank_socket(&self, rank: u32) -> PathBuf {
        self.path.join(format!("rank-{rank}.sock"))
    }

    /// Returns the path of a rank's mid-step page.
    #[must_use]
    pub fn page(&self, rank: u32) -> PathBuf {
        self.path.join(format!("page-{rank}"))
    }

    /// Returns the path of the file in which a rank lists the members of its process groups.
    #[must_use]
    pub fn rank_groups(&self, rank: u32) -> PathBuf {
        self.path.join(format!("rank-{rank}.groups"))
    }

    /// Writes a file completely or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        write_whole(&self.file(name), bytes)
    }

    /// Writes a file as JSON, completely or not at all.
    ///
    /// # Errors
    /// If the content cannot be encoded or the file cannot be written.
    pub fn write_json(&self, name: FileName, content: &impl Serialize) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(content)?)
    }

    /// Removes a file. A file that does not exist is not an error.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(&self, name: FileName) -> io::Result<()> {
        remove_if_exists(&self.file(name))
    }

    /// Reads a file of the folder as JSON.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid JSON of this type.
    pub fn read<T: DeserializeOwned>(&self, name: FileName) -> io::Result<T> {
        Ok(serde_json::from_slice(&std::fs::read(self.file(name))?)?)
    }

    /// Returns true if the file exists.
    #[must_use]
    pub fn has(&self, name: FileName) -> bool {
        self.file(name).exists()
    }

    /// Returns true if this is the folder of a watched command (`lockstep exec`).
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.has(WATCH)
    }

    /// Takes the lock that only a running shim holds. Returns `None` if another process holds it. The lock ends when the returned file is
    /// closed, also when the process is killed.
    ///
    /// # Errors
    /// If the lock file cannot be opened or locked.
    pub fn lock(&self) -> io::Result<Option<File>> {
        lock_file(&self.file(LOCK))
    }

    /// Returns true if a shim runs in this folder.
    #[must_use]
    pub fn shim_lives(&self) -> bool {
        self.has(LOCK) && matches!(self.lock(), Ok(None))
    }
}

/// Removes a file at any path. A file that does not exist is not an error.
///
/// # Errors
/// If the file cannot be removed.
pub fn remove_if_exists(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a file if it does not exist, and locks it. Returns `None` if another process holds the lock.
///
/// # Errors
/// If the file cannot be opened or locked.
pub fn lock_file(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes a file at any path, completely or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside.into()
}

fn parse_name(name: &str) -> Option<(RunId, AttemptNo)> {
    let (run, attempt) = name.rsplit_once('.')?;
    Some((RunId::new(run).ok()?, AttemptNo(attempt.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_folder_is_found_by_run_and_attempt_and_locked_once() {
        let data = tempfile::tempdir().unwrap();
        let (run, attempt) = (RunId::new("a.b-1").unwrap(), AttemptNo(12));
        let folder = Folder::of(data.path(), &run, attempt);
        folder.create().unwrap();
        std::fs::create_dir(data.path().join("runs/other")).unwrap();
        assert_eq!(
            Folder::all(data.path()).unwrap(),
            [(run, attempt, folder.clone())]
        );
        assert!(!folder.shim_lives());
        let held = folder.lock().unwrap();
        assert!(held.is_some() && folder.shim_lives());
        drop(held);
        assert!(!folder.shim_lives());
    }
}
