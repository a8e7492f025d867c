//! `lockstep.json`: the script's description of a checkpoint, written by our helper, in the checkpoint's folder or beside its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::archive::read_small;
use super::identity::{Identity, Kind};

/// The name in a checkpoint's folder.
pub(super) const NAME: &str = "lockstep.json";
/// The suffix after the name of a checkpoint that is a single file.
pub(super) const ENDING: &str = ".lockstep.json";
/// Maximum size: enough for thousands of files.
const BYTES_MAX: u64 = 4 << 20;

/// The content of a sidecar. All fields are optional.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Sidecar {
    pub(super) step: Option<u64>,
    /// `full` or `model`.
    pub(super) content: Option<String>,
    pub(super) val_loss: Option<f64>,
    pub(super) seconds: Option<f64>,
    /// The size of each file in bytes, by its name in the folder.
    pub(super) files: BTreeMap<String, u64>,
    /// The run that wrote it.
    run: Option<String>,
    /// Its own inode.
    inode: Option<u64>,
    /// The inode of its folder; `None` in sidecars of older versions.
    folder: Option<u64>,
    /// Inode, size in bytes and modification time of each file, by its name in the folder.
    inodes: BTreeMap<String, (u64, u64, i64)>,
}

/// Reads a sidecar. Returns `None` if there is none, and an error message if it is invalid.
pub(super) fn read(path: &Path) -> Result<Option<Sidecar>, String> {
    match read_small(path, BYTES_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("lockstep.json cannot be read: {error}")),
        Ok(None) => Err("lockstep.json is too large".into()),
        Ok(Some(bytes)) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| "lockstep.json cannot be read: it is incomplete".into()),
    }
}

/// A sidecar that proves which run wrote the files beside it.
///
/// It contains its own inode number and that of its folder, so a copy of it proves nothing, and neither does a copy of the folder that
/// consists of hard links (`cp -al`). It proves only the files that it lists, while each is still the inode that was written. A file that
/// was added is not proven.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    path: PathBuf,
    device: u64,
    inode: u64,
    inodes: BTreeMap<String, (u64, u64, i64)>,
}

impl Proof {
    /// Reads the proof in a checkpoint's folder. `None` if the sidecar does not exist, belongs to another run, or is a copy.
    pub(super) fn in_folder(folder: &Path, run: &str) -> Option<Self> {
        Self::read(folder.join(NAME), run)
    }

    /// Reads the proof beside a checkpoint that is a single file.
    pub(super) fn beside(path: &Path, run: &str) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        Self::read(path.with_file_name(format!("{name}{ENDING}")), run)
    }

    fn read(path: PathBuf, run: &str) -> Option<Self> {
        let found = Identity::of(&path)
            .ok()
            .filter(|found| found.kind == Kind::File)?;
        let folder = Identity::of(path.parent()?).ok()?;
        let sidecar = read(&path).ok()??;
        let is_in_place = match sidecar.folder {
            Some(inode) => inode == folder.inode,
            // No save links a sidecar, so one of its names is that of a copy. It is unknown which one.
            None => found.links <= 1,
        };
        let is_ours =
            sidecar.run.as_deref() == Some(run) && sidecar.inode == Some(found.inode) && is_in_place;
        is_ours.then_some(Self {
            path,
            device: found.device,
            inode: found.inode,
            inodes: sidecar.inodes,
        })
    }

    /// Returns true if it proves the current file at a path.
    pub(super) fn proves(&self, path: &Path, found: &Identity) -> bool {
        if found.kind != Kind::File || found.device != self.device {
            return false;
        }
        if path == self.path {
            return found.inode == self.inode;
        }
        let named = (path.parent() == self.path.parent())
            .then(|| path.file_name()?.to_str())
            .flatten()
            .and_then(|name| self.inodes.get(name));
        named == Some(&(found.inode, found.bytes, found.changed_ns)) && !found.is_copy()
    }
}

#[cfg(test)]
mod tests;
