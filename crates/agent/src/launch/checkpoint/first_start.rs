//! The contents of a run's checkpoint folder before its ranks first started on this node.
//!
//! Files that existed then and have not changed belong to another program: training does not resume from them automatically. With
//! `checkpoint_dir_is_mine`, every other file belongs to the run and may be removed even if no probe reported a save of it. This applies
//! only on nodes of the run's very first start, and only if the whole folder could be listed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::run::state::Start;
use serde::{Deserialize, Serialize};

use super::identity::{Identity, Kind};

/// Maximum number of listed names. With more, the list proves nothing: a folder with so many files does not contain only checkpoints.
const NAMES_MAX: usize = 100_000;
/// Time limit for the list. The start of the ranks waits for it.
const WITHIN: Duration = Duration::from_secs(10);
/// Maximum depth of listed folders.
const DEPTH_MAX: usize = 32;

/// The list in its stored form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FirstStart {
    /// The run's checkpoint folder.
    folder: String,
    /// The device of the folder. If the device differs later, for example because a disk was mounted over the folder, the list does not
    /// apply.
    device: u64,
    /// The folder without symbolic links. If it leads to another folder later, the list does not apply. `None` in lists of older agents.
    real_folder: Option<String>,
    /// No attempt of the run had started before on any node.
    is_first: bool,
    /// The run's spec declares that the folder belongs to the run.
    is_mine: bool,
    /// Everything was listed.
    complete: bool,
    /// Path below the folder, inode, modification time in ns.
    there: Vec<(String, u64, i64)>,
}

/// The list with indexes for lookups.
#[derive(Debug)]
pub(super) struct EarlierFiles {
    list: FirstStart,
    names: HashSet<String>,
    inodes: HashMap<u64, i64>,
    /// The folder still leads to the folder that was listed.
    is_same_folder: bool,
}

impl FirstStart {
    /// Lists a folder without following links. A folder that does not exist is empty.
    pub(super) fn list(folder: &Path, start: &Start) -> Self {
        let mut list = Self::unlisted(folder, start);
        let there = folder.ancestors().find_map(|there| Identity::of(there).ok());
        // If the folder itself is a link, the target's device counts.
        let meta = std::fs::metadata(folder);
        let device = meta.as_ref().map(|meta| Identity::from_metadata(meta).device);
        let Some(device) = device.ok().or_else(|| there.map(|there| there.device)) else {
            return list;
        };
        list.device = device;
        list.real_folder = real_path(folder);
        let deadline = Instant::now() + WITHIN;
        list.complete = list.add(folder, "", 0, deadline);
        list
    }

    /// Returns the list of a folder that could not be listed.
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
            // A lossy conversion of a name is correct here: lookups convert names in the same way.
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

    /// Builds the indexes, and checks where the folder leads now. May block as long as the file server does not answer.
    pub(super) fn earlier(self) -> EarlierFiles {
        let leads_to = real_path(Path::new(&self.folder));
        EarlierFiles {
            is_same_folder: self.real_folder.is_some() && self.real_folder == leads_to,
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
    /// Returns true if the current file existed before and has not changed, even under another name.
    pub(super) fn was_there(&self, found: &Identity) -> bool {
        found.device == self.list.device && self.inodes.get(&found.inode) == Some(&found.changed_ns)
    }

    /// Returns true if the list contains everything that existed in the current folder.
    pub(super) fn is_complete(&self) -> bool {
        self.list.complete && self.is_same_folder
    }

    /// Returns true if this name existed.
    pub(super) fn had(&self, path: &Path) -> bool {
        self.name_of(path).is_some_and(|name| self.names.contains(&name))
    }

    /// Returns true if the run's declaration that the folder belongs to it has an effect on this node.
    pub(super) fn applies(&self) -> bool {
        self.list.is_mine && self.list.is_first && self.list.complete && self.is_same_folder
    }

    /// Returns true if an open folder is the one that was listed. The path may lead elsewhere since the list was read.
    pub(super) fn is_listed_folder(&self, opened: &Identity) -> bool {
        let real = self.list.real_folder.as_deref();
        let real = real.and_then(|real| Identity::of(Path::new(real)).ok());
        real.is_some_and(|real| real.is_same_folder(opened))
    }

    /// Returns true if the declaration makes the current file at a path the run's own.
    pub(super) fn declares(&self, path: &Path, found: &Identity) -> bool {
        self.applies()
            && found.device == self.list.device
            && self.name_of(path).is_some()
            && !self.had(path)
            && !self.inodes.contains_key(&found.inode)
    }

    /// Returns why the run's declaration has no effect on this node, or `None` if it has.
    pub(super) fn why_not_declared(&self) -> Option<&'static str> {
        if !self.list.is_mine {
            None
        } else if !self.list.is_first {
            Some("the run was first started elsewhere, so this node has no list of the earlier files")
        } else if !self.list.complete {
            Some("the folder could not be listed completely when the run first started")
        } else if self.list.real_folder.is_none() {
            Some("the run first started with an older agent, which did not record where the folder leads")
        } else if !self.is_same_folder {
            Some("the folder leads elsewhere since the run first started")
        } else {
            None
        }
    }

    fn name_of(&self, path: &Path) -> Option<String> {
        let below = path.strip_prefix(&self.list.folder).ok()?;
        Some(below.to_string_lossy().into_owned())
    }
}

/// Returns the path without symbolic links, also of a folder that does not exist yet. `None` if it is not valid text.
fn real_path(folder: &Path) -> Option<String> {
    let (mut there, mut missing) = (folder, Vec::new());
    loop {
        match std::fs::canonicalize(there) {
            Ok(mut real) => {
                real.extend(missing.into_iter().rev());
                return real.into_os_string().into_string().ok();
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                missing.push(there.file_name()?);
                there = there.parent()?;
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests;
