//! What this node knows of the files of one run, for all of its attempts, in the agent's data folder:
//!
//! ```text
//! DATA/proofs/RUN/    0700
//!   files.json        the files that its saves wrote (proofs)
//!   first_start.json  what was in its checkpoint folder before its ranks were first started here (first_start)
//! ```
//! Attempts come and go, and so do their folders; this stays until there are too many runs. Without it everything of the run is kept.

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

/// Runs whose records a node keeps. Of more, those that saved longest ago are dropped, so their checkpoints are kept.
const RUNS_MAX: usize = 1_000;
const FILES: &str = "files.json";
const FIRST_START: &str = "first_start.json";

/// Where a run's records lie.
#[derive(Debug, Clone)]
pub(crate) struct RecordsFolder {
    run: RunId,
    path: PathBuf,
}

/// The records of one run, while one look or one removal uses them.
#[derive(Debug)]
pub(super) struct Records {
    folder: RecordsFolder,
    pub(super) proofs: Proofs,
    pub(super) earlier: Option<EarlierFiles>,
}

/// Held while the records of a run are used: two attempts of it may be looked after at once.
#[derive(Debug, Clone)]
pub(super) struct RecordsLock(Arc<Mutex<()>>);

impl RecordsFolder {
    /// Of the run of an attempt.
    pub(crate) fn of(run: &RunId, attempt: &Folder) -> Self {
        let data_dir = attempt.path().ancestors().nth(2).unwrap_or(Path::new("/"));
        Self {
            run: run.clone(),
            path: data_dir.join("proofs").join(run.as_str()),
        }
    }

    /// Whether what was there before the first start is noted.
    pub(crate) fn has_first_start(&self) -> bool {
        self.path.join(FIRST_START).exists()
    }

    /// Notes what is in the checkpoint folder, before the ranks are first started here.
    pub(super) fn note_first_start(&self, list: &FirstStart) -> io::Result<()> {
        self.write(FIRST_START, &serde_json::to_vec(list)?)
    }

    /// Held while the records are used. Each run has its own: a dead file server of one must not hold up the others.
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
    /// Does something while no one else uses the records.
    pub(super) fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let _held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }
}

impl Records {
    /// Reads them; what is not there proves nothing.
    pub(super) fn open(place: &RecordsFolder) -> Self {
        let list = std::fs::read(place.path.join(FIRST_START)).ok();
        let list: Option<FirstStart> = list.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            proofs: Proofs::load(&place.path.join(FILES)),
            earlier: list.map(FirstStart::earlier),
            folder: place.clone(),
        }
    }

    /// Takes what the ranks of an attempt have noted of their saves, and stores it.
    pub(super) fn take_saves(&mut self, saves: &Path) {
        let taken = TakenSaves::take(saves, &mut self.proofs);
        if self.store() {
            taken.done();
        }
    }

    /// Stores what changed. Relocks false when the disk is full or fails; what is not stored is not removed later.
    pub(super) fn store(&mut self) -> bool {
        let Some(bytes) = self.proofs.take_changes() else {
            return true;
        };
        let written = self.folder.write(FILES, &bytes);
        if let Err(error) = &written {
            tracing::warn!(run = %self.folder.run, %error, "the files that the run wrote cannot be noted; is the disk full?");
        }
        written.is_ok()
    }

    /// The run.
    pub(super) fn run(&self) -> &str {
        self.folder.run.as_str()
    }

    /// Whether this run provably wrote what lies at a path now. `sidecar` is that of the checkpoint's folder.
    pub(super) fn prove(&self, path: &Path, found: &Identity, sidecar: Option<&Proof>) -> bool {
        self.proofs.proves(path, found)
            || sidecar.is_some_and(|sidecar| sidecar.proves(path, found))
            || self
                .earlier
                .as_ref()
                .is_some_and(|earlier| earlier.declares(path, found))
    }
}

/// Lists the run's checkpoint folder, before its ranks are first started here. May take as long as the file server does.
pub(crate) fn list_before_start(folder: &Path, start: &Start) -> FolderListing {
    FolderListing(FirstStart::list(folder, start))
}

/// What [`list_before_start`] found.
#[derive(Debug)]
pub(crate) struct FolderListing(FirstStart);

impl FolderListing {
    /// Of a folder that did not answer in time.
    pub(crate) fn none(folder: &Path, start: &Start) -> Self {
        Self(FirstStart::unlisted(folder, start))
    }

    /// Keeps it for all attempts of the run.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub(crate) fn note(&self, place: &RecordsFolder) -> io::Result<()> {
        place.note_first_start(&self.0)
    }
}

/// Makes room for one more run.
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
        for n in 0..RUNS_MAX {
            place(n).write(FILES, b"[]").unwrap();
        }
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
