//! The folder of one attempt on one node. [`files`](crate::files) draws what lies in it.
//!
//! The folder is a contract between versions. A shim runs the version that started it to the end of its training, while the
//! agent is upgraded beside it, so a new agent must read what an old shim writes, and an old shim what a new agent writes:
//! names of files and their meaning stay; JSON gains fields with defaults and loses none; of a file of lines, what is not
//! understood is passed over; a file that is not there means what its absence meant before. [`FORMAT`] counts the changes;
//! folders of each, as they were written, lie in the agent's `testdata/folder` and are adopted by a test.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use domain::ident::{AttemptNo, RunId};
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{FileName, LOCK, PROBE, WATCH};

/// The version of the folder that this program writes: 1 had no `owner.json`.
pub const FORMAT: u32 = 2;

/// One attempt's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder of an attempt below the agent's data folder; may not exist.
    #[must_use]
    pub fn of(data_dir: &Path, run: &RunId, attempt: AttemptNo) -> Self {
        Self {
            path: data_dir.join("runs").join(format!("{run}.{attempt}")),
        }
    }

    /// A folder given by its path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// All attempts that have a folder, in no order.
    ///
    /// # Errors
    /// When the folder of runs cannot be listed.
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

    /// Makes it, for the agent's user alone.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(&self) -> io::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.file(PROBE))
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names the attempt on this machine: several agents of one machine, as in a simulation, have the same run and attempt in
    /// folders of their own.
    #[must_use]
    pub fn unique_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let number = crc32c::crc32c(self.path.as_os_str().as_encoded_bytes());
        format!("lockstep-{name}-{number:08x}")
    }

    /// Writes a file that only the agent's user reads, whole or not at all.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write_private(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        let beside = beside(&self.file(name));
        // Left by a crash, perhaps with other rights.
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

    /// A file in it.
    #[must_use]
    pub fn file(&self, name: FileName) -> PathBuf {
        self.path.join(name.as_str())
    }

    /// The socket of a rank's own server.
    #[must_use]
    pub fn rank_socket(&self, rank: u32) -> PathBuf {
        self.path.join(format!("rank-{rank}.sock"))
    }

    /// The mid-step page of a rank.
    #[must_use]
    pub fn page(&self, rank: u32) -> PathBuf {
        self.path.join(format!("page-{rank}"))
    }

    /// The file in which a rank names the members of its process groups.
    #[must_use]
    pub fn rank_groups(&self, rank: u32) -> PathBuf {
        self.path.join(format!("rank-{rank}.groups"))
    }

    /// Writes a file whole or not at all.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        write_whole(&self.file(name), bytes)
    }

    /// Writes a file as JSON, whole or not at all.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write_json(&self, name: FileName, content: &impl Serialize) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(content)?)
    }

    /// Removes a file; one that is not there is as good as removed.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove(&self, name: FileName) -> io::Result<()> {
        match std::fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads a file of it as JSON.
    ///
    /// # Errors
    /// When it is not there or is not that.
    pub fn read<T: DeserializeOwned>(&self, name: FileName) -> io::Result<T> {
        Ok(serde_json::from_slice(&std::fs::read(self.file(name))?)?)
    }

    /// Whether a file is there.
    #[must_use]
    pub fn has(&self, name: FileName) -> bool {
        self.file(name).exists()
    }

    /// Whether it is a command's that is only watched.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.has(WATCH)
    }

    /// Takes the lock that only a living shim holds; `None` when one lives. The lock ends with the returned file, even when
    /// its process is killed.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.file(LOCK))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a shim lives in it.
    #[must_use]
    pub fn shim_lives(&self) -> bool {
        self.has(LOCK) && matches!(self.lock(), Ok(None))
    }
}

/// Writes a file whole or not at all, wherever it lies.
///
/// # Errors
/// When the file system refuses.
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
