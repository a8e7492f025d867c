//! Removing checkpoints: only files that this run provably wrote, one at a time, and nothing else with them.
//!
//! ```text
//! order ─▶ for each: remain whole now? ─▶ below the folder, no link on the way, not in use, quiet? ─▶ every file in it proven?
//!                        │ no: nothing more is removed     │ no: kept, and says why                       │ no: kept, and says why
//!                                                                                                         ▼
//!                                     each file: still the same inode, unchanged? ─▶ unlink ─▶ each folder: empty? ─▶ rmdir
//! ```
//! All of it goes by open folders, not by paths: whoever renames a folder or puts a link in its place changes nothing. A file that
//! somebody adds meanwhile stays, and its folder with it. Linux cannot unlink by inode: between the last look at a file and its removal lie
//! microseconds in which a rename could put another file under the name.
//!
//! What a crash leaves is an incomplete checkpoint whose files are still proven: the next order removes it. `.metadata` goes first.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use domain::run::checkpoint::{Remain, RemovalOrder, UNPROVEN_MAX};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};

use super::identity::{Identity, Kind};
use super::look::{DEPTH_MAX, QUIET, look_at, names_below};
use super::records::Records;
use super::sidecar;

/// Files of one checkpoint that are removed: those of a save of ten thousand ranks.
const FILES_MAX: usize = 100_000;
/// Folders of one checkpoint: each is held open meanwhile.
const FOLDERS_MAX: usize = 256;

/// Why something was not removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemovalError {
    /// The one that is to remain is not whole.
    #[error("nothing is removed: the checkpoint that is to remain, {path}, {why}")]
    Remain {
        /// Which one.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The order's path is none of ours.
    #[error("{0} stays: it is not a path below the run's checkpoint folder")]
    Outside(String),
    /// A link could lead anywhere.
    #[error("{0} stays: a symbolic link is on the way to it")]
    Link(String),
    /// Another run, or this one.
    #[error("{0} stays: a run goes on from it")]
    InUse(String),
    /// It would take along what has to remain.
    #[error("{0} stays: the checkpoint that is to remain lies in it")]
    Holds(String),
    /// It may be in writing.
    #[error("{0} stays: it is incomplete and changed a moment ago")]
    Writing(String),
    /// Somebody else may have written it.
    #[error("{path} stays: not proven to be this run's: {}", files.join(", "))]
    NotProven {
        /// Which one.
        path: String,
        /// Some of the files without proof.
        files: Vec<String>,
    },
    /// More than this node looks at before it removes.
    #[error("{0} stays: it holds more than {FILES_MAX} files or {FOLDERS_MAX} folders")]
    TooLarge(String),
    /// Somebody wrote to it meanwhile.
    #[error("{path} is not removed any further: {name} changed meanwhile")]
    Changed {
        /// Which one.
        path: String,
        /// What changed in it.
        name: String,
    },
    /// Somebody put a file into it meanwhile.
    #[error("what this run wrote of {0} is removed; something was added meanwhile, and stays")]
    Added(String),
    /// The file system.
    #[error("{path} cannot be removed: {source}")]
    Io {
        /// What.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Carries an order out. Returns the first thing that kept something from being removed.
pub(super) fn carry_out(
    order: &RemovalOrder,
    in_use: &BTreeSet<String>,
    node: &str,
    records: &mut Records,
) -> Option<RemovalError> {
    let mut first = None;
    for path in &order.remove {
        match remove(order, path, in_use, node, records) {
            Ok(()) => {}
            Err(error @ RemovalError::Remain { .. }) => return Some(error),
            Err(error) => first = first.or(Some(error)),
        }
    }
    first
}

fn remove(
    order: &RemovalOrder,
    path: &str,
    in_use: &BTreeSet<String>,
    node: &str,
    records: &mut Records,
) -> Result<(), RemovalError> {
    check_remaining(&order.remain, node)?;
    let names = check_path(order, path, in_use)?;
    let removal = Removal { path, records };
    let Some((above, name)) = removal.open_above(Path::new(&order.folder), &names)? else {
        // Another node was faster.
        return Ok(());
    };
    let Some(found) = removal.look(&above, name)? else {
        return Ok(());
    };
    if found.kind == Kind::Link {
        return Err(RemovalError::Link(path.to_owned()));
    }
    check_quiet(path, node)?;
    removal.remove(&above, name, &found)
}

// === what is checked before ===

/// Now, from the disk, whatever was known of it.
fn check_remaining(remain: &Remain, node: &str) -> Result<(), RemovalError> {
    let not = |why: &str| {
        Err(RemovalError::Remain {
            path: remain.path.clone(),
            why: why.to_owned(),
        })
    };
    let Some(now) = look_at(Path::new(&remain.path), node) else {
        return not("is not there");
    };
    let Some(sight) = now.seen.get(node) else {
        return not("cannot be seen");
    };
    if now.uncertain {
        return not("cannot be checked");
    }
    if remain.complete && !sight.complete {
        return not(&format!(
            "is not whole: {}",
            sight.problem.as_deref().unwrap_or("it changed")
        ));
    }
    if !remain.complete && sight.mark != remain.mark {
        return not("has changed on this node");
    }
    Ok(())
}

/// The names below the folder that lead to it.
fn check_path<'p>(
    order: &RemovalOrder,
    path: &'p str,
    in_use: &BTreeSet<String>,
) -> Result<Vec<&'p OsStr>, RemovalError> {
    let folder = Path::new(&order.folder);
    let outside = || RemovalError::Outside(path.to_owned());
    let names = names_below(Path::new(path), folder).ok_or_else(outside)?;
    // Compared as real paths too: there may be several ways to one folder.
    let mut there = std::fs::canonicalize(folder).map_err(|_| outside())?;
    there.extend(&names);
    let holds = |other: &str| {
        let other_real = std::fs::canonicalize(other).unwrap_or_else(|_| PathBuf::from(other));
        other_real.starts_with(&there) || Path::new(other).starts_with(path)
    };
    if holds(&order.remain.path) {
        return Err(RemovalError::Holds(path.to_owned()));
    }
    if in_use.iter().any(|used| holds(used)) {
        return Err(RemovalError::InUse(path.to_owned()));
    }
    Ok(names)
}

fn check_quiet(path: &str, node: &str) -> Result<(), RemovalError> {
    let Some(now) = look_at(Path::new(path), node) else {
        return Ok(());
    };
    let changed = now.changed_ms.and_then(|ms| u64::try_from(ms).ok());
    let changed = changed.map(|ms| SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ms));
    let lately = changed.is_none_or(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < QUIET));
    if !now.complete && lately {
        Err(RemovalError::Writing(path.to_owned()))
    } else {
        Ok(())
    }
}

// === the removal of one checkpoint ===

struct Removal<'a> {
    /// As the order names it.
    path: &'a str,
    records: &'a mut Records,
}

/// A folder of a checkpoint, held open, with what was in it when it was looked at.
struct Tree {
    folder: OwnedFd,
    path: PathBuf,
    files: Vec<(OsString, Identity)>,
    folders: Vec<(OsString, Identity, Self)>,
}

/// What a look at a whole tree has found so far.
#[derive(Default)]
struct Seen {
    files: usize,
    folders: usize,
    unproven: Vec<String>,
}

impl Removal<'_> {
    /// Opens the folder that the checkpoint lies in; `None` when it is gone. The run's folder itself may be a link, what is below may not.
    fn open_above<'n>(
        &self,
        folder: &Path,
        names: &[&'n OsStr],
    ) -> Result<Option<(OwnedFd, &'n OsStr)>, RemovalError> {
        let Some((last, between)) = names.split_last() else {
            return Err(RemovalError::Outside(self.path.to_owned()));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut above = match rustix::fs::openat(CWD, folder, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|error| self.io(error))?,
        };
        for name in between {
            above = match rustix::fs::openat(&above, *name, flags | OFlags::NOFOLLOW, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                    return Err(RemovalError::Link(self.path.to_owned()));
                }
                opened => opened.map_err(|error| self.io(error))?,
            };
        }
        Ok(Some((above, last)))
    }

    /// `None` for what is not there.
    fn look(&self, folder: impl AsFd, name: &OsStr) -> Result<Option<Identity>, RemovalError> {
        match Identity::at(folder, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(|error| self.io(error)),
        }
    }

    fn remove(mut self, above: &OwnedFd, name: &OsStr, found: &Identity) -> Result<(), RemovalError> {
        let path = PathBuf::from(self.path);
        if found.kind == Kind::Folder {
            let sidecar = sidecar::Proof::in_folder(&path, self.records.run());
            let mut seen = Seen::default();
            let tree = self.read(above, name, found, &path, 0, sidecar.as_ref(), &mut seen)?;
            if seen.unproven.is_empty() && seen.files == 0 && !self.is_declared(&path, found) {
                seen.unproven.push("it is empty".into());
            }
            self.proven(seen.unproven)?;
            tracing::info!(path = self.path, "a checkpoint of the run is removed");
            return self.remove_tree(above, name, found, &tree);
        }
        let beside = sidecar::Proof::beside(&path, self.records.run());
        if !self.records.prove(&path, found, beside.as_ref()) {
            return self.proven(vec!["the file itself".into()]);
        }
        tracing::info!(path = self.path, "a checkpoint of the run is removed");
        self.unlink(above, name, found, &path)?;
        let mut name = name.to_owned();
        name.push(sidecar::ENDING);
        let path = path.with_file_name(&name);
        match self.look(above, &name)? {
            Some(found) if self.records.prove(&path, &found, beside.as_ref()) => {
                self.unlink(above, &name, &found, &path)
            }
            _ => Ok(()),
        }
    }

    fn proven(&self, files: Vec<String>) -> Result<(), RemovalError> {
        if files.is_empty() {
            return Ok(());
        }
        Err(RemovalError::NotProven {
            path: self.path.to_owned(),
            files,
        })
    }

    /// Looks at a whole folder, and asks for the proof of all that is in it.
    #[expect(
        clippy::too_many_arguments,
        reason = "the walk's place and its result; a struct of them would be used here alone"
    )]
    fn read(
        &self,
        above: impl AsFd,
        name: &OsStr,
        found: &Identity,
        path: &Path,
        depth: usize,
        sidecar: Option<&sidecar::Proof>,
        seen: &mut Seen,
    ) -> Result<Tree, RemovalError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(above, name, flags, Mode::empty()).map_err(|error| self.io(error))?;
        let mut tree = Tree {
            path: path.to_owned(),
            files: Vec::new(),
            folders: Vec::new(),
            folder,
        };
        let opened = Identity::at(&tree.folder, OsStr::new(".")).map_err(|error| self.io(error))?;
        if !opened.is_same_folder(found) {
            return Err(self.changed(name));
        }
        for entry in Dir::read_from(&tree.folder).map_err(|error| self.io(error))? {
            let entry = entry.map_err(|error| self.io(error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = path.join(name);
            let Some(inside) = self.look(&tree.folder, name)? else {
                return Err(self.changed(name));
            };
            if inside.kind == Kind::Folder {
                seen.folders += 1;
                self.bounded(seen)?;
                let files_before = seen.files;
                // Another file system is mounted there, or it lies deeper than checkpoints do.
                if inside.device != found.device || depth >= DEPTH_MAX {
                    self.unproven(&path, seen);
                    continue;
                }
                let inner = self.read(&tree.folder, name, &inside, &path, depth + 1, sidecar, seen)?;
                let is_empty = seen.files == files_before && inner.folders.is_empty();
                if is_empty && !self.is_declared(&path, &inside) {
                    self.unproven(&path, seen);
                }
                tree.folders.push((name.to_owned(), inside, inner));
            } else {
                seen.files += 1;
                self.bounded(seen)?;
                if !self.records.prove(&path, &inside, sidecar) {
                    self.unproven(&path, seen);
                }
                tree.files.push((name.to_owned(), inside));
            }
        }
        // Without it the checkpoint is incomplete for everyone who looks.
        tree.files.sort_by_key(|(name, _)| name != ".metadata");
        Ok(tree)
    }

    /// The empty folder of a save that did not get further, where the run's spec declares it to be the run's.
    fn is_declared(&self, path: &Path, found: &Identity) -> bool {
        let earlier = self.records.earlier.as_ref();
        earlier.is_some_and(|earlier| earlier.declares(path, found))
    }

    fn bounded(&self, seen: &Seen) -> Result<(), RemovalError> {
        if seen.files > FILES_MAX || seen.folders > FOLDERS_MAX {
            return Err(RemovalError::TooLarge(self.path.to_owned()));
        }
        Ok(())
    }

    fn unproven(&self, path: &Path, seen: &mut Seen) {
        if seen.unproven.len() < UNPROVEN_MAX {
            let below = path.strip_prefix(self.path).unwrap_or(path);
            seen.unproven.push(below.display().to_string());
        }
    }

    fn remove_tree(
        &mut self,
        above: impl AsFd,
        name: &OsStr,
        found: &Identity,
        tree: &Tree,
    ) -> Result<(), RemovalError> {
        for (name, found) in &tree.files {
            self.unlink(&tree.folder, name, found, &tree.path.join(name))?;
        }
        for (name, found, inner) in &tree.folders {
            self.remove_tree(&tree.folder, name, found, inner)?;
        }
        let earlier = self.records.earlier.as_ref();
        // A folder that somebody else made stays, empty.
        if earlier.is_some_and(|earlier| earlier.had(&tree.path)) {
            return Ok(());
        }
        match self.look(above.as_fd(), name)? {
            Some(now) if now.is_same_folder(found) => {}
            _ => return Err(self.changed(name)),
        }
        match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST) => {
                Err(RemovalError::Added(self.path.to_owned()))
            }
            Err(error) => Err(self.io(error)),
        }
    }

    /// Removes one name of a file, if it is still the file that was proven.
    fn unlink(
        &mut self,
        folder: impl AsFd,
        name: &OsStr,
        proven: &Identity,
        path: &Path,
    ) -> Result<(), RemovalError> {
        match self.look(folder.as_fd(), name)? {
            // Another node was faster.
            None => return Ok(()),
            Some(now) if now.is_same(proven) => {}
            Some(_) => return Err(self.changed(name)),
        }
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) => self.records.proofs.removed(path, proven),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(self.io(error)),
        }
        Ok(())
    }

    fn changed(&self, name: &OsStr) -> RemovalError {
        RemovalError::Changed {
            path: self.path.to_owned(),
            name: name.to_string_lossy().into_owned(),
        }
    }

    fn io(&self, error: impl Into<io::Error>) -> RemovalError {
        RemovalError::Io {
            path: self.path.to_owned(),
            source: error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
