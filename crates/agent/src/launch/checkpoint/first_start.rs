//! What lay in a run's checkpoint folder before its ranks were first started on this node.
//!
//! What was there then and has not changed is somebody else's: training does not go on from it by itself. With
//! `checkpoint_dir_is_mine` whatever was not there belongs to the run, so that it may be removed without a save that a probe reported.
//! That counts only on nodes of the run's very first start, and only if the whole folder could be listed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::run::state::Start;
use serde::{Deserialize, Serialize};

use super::identity::{Identity, Kind};

/// Names that are listed; with more, the list proves nothing. A folder of so many files is not one of checkpoints alone.
const NAMES_MAX: usize = 100_000;
/// Time for the list. The start of the ranks waits for it.
const WITHIN: Duration = Duration::from_secs(10);
/// Folders in folders that are listed.
const DEPTH_MAX: usize = 32;

/// The list, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FirstStart {
    /// The run's checkpoint folder.
    folder: String,
    /// The device that the folder lay on. On another one, as when a disk is mounted over it later, the list says nothing.
    device: u64,
    /// No attempt of the run was started before on any node.
    is_first: bool,
    /// The run's spec declares that the folder is its own.
    is_mine: bool,
    /// Everything was listed.
    complete: bool,
    /// Name below the folder, inode, time of change.
    there: Vec<(String, u64, i64)>,
}

/// The list, to be asked.
#[derive(Debug)]
pub(super) struct EarlierFiles {
    list: FirstStart,
    names: HashSet<String>,
    inodes: HashMap<u64, i64>,
}

impl FirstStart {
    /// Lists a folder, links not followed. A folder that is not there is empty.
    pub(super) fn list(folder: &Path, start: &Start) -> Self {
        let mut list = Self::unlisted(folder, start);
        let there = folder.ancestors().find_map(|there| Identity::of(there).ok());
        // A folder that is itself a link lies where the link leads.
        let meta = std::fs::metadata(folder);
        let device = meta.as_ref().map(|meta| Identity::from_metadata(meta).device);
        let Some(device) = device.ok().or_else(|| there.map(|there| there.device)) else {
            return list;
        };
        list.device = device;
        let deadline = Instant::now() + WITHIN;
        list.complete = list.add(folder, "", 0, deadline);
        list
    }

    /// A folder that could not be listed.
    pub(super) fn unlisted(folder: &Path, start: &Start) -> Self {
        Self {
            folder: folder.to_string_lossy().into_owned(),
            is_first: start.is_first,
            is_mine: start.spec.checkpoint_dir_is_mine,
            ..Self::default()
        }
    }

    fn add(&mut self, folder: &Path, below: &str, depth: usize, deadline: Instant) -> bool {
        let entries = match std::fs::read_dir(folder) {
            Err(error) => return depth == 0 && error.kind() == std::io::ErrorKind::NotFound,
            Ok(entries) => entries,
        };
        for entry in entries {
            let Ok(entry) = entry else { return false };
            if self.there.len() >= NAMES_MAX || Instant::now() > deadline {
                return false;
            }
            // A name that is no text is not missed: what is asked for is compared in the same way.
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            let found = match Identity::of(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(_) => return false,
                Ok(found) => found,
            };
            self.there.push((name.clone(), found.inode, found.changed_ns));
            if found.kind == Kind::Folder
                && (depth + 1 >= DEPTH_MAX || !self.add(&path, &format!("{name}/"), depth + 1, deadline))
            {
                return false;
            }
        }
        true
    }

    /// To be asked.
    pub(super) fn earlier(self) -> EarlierFiles {
        EarlierFiles {
            names: self.there.iter().map(|(name, ..)| name.clone()).collect(),
            inodes: self
                .there
                .iter()
                .map(|(_, inode, changed_ns)| (*inode, *changed_ns))
                .collect(),
            list: self,
        }
    }
}

impl EarlierFiles {
    /// Whether what is found at a path now was there before and has not changed, whatever it was called.
    pub(super) fn was_there(&self, found: &Identity) -> bool {
        found.device == self.list.device && self.inodes.get(&found.inode) == Some(&found.changed_ns)
    }

    /// Whether the list names everything that was there.
    pub(super) fn is_complete(&self) -> bool {
        self.list.complete
    }

    /// Whether something of this name was there.
    pub(super) fn had(&self, path: &Path) -> bool {
        self.name_of(path).is_some_and(|name| self.names.contains(&name))
    }

    /// Whether the declaration makes what is found at a path the run's.
    pub(super) fn declares(&self, path: &Path, found: &Identity) -> bool {
        let FirstStart {
            is_first,
            is_mine,
            complete,
            device,
            ..
        } = self.list;
        is_mine
            && is_first
            && complete
            && found.device == device
            && self.name_of(path).is_some()
            && !self.had(path)
            && !self.inodes.contains_key(&found.inode)
    }

    /// Why the run's declaration proves nothing on this node, if it does not.
    pub(super) fn why_not_declared(&self) -> Option<&'static str> {
        if !self.list.is_mine {
            None
        } else if !self.list.is_first {
            Some("the run was first started elsewhere, so what was in the folder then is not known here")
        } else if !self.list.complete {
            Some("not all of the folder could be listed when the run was first started")
        } else {
            None
        }
    }

    fn name_of(&self, path: &Path) -> Option<String> {
        let below = path.strip_prefix(&self.list.folder).ok()?;
        Some(below.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests;
