//! The records of the files of one run on this node, for all of its attempts, in the agent's data folder:
//!
//! ```text
//! DATA/proofs/RUN/    0700
//!   files.json        the files that its saves wrote (proofs)
//!   first_start.json  the contents of its checkpoint folder before its ranks first started on this node (first_start)
//! ```
//! Attempts and their folders are removed, but these records stay until there are too many runs. Without them all files of the run are
//! kept.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use domain::ident::RunId;
use domain::run::state::Start;
use shim::{Folder, write_whole};

use super::first_start::{EarlierFiles, FirstStart};
use super::identity::Identity;
use super::proofs::{Proofs, TakenSaves};
use super::sidecar::Proof;

/// Maximum number of runs with records on a node. Beyond this, the runs that saved longest ago lose their records, so their checkpoints are
/// kept.
const RUNS_MAX: usize = 1_000;
const FILES: &str = "files.json";
const FIRST_START: &str = "first_start.json";

/// The location of a run's records.
#[derive(Debug, Clone)]
pub(crate) struct RecordsFolder {
    run: RunId,
    path: PathBuf,
}

/// The records of one run, open during one scan or one removal.
#[derive(Debug)]
pub(super) struct Records {
    folder: RecordsFolder,
    pub(super) proofs: Proofs,
    pub(super) earlier: Option<EarlierFiles>,
}

/// The lock for the records of a run. Two attempts of the run may use them at the same time.
#[derive(Debug, Clone)]
pub(super) struct RecordsLock(Arc<Mutex<()>>);

impl RecordsFolder {
    /// Returns the location for the run of an attempt.
    pub(crate) fn of(run: &RunId, attempt: &Folder) -> Self {
        let data_dir = attempt.path().ancestors().nth(2).unwrap_or(Path::new("/"));
        Self {
            run: run.clone(),
            path: data_dir.join("proofs").join(run.as_str()),
        }
    }

    /// Returns true if the contents before the first start are recorded.
    pub(crate) fn has_first_start(&self) -> bool {
        self.path.join(FIRST_START).exists()
    }

    /// Records the contents of the checkpoint folder, before the ranks first start on this node.
    pub(super) fn note_first_start(&self, list: &FirstStart) -> io::Result<()> {
        self.write(FIRST_START, &serde_json::to_vec(list)?)
    }

    /// Returns the lock for the records. Each run has its own lock: a dead file server of one run must not block the others.
    pub(super) fn lock(&self) -> RecordsLock {
        static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|path, lock| *path == self.path || Arc::strong_count(lock) > 1);
        RecordsLock(locks.entry(self.path.clone()).or_default().clone())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.path.is_dir() {
            bound(self.path.parent().unwrap_or(&self.path));
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.path)?;
        }
        write_whole(&self.path.join(name), bytes)
    }
}

impl RecordsLock {
    /// Runs `work` while no other task uses the records.
    pub(super) fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let _held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }
}

impl Records {
    /// Reads the records. A missing record proves nothing.
    pub(super) fn open(place: &RecordsFolder) -> Self {
        let list = std::fs::read(place.path.join(FIRST_START)).ok();
        let list: Option<FirstStart> = list.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            proofs: Proofs::load(&place.path.join(FILES)),
            earlier: list.map(FirstStart::earlier),
            folder: place.clone(),
        }
    }

    /// Takes what the ranks of an attempt have recorded about their saves, and stores it.
    pub(super) fn take_saves(&mut self, saves: &Path) {
        let taken = TakenSaves::take(saves, &mut self.proofs);
        if self.store() {
            taken.done();
        }
    }

    /// Stores the changes. Returns false if the disk is full or fails; files without a stored proof are not removed later.
    pub(super) fn store(&mut self) -> bool {
        let Some(bytes) = self.proofs.take_changes() else {
            return true;
        };
        let written = self.folder.write(FILES, &bytes);
        if let Err(error) = &written {
            tracing::warn!(run = %self.folder.run, %error, "the list of files that the run wrote cannot be stored; is the disk full?");
        }
        written.is_ok()
    }

    /// The run.
    pub(super) fn run(&self) -> &str {
        self.folder.run.as_str()
    }

    /// Returns true if this run provably wrote the current file at a path. `sidecar` is that of the checkpoint's folder.
    pub(super) fn prove(&self, path: &Path, found: &Identity, sidecar: Option<&Proof>) -> bool {
        self.proofs.proves(path, found)
            || sidecar.is_some_and(|sidecar| sidecar.proves(path, found))
            || self
                .earlier
                .as_ref()
                .is_some_and(|earlier| earlier.declares(path, found))
    }
}

/// Lists the run's checkpoint folder, before its ranks first start on this node. May block as long as the file server does not answer.
pub(crate) fn list_before_start(folder: &Path, start: &Start) -> FolderListing {
    FolderListing(FirstStart::list(folder, start))
}

/// The result of [`list_before_start`].
#[derive(Debug)]
pub(crate) struct FolderListing(FirstStart);

impl FolderListing {
    /// Returns the listing for a folder that did not answer in time.
    pub(crate) fn none(folder: &Path, start: &Start) -> Self {
        Self(FirstStart::unlisted(folder, start))
    }

    /// Stores the listing for all attempts of the run.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(crate) fn note(&self, place: &RecordsFolder) -> io::Result<()> {
        place.note_first_start(&self.0)
    }
}

/// Removes the records of the oldest runs, so that there is space for one more run.
fn bound(all: &Path) {
    let Ok(entries) = std::fs::read_dir(all) else {
        return;
    };
    let changed = |path: &Path| {
        let meta = std::fs::metadata(path.join(FILES)).or_else(|_| std::fs::metadata(path));
        meta.and_then(|meta| meta.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let mut runs: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .map(|entry| (changed(&entry.path()), entry.path()))
        .collect();
    runs.sort();
    let over = (runs.len() + 1).saturating_sub(RUNS_MAX);
    for (_, path) in runs.into_iter().take(over) {
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(path = %path.display(), %error, "the records of an old run cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn of_too_many_runs_those_that_saved_longest_ago_are_dropped() {
        let data = tempfile::tempdir().unwrap();
        let attempt = Folder::at(data.path().join("runs/r.1"));
        let place = |n: usize| RecordsFolder::of(&RunId::new(format!("run-{n}")).unwrap(), &attempt);
        place(0).write(FILES, b"[]").unwrap();
        // Files of the test, because each write waits for the disk.
        for n in 1..RUNS_MAX - 1 {
            let folder = data.path().join(format!("proofs/run-{n}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join(FILES), b"[]").unwrap();
        }
        place(RUNS_MAX - 1).write(FILES, b"[]").unwrap();
        let aged = data.path().join("proofs/run-7").join(FILES);
        let file = std::fs::File::options().write(true).open(aged).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        place(RUNS_MAX).write(FILES, b"[]").unwrap();
        assert_eq!(
            std::fs::read_dir(data.path().join("proofs")).unwrap().count(),
            RUNS_MAX
        );
        assert!(!data.path().join("proofs/run-7").exists());
    }
}
