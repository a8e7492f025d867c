//! The files that a run's saves wrote on this node, as recorded by its probes. They are the proof that Lockstep may remove these files.
//!
//! ```text
//! rank ── saves/RANK.jsonl in the attempt's folder ──▶ Proofs ──▶ files.json in the run's own folder, for all of its attempts
//! ```
//! A file is identified by device, inode, size and modification time, and by its creation time from the first scan on. So it keeps its
//! proof when the file or its folder is renamed, and loses it when another program writes to the file. If an inode number is reused for
//! another file, the other values differ and there is no proof. The proof of a deleted file is dropped.
//!
//! A file with several names is proven only under the names under which it was saved. A link that a person made to keep a checkpoint is not
//! one of them, even if it is the last remaining name. Unchanged shards are links too: the save that made each link recorded its name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::identity::{Identity, Kind};

/// Maximum number of files per run: ten checkpoints of a thousand ranks with three files each. Beyond this, the proofs of the oldest saves
/// are dropped, so those files are kept.
const FILES_MAX: usize = 32_768;
/// Maximum number of names per file: a shard that never changes gets one per checkpoint. Beyond this, the oldest names are dropped, so
/// those checkpoints are kept.
const NAMES_MAX: usize = 1_024;
/// A file that was still open at the end of its save changes once more, when its last bytes are written. This is the limit for that change.
const SETTLES_WITHIN_NS: i64 = 60_000_000_000;
/// A file counts as deleted if this many scans did not find it: one scan may miss a file that is being renamed.
const MISSED_MAX: u8 = 3;
/// Maximum bytes of one read of a rank's file. A rank stops at 16 MiB.
const SAVES_BYTES_MAX: u64 = 17 << 20;
/// The suffix of a rank's file while it is processed.
const TAKEN: &str = ".taken";

/// The proofs of one run.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    files: HashMap<(u64, u64), Proof>,
    next: u64,
    changed: bool,
}

/// One file that a save wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Proof {
    device: u64,
    inode: u64,
    bytes: u64,
    changed_ns: i64,
    /// The file was closed when it was recorded, so `changed_ns` is final.
    exact: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    born_ns: Option<i64>,
    /// The file had several names at some time, so only `names` are proven.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    linked: bool,
    /// The names under which it was saved, or to which it was renamed.
    names: Vec<String>,
    /// Number of consecutive scans that did not find it.
    #[serde(default, skip_serializing_if = "is_zero")]
    missed: u8,
    /// Its position in the order of saves.
    order: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u8) -> bool {
    *n == 0
}

/// One save, as a rank recorded it: see `written.py` of the probe.
#[derive(Debug, Deserialize)]
struct Save {
    path: String,
    files: Vec<(String, u64, u64, u64, i64, u64, bool)>,
}

impl Proofs {
    /// Reads the stored proofs. Empty if there is no such file.
    pub(super) fn load(path: &Path) -> Self {
        let stored: Vec<Proof> = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::error!(path = %path.display(), %error, "the list of files that a run wrote cannot be read; the files are kept");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        };
        let next = stored.iter().map(|proof| proof.order + 1).max().unwrap_or(0);
        let files = stored
            .into_iter()
            .map(|proof| ((proof.device, proof.inode), proof));
        Self {
            files: files.collect(),
            next,
            changed: false,
        }
    }

    /// Returns the bytes to store if something changed since the last call.
    pub(super) fn take_changes(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut all: Vec<&Proof> = self.files.values().collect();
        all.sort_by_key(|proof| proof.order);
        serde_json::to_vec(&all).ok()
    }

    /// Takes one line of a rank. A line that cannot be parsed is skipped: the files in it are kept.
    pub(super) fn note(&mut self, line: &[u8]) {
        let Ok(save) = serde_json::from_slice::<Save>(line) else {
            return;
        };
        for (name, device, inode, bytes, changed_ns, links, exact) in save.files {
            let path = match name.as_str() {
                "" => save.path.clone(),
                name => format!("{}/{name}", save.path),
            };
            let order = self.next;
            self.next += 1;
            let proof = Proof {
                device,
                inode,
                bytes,
                changed_ns,
                exact,
                born_ns: None,
                linked: links > 1,
                names: vec![path],
                missed: 0,
                order,
            };
            self.insert(proof);
        }
        self.changed = true;
        self.bound();
    }

    fn insert(&mut self, new: Proof) {
        match self.files.get_mut(&(new.device, new.inode)) {
            // The same content under an additional name.
            Some(known) if known.bytes == new.bytes && known.may_have(new.changed_ns) => {
                if !known.exact {
                    (known.changed_ns, known.exact) = (new.changed_ns, new.exact);
                }
                known.linked |= new.linked;
                known.missed = 0;
                known.names.retain(|name| !new.names.contains(name));
                known.names.extend(new.names);
                let over = known.names.len().saturating_sub(NAMES_MAX);
                known.names.drain(..over);
            }
            _ => {
                self.files.insert((new.device, new.inode), new);
            }
        }
    }

    fn bound(&mut self) {
        // Several at once, because finding the oldest requires a pass over all.
        const AT_ONCE: usize = FILES_MAX / 16;
        if self.files.len() <= FILES_MAX {
            return;
        }
        let mut orders: Vec<u64> = self.files.values().map(|proof| proof.order).collect();
        orders.sort_unstable();
        let kept_from = orders[orders.len() - (FILES_MAX - AT_ONCE)];
        self.files.retain(|_, proof| proof.order >= kept_from);
        tracing::warn!(
            "a run saved more than {FILES_MAX} files that still exist; Lockstep will not remove the oldest ones"
        );
    }

    /// Returns true if a save of the run wrote the current file at a path.
    pub(super) fn proves(&self, path: &Path, found: &Identity) -> bool {
        self.files
            .get(&(found.device, found.inode))
            .is_some_and(|proof| proof.holds(path, found))
    }

    /// Updates the proofs with the result of a scan. `all` is true if the scan examined everything.
    pub(super) fn settle(&mut self, found: &[(PathBuf, Identity)], all: bool) {
        let mut seen = HashSet::new();
        for (path, identity) in found {
            let Some(proof) = self.files.get_mut(&(identity.device, identity.inode)) else {
                continue;
            };
            seen.insert((identity.device, identity.inode));
            self.changed |= proof.settle(path, identity);
        }
        if all {
            let missing = self.files.iter_mut().filter(|(key, _)| !seen.contains(key));
            for (_, proof) in missing {
                self.changed |= proof.update_missed();
            }
            self.files.retain(|_, proof| proof.missed < MISSED_MAX);
        }
    }

    /// Records that a name of a file has been removed.
    pub(super) fn removed(&mut self, path: &Path, identity: &Identity) {
        let key = (identity.device, identity.inode);
        let Some(proof) = self.files.get_mut(&key) else {
            return;
        };
        self.changed = true;
        // Other names remain. Those that no save made do not belong to the run.
        proof.linked |= identity.links > 1;
        proof.names.retain(|name| Path::new(name) != path);
        if identity.links <= 1 || proof.names.is_empty() {
            self.files.remove(&key);
        }
    }
}

impl Proof {
    fn holds(&self, path: &Path, found: &Identity) -> bool {
        let one_name = !self.linked && found.links <= 1;
        found.kind == Kind::File
            && found.bytes == self.bytes
            && self.may_have(found.changed_ns)
            && self.born_ns.is_none_or(|born| found.born_ns == Some(born))
            && (one_name || self.names.iter().any(|name| Path::new(name) == path))
    }

    /// Returns true if the modification time is that of the save.
    fn may_have(&self, changed_ns: i64) -> bool {
        let last = match self.exact {
            true => self.changed_ns,
            false => self.changed_ns.saturating_add(SETTLES_WITHIN_NS),
        };
        (self.changed_ns..=last).contains(&changed_ns)
    }

    /// Records what only a scan can determine. Returns true if something changed.
    fn settle(&mut self, path: &Path, found: &Identity) -> bool {
        let before = self.clone();
        if self.holds(path, found) {
            (self.changed_ns, self.exact, self.missed) = (found.changed_ns, true, 0);
            self.born_ns = self.born_ns.or(found.born_ns);
            if !self.linked && found.links <= 1 && !self.names.iter().any(|name| Path::new(name) == path) {
                self.names = path.to_str().map(str::to_owned).into_iter().collect();
            }
        }
        if found.kind == Kind::File && found.links > 1 {
            self.linked = true;
        }
        *self != before
    }

    /// Handles a file that a scan did not find: its name is not that of a checkpoint, or it was deleted. Returns true if something changed.
    fn update_missed(&mut self) -> bool {
        let is_there = |name: &String| {
            let found = Identity::of(Path::new(name));
            found.is_ok_and(|found| (found.device, found.inode) == (self.device, self.inode))
        };
        let missed = if self.names.iter().any(is_there) {
            0
        } else {
            self.missed.saturating_add(1)
        };
        std::mem::replace(&mut self.missed, missed) != missed
    }
}

/// Reads what the ranks have recorded in an attempt's folder since the last call. [`TakenSaves::done`] deletes the files that were read.
#[derive(Debug, Default)]
pub(super) struct TakenSaves {
    files: Vec<PathBuf>,
}

impl TakenSaves {
    /// Adds the recorded files to the proofs.
    pub(super) fn take(saves: &Path, proofs: &mut Proofs) -> Self {
        let mut taken = Self::default();
        let Ok(entries) = std::fs::read_dir(saves) else {
            return taken;
        };
        // Sorted by name, so that files left by a previous agent come first.
        let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
        for entry in entries.flatten() {
            if let Ok(name) = entry.file_name().into_string() {
                names.insert(name, entry.path());
            }
        }
        for (name, path) in &names {
            let aside = if name.ends_with(TAKEN) {
                path.clone()
            } else if name.ends_with(".jsonl") && !names.contains_key(&format!("{name}{TAKEN}")) {
                let aside = saves.join(format!("{name}{TAKEN}"));
                // A rank creates a new file for its next save.
                if std::fs::rename(path, &aside).is_err() {
                    continue;
                }
                aside
            } else {
                continue;
            };
            if let Ok(bytes) = read(&aside) {
                bytes
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty())
                    .for_each(|line| proofs.note(line));
            }
            taken.files.push(aside);
        }
        taken
    }

    /// Deletes the files after the proofs are stored.
    pub(super) fn done(self) {
        for path in self.files {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a rank's list of saved files cannot be deleted; it will be read again");
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(SAVES_BYTES_MAX).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
