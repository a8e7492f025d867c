//! Removes checkpoints: only files that this run provably wrote, one at a time, and no other files.
//!
//! ```text
//! order ─▶ for each: `remain` complete now? ─▶ below the folder, no link on the way, not in use, quiet? ─▶ every file in it proven?
//!                        │ no: nothing more is removed     │ no: kept, and reported why                   │ no: kept, and reported why
//!                                                                                                         ▼
//!                                     each file: same inode, unchanged? ─▶ unlink ─▶ each folder: empty? ─▶ rmdir
//! ```
//! A checkpoint that changed since the order is kept too: see [`RemovalOrder::marks`].
//!
//! All operations use open folders, not paths: a folder that is renamed or replaced by a link has no effect. A file that is added in the
//! meantime stays, and so does its folder. Linux cannot unlink by inode: between the last check of a file and its removal there are
//! microseconds in which a rename could put another file under the name.
//!
//! A crash leaves an incomplete checkpoint whose files are still proven; the next order removes it. `.metadata` is removed first.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use domain::run::checkpoint::{RemovalOrder, RequiredCheckpoint, UNPROVEN_MAX};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags};

use super::identity::{Identity, Kind};
use super::records::Records;
use super::scan::{DEPTH_MAX, QUIET, mark, names_below, scan_one};
use super::sidecar;

/// Maximum number of files in a checkpoint to remove: those of a save of ten thousand ranks.
const FILES_MAX: usize = 100_000;
/// Maximum number of folders in a checkpoint; each is held open during the removal.
const FOLDERS_MAX: usize = 256;

/// Why a checkpoint was not removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemovalError {
    /// The checkpoint that must remain is not complete.
    #[error("the checkpoint to keep, {path}, {why}")]
    Remain {
        /// The checkpoint that must remain.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The path in the order is not below the run's checkpoint folder.
    #[error("it is not a path below the run's checkpoint folder")]
    Outside,
    /// A symbolic link is on the way, and could lead anywhere.
    #[error("its path contains a symbolic link")]
    Link,
    /// Another run, or this one, resumes from it.
    #[error("a run resumes from it")]
    InUse,
    /// The removal would include what must remain.
    #[error("it contains the checkpoint to keep")]
    Holds,
    /// Another checkpoint may have been saved in its place.
    #[error("it has changed since the order to remove it; prune again")]
    Replaced,
    /// The declaration that the folder belongs to the run is about another folder.
    #[error("the run's checkpoint folder leads elsewhere now, or another file system is mounted in it")]
    Elsewhere,
    /// A mounted file system may contain anything, also if it is a part of the same one.
    #[error("another file system is mounted in it")]
    Mounted,
    /// It may still be in writing.
    #[error("it is incomplete and changed a moment ago")]
    Writing,
    /// The order is old, or was dropped: a person may have pinned the checkpoint since.
    #[error("the order to remove it is too old; prune again")]
    Late,
    /// Another program may have written it.
    #[error("not proven to be this run's: {}", files.join(", "))]
    NotProven {
        /// Some of the files without proof.
        files: Vec<String>,
    },
    /// It exceeds the limits of a removal.
    #[error("it contains more than {FILES_MAX} files or {FOLDERS_MAX} folders")]
    TooLarge,
    /// It was changed during the removal.
    #[error("{name} in it changed during the removal, which was stopped")]
    Changed {
        /// The name of the changed file or folder.
        name: String,
    },
    /// A file was added during the removal.
    #[error("this run's files in it were removed; files that were added in the meantime were kept")]
    Added,
    /// A file operation failed.
    #[error("a file operation failed: {0}")]
    Io(#[source] io::Error),
    /// The order was stopped at an earlier checkpoint, for this reason.
    #[error("the removal was stopped before it: {0}")]
    Stopped(String),
}

/// Executes an order as long as it is valid. Returns the paths of the checkpoints that were not removed, each with the reason.
pub(super) fn carry_out(
    order: &RemovalOrder,
    is_valid: &dyn Fn() -> bool,
    in_use: &BTreeSet<String>,
    node: &str,
    records: &mut Records,
) -> Vec<(String, RemovalError)> {
    let mut kept = Vec::new();
    let mut stopped: Option<String> = None;
    for path in &order.remove {
        let result = match &stopped {
            Some(reason) => Err(RemovalError::Stopped(reason.clone())),
            None => remove(order, path, is_valid, in_use, node, records),
        };
        let Err(error) = result else { continue };
        if matches!(error, RemovalError::Remain { .. } | RemovalError::Late) {
            stopped = Some(error.to_string());
        }
        kept.push((path.clone(), error));
    }
    kept
}

fn remove(
    order: &RemovalOrder,
    path: &str,
    is_valid: &dyn Fn() -> bool,
    in_use: &BTreeSet<String>,
    node: &str,
    records: &mut Records,
) -> Result<(), RemovalError> {
    check_remaining(&order.remain, node)?;
    let names = check_path(order, path, in_use)?;
    let Some(parent) = open_parent(Path::new(&order.folder), &names)? else {
        // Another node has already removed it.
        return Ok(());
    };
    let Some(found) = identity_of(&parent.folder, parent.name)? else {
        return Ok(());
    };
    if found.kind == Kind::Link {
        return Err(RemovalError::Link);
    }
    let mark = mark(found.inode, found.changed_ns.into());
    if order.marks.get(path).is_some_and(|ordered| *ordered != mark) {
        return Err(RemovalError::Replaced);
    }
    if let Some(earlier) = records.earlier.as_ref().filter(|earlier| earlier.applies())
        && (parent.crosses_mount || !earlier.is_listed_folder(&parent.run_folder))
    {
        return Err(RemovalError::Elsewhere);
    }
    check_quiet(path, node)?;
    // After the other checks: a file server may not have answered for hours.
    if !is_valid() {
        return Err(RemovalError::Late);
    }
    Removal { path, records }.remove(&parent.folder, parent.name, &found)
}

// === checks before the removal ===

/// Checks the checkpoint that must remain, on the disk, whatever was known before.
fn check_remaining(remain: &RequiredCheckpoint, node: &str) -> Result<(), RemovalError> {
    let not = |why: &str| {
        Err(RemovalError::Remain {
            path: remain.path.clone(),
            why: why.to_owned(),
        })
    };
    let Some(now) = scan_one(Path::new(&remain.path), node) else {
        return not("does not exist");
    };
    let Some(sight) = now.seen.get(node) else {
        return not("is not visible on this node");
    };
    if now.uncertain {
        return not("cannot be checked");
    }
    if remain.complete && !sight.complete {
        return not(&format!(
            "is incomplete: {}",
            sight.problem.as_deref().unwrap_or("it changed")
        ));
    }
    if !remain.complete && sight.mark != remain.mark {
        return not("has changed on this node");
    }
    Ok(())
}

/// Returns the names below the folder that lead to the checkpoint.
fn check_path<'p>(
    order: &RemovalOrder,
    path: &'p str,
    in_use: &BTreeSet<String>,
) -> Result<Vec<&'p OsStr>, RemovalError> {
    let folder = Path::new(&order.folder);
    let outside = || RemovalError::Outside;
    let names = names_below(Path::new(path), folder).ok_or_else(outside)?;
    // Real paths are compared too: several paths may lead to the same folder.
    let mut there = std::fs::canonicalize(folder).map_err(|_| outside())?;
    there.extend(&names);
    // A bind mount shows the same folder at another real path. A hard link to a file is another checkpoint, which stays.
    let target = Identity::of(&there).ok();
    let is_target = |other: &Path| {
        let both = target.zip(Identity::of(other).ok());
        both.is_some_and(|(target, other)| {
            (target.device, target.inode) == (other.device, other.inode)
                && (target.kind == Kind::Folder || target.links <= 1)
        })
    };
    let holds = |other: &str| {
        let other_real = std::fs::canonicalize(other).unwrap_or_else(|_| PathBuf::from(other));
        other_real.starts_with(&there)
            || Path::new(other).starts_with(path)
            || other_real.ancestors().any(&is_target)
    };
    if holds(&order.remain.path) {
        return Err(RemovalError::Holds);
    }
    if in_use.iter().any(|used| holds(used)) {
        return Err(RemovalError::InUse);
    }
    Ok(names)
}

fn check_quiet(path: &str, node: &str) -> Result<(), RemovalError> {
    let Some(now) = scan_one(Path::new(path), node) else {
        return Ok(());
    };
    let changed = now.changed_ms.and_then(|ms| u64::try_from(ms).ok());
    let changed = changed.map(|ms| SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ms));
    let changed_recently =
        changed.is_none_or(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < QUIET));
    if !now.complete && changed_recently {
        Err(RemovalError::Writing)
    } else {
        Ok(())
    }
}

// === the removal of one checkpoint ===

struct Removal<'a> {
    /// The path in the order.
    path: &'a str,
    records: &'a mut Records,
}

/// A folder of a checkpoint, held open, with its contents at the time of the check.
struct Tree {
    folder: OwnedFd,
    path: PathBuf,
    files: Vec<(OsString, Identity)>,
    folders: Vec<(OsString, Identity, Self)>,
}

/// The results of reading a tree so far.
#[derive(Default)]
struct TreeSummary {
    files: usize,
    folders: usize,
    unproven: Vec<String>,
}

impl Removal<'_> {
    fn remove(mut self, above: &OwnedFd, name: &OsStr, found: &Identity) -> Result<(), RemovalError> {
        let path = PathBuf::from(self.path);
        if found.kind == Kind::Folder {
            let sidecar = sidecar::Proof::in_folder(&path, self.records.run());
            let mut summary = TreeSummary::default();
            let tree = self.read(above, name, found, &path, 0, sidecar.as_ref(), &mut summary)?;
            if summary.unproven.is_empty() && summary.files == 0 && !self.is_declared(&path, found) {
                summary.unproven.push("it is empty".into());
            }
            proven(summary.unproven)?;
            tracing::info!(path = self.path, "a checkpoint of the run is removed");
            return self.remove_tree(above, name, found, &tree);
        }
        let beside = sidecar::Proof::beside(&path, self.records.run());
        if !self.records.prove(&path, found, beside.as_ref()) {
            return proven(vec!["the file itself".into()]);
        }
        tracing::info!(path = self.path, "a checkpoint of the run is removed");
        self.unlink(above, name, found, &path)?;
        let mut name = name.to_owned();
        name.push(sidecar::ENDING);
        let path = path.with_file_name(&name);
        match identity_of(above, &name)? {
            Some(found) if self.records.prove(&path, &found, beside.as_ref()) => {
                self.unlink(above, &name, &found, &path)
            }
            _ => Ok(()),
        }
    }

    /// Reads a whole folder, and searches the proof of everything in it.
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
        summary: &mut TreeSummary,
    ) -> Result<Tree, RemovalError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match open_on_same_mount(above, name, flags) {
            Err(rustix::io::Errno::XDEV) => return Err(RemovalError::Mounted),
            opened => opened.map_err(file_error)?,
        };
        let mut tree = Tree {
            path: path.to_owned(),
            files: Vec::new(),
            folders: Vec::new(),
            folder,
        };
        let opened = Identity::at(&tree.folder, OsStr::new(".")).map_err(file_error)?;
        if !opened.is_same_folder(found) {
            return Err(changed(name));
        }
        for entry in Dir::read_from(&tree.folder).map_err(file_error)? {
            let entry = entry.map_err(file_error)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = path.join(name);
            let Some(inside) = identity_of(&tree.folder, name)? else {
                return Err(changed(name));
            };
            if inside.kind == Kind::Folder {
                summary.folders += 1;
                bounded(summary)?;
                let files_before = summary.files;
                // Another file system is mounted there, or it is deeper than checkpoints are.
                if inside.device != found.device || depth >= DEPTH_MAX {
                    self.unproven(&path, summary);
                    continue;
                }
                let inner = self.read(&tree.folder, name, &inside, &path, depth + 1, sidecar, summary)?;
                let is_empty = summary.files == files_before && inner.folders.is_empty();
                if is_empty && !self.is_declared(&path, &inside) {
                    self.unproven(&path, summary);
                }
                tree.folders.push((name.to_owned(), inside, inner));
            } else {
                summary.files += 1;
                bounded(summary)?;
                if !self.records.prove(&path, &inside, sidecar) {
                    self.unproven(&path, summary);
                }
                tree.files.push((name.to_owned(), inside));
            }
        }
        // Without `.metadata`, every reader sees that the checkpoint is incomplete.
        tree.files.sort_by_key(|(name, _)| name != ".metadata");
        Ok(tree)
    }

    /// Returns true for the empty folder of an early failed save, if the run's spec declares that the folder belongs to the run.
    fn is_declared(&self, path: &Path, found: &Identity) -> bool {
        let earlier = self.records.earlier.as_ref();
        earlier.is_some_and(|earlier| earlier.declares(path, found))
    }

    fn unproven(&self, path: &Path, summary: &mut TreeSummary) {
        if summary.unproven.len() < UNPROVEN_MAX {
            let below = path.strip_prefix(self.path).unwrap_or(path);
            summary.unproven.push(below.display().to_string());
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
        // A folder that another program created stays, empty.
        if earlier.is_some_and(|earlier| earlier.had(&tree.path)) {
            return Ok(());
        }
        match identity_of(above.as_fd(), name)? {
            Some(now) if now.is_same_folder(found) => {}
            _ => return Err(changed(name)),
        }
        match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST) => Err(RemovalError::Added),
            Err(error) => Err(file_error(error)),
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
        match identity_of(folder.as_fd(), name)? {
            // Another node has already removed it.
            None => return Ok(()),
            Some(now) if now.is_same(proven) => {}
            Some(_) => return Err(changed(name)),
        }
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) => self.records.proofs.removed(path, proven),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(file_error(error)),
        }
        Ok(())
    }
}

/// The folder that contains a checkpoint, held open.
struct Parent<'n> {
    folder: OwnedFd,
    /// The name of the checkpoint in it.
    name: &'n OsStr,
    /// The identity of the run's checkpoint folder, through which it was opened.
    run_folder: Identity,
    /// A file system is mounted between the two.
    crosses_mount: bool,
}

/// Opens the parent folder of the checkpoint; `None` if it does not exist. The run's folder itself may be a link, folders below it may
/// not.
fn open_parent<'n>(folder: &Path, names: &[&'n OsStr]) -> Result<Option<Parent<'n>>, RemovalError> {
    let Some((last, between)) = names.split_last() else {
        return Err(RemovalError::Outside);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(CWD, folder, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        opened => opened.map_err(file_error)?,
    };
    let mut parent = Parent {
        run_folder: Identity::at(&opened, OsStr::new(".")).map_err(file_error)?,
        folder: opened,
        name: last,
        crosses_mount: false,
    };
    let flags = flags | OFlags::NOFOLLOW;
    for name in between {
        let opened = match open_on_same_mount(&parent.folder, name, flags) {
            Err(rustix::io::Errno::XDEV) => {
                parent.crosses_mount = true;
                rustix::fs::openat(&parent.folder, *name, flags, Mode::empty())
            }
            opened => opened,
        };
        parent.folder = match opened {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(RemovalError::Link);
            }
            opened => opened.map_err(file_error)?,
        };
    }
    Ok(Some(parent))
}

/// Opens a folder. Fails with `EXDEV` if a file system is mounted there, also if it is a part of the same one (a bind mount).
fn open_on_same_mount(above: impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let above = above.as_fd();
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(above, name, flags, Mode::empty(), resolve) {
        // An old kernel, or a sandbox that does not support the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            open_and_compare_mounts(above, name, flags)
        }
        opened => opened,
    }
}

/// Does the same without `openat2`. A mounted file system of the same device is not noticed if `/proc` does not show the ids of mounts.
fn open_and_compare_mounts(
    above: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let opened = rustix::fs::openat(above, name, flags, Mode::empty())?;
    let mounts = mount_id(above).zip(mount_id(opened.as_fd()));
    if mounts.is_some_and(|(above, below)| above != below) {
        return Err(rustix::io::Errno::XDEV);
    }
    Ok(opened)
}

/// Returns the id of the mount through which a folder was opened.
fn mount_id(folder: BorrowedFd<'_>) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", folder.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Returns the identity of a name, or `None` if it does not exist.
fn identity_of(folder: impl AsFd, name: &OsStr) -> Result<Option<Identity>, RemovalError> {
    match Identity::at(folder, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(file_error),
    }
}

fn proven(files: Vec<String>) -> Result<(), RemovalError> {
    if files.is_empty() {
        return Ok(());
    }
    Err(RemovalError::NotProven { files })
}

fn bounded(summary: &TreeSummary) -> Result<(), RemovalError> {
    if summary.files > FILES_MAX || summary.folders > FOLDERS_MAX {
        return Err(RemovalError::TooLarge);
    }
    Ok(())
}

fn changed(name: &OsStr) -> RemovalError {
    let name = name.to_string_lossy().into_owned();
    RemovalError::Changed { name }
}

fn file_error(error: impl Into<io::Error>) -> RemovalError {
    RemovalError::Io(error.into())
}

#[cfg(test)]
mod tests;
