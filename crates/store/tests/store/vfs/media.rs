//! The content of a disk after a power loss: synchronised file contents and folder entries, and a random part of the rest.
//!
//! ```text
//! inode    durable   the bytes as of the last fsync
//!          pending   later writes and truncations, in order
//! folder   durable   names as of the last fsync of the folder
//!          pending   names that were added or removed later, in order
//! ```
//! A write is torn at sectors of 512 bytes. Any part of the pending changes may have reached the disk, in any order. Bytes
//! beside a write within one sector are unchanged, as SQLite assumes of disks (its POWERSAFE_OVERWRITE). The store itself
//! creates and removes its write-ahead files without SQLite; these changes are found by comparing the folder with the known
//! names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::faults::Rng;

const SECTOR_BYTES: u64 = 512;

/// The index of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inode(usize);

#[derive(Debug, Default)]
struct Content {
    durable: Vec<u8>,
    pending: Vec<Change>,
    /// The length in bytes as a running process sees it.
    len: u64,
}

#[derive(Debug)]
enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Truncate(u64),
}

#[derive(Debug)]
enum NameChange {
    Link(String, Inode),
    Unlink(String),
}

#[derive(Debug)]
pub(super) struct Media {
    folder: PathBuf,
    inodes: Vec<Content>,
    names: BTreeMap<String, Inode>,
    durable_names: BTreeMap<String, Inode>,
    pending_names: Vec<NameChange>,
}

impl Media {
    /// Creates the media of a folder whose files are all durable.
    pub(super) fn of(folder: &Path) -> Self {
        let mut media = Self {
            folder: folder.to_owned(),
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
        };
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let name = name_of(&path);
            if is_database(&name) {
                let durable = fs::read(&path).unwrap();
                let inode = media.add(durable);
                media.names.insert(name, inode);
            }
        }
        media.durable_names.clone_from(&media.names);
        media
    }

    /// Records that a file was opened, and created if it did not exist.
    pub(super) fn open(&mut self, name: &str) -> Inode {
        self.notice_unlinks();
        let len = fs::metadata(self.folder.join(name)).map_or(0, |file| file.len());
        if let Some(known) = self.names.get(name).copied() {
            let known_len = self.inodes[known.0].len;
            if known_len == len {
                return known;
            }
            // Removed and created again between two calls.
            assert_eq!(
                len, 0,
                "{name}: {known_len} bytes are known, and it has grown past this model"
            );
            self.pending_names.push(NameChange::Unlink(name.to_owned()));
        }
        assert_eq!(len, 0, "{name}: a file with content came from nowhere");
        let inode = self.add(Vec::new());
        self.names.insert(name.to_owned(), inode);
        self.pending_names.push(NameChange::Link(name.to_owned(), inode));
        inode
    }

    pub(super) fn write(&mut self, inode: Inode, at: u64, bytes: &[u8]) {
        let content = &mut self.inodes[inode.0];
        content.len = content.len.max(at + bytes.len() as u64);
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len() as u64);
            let (sector, more) = rest.split_at(within as usize);
            let bytes = sector.to_vec();
            content.pending.push(Change::Write { at, bytes });
            (at, rest) = (at + within, more);
        }
    }

    pub(super) fn truncate(&mut self, inode: Inode, len: u64) {
        let content = &mut self.inodes[inode.0];
        content.len = len;
        content.pending.push(Change::Truncate(len));
    }

    pub(super) fn sync(&mut self, inode: Inode) {
        let content = &mut self.inodes[inode.0];
        for change in std::mem::take(&mut content.pending) {
            change.apply(&mut content.durable);
        }
    }

    /// Records that an fsync failed, and the pending changes will never be written.
    pub(super) fn lose(&mut self, inode: Inode) {
        self.inodes[inode.0].pending.clear();
    }

    /// Drops lost pages from the cache: the running process reads what the disk has.
    pub(super) fn evict(&mut self, inode: Inode) {
        let content = &mut self.inodes[inode.0];
        content.len = content.durable.len() as u64;
        let named = self.names.iter().find(|(_, of)| **of == inode);
        if let Some((name, _)) = named
            && let Ok(file) = File::options().write(true).open(self.folder.join(name))
        {
            file.write_all_at(&content.durable, 0).unwrap();
            file.set_len(content.len).unwrap();
        }
    }

    pub(super) fn sync_names(&mut self) {
        self.notice_unlinks();
        self.pending_names.clear();
        self.durable_names.clone_from(&self.names);
    }

    /// Records which names were removed since the last call.
    pub(super) fn notice_unlinks(&mut self) {
        let folder = &self.folder;
        let pending = &mut self.pending_names;
        self.names.retain(|name, _| {
            let there = folder.join(name).exists();
            if !there {
                pending.push(NameChange::Unlink(name.clone()));
            }
            there
        });
    }

    /// Writes what a power loss leaves into an empty folder.
    pub(super) fn leave(&self, rng: &mut Rng, into: &Path) {
        let mut names = self.durable_names.clone();
        for change in rng.survivors(&self.pending_names) {
            change.apply(&mut names);
        }
        self.write_out(names, into, |pending| rng.survivors(pending));
    }

    /// Like [`Media::leave`]: of the removals, only those of journals reached the disk, and of the changes of a file those for
    /// which `reached` returns true.
    pub(super) fn leave_without_journals(&self, into: &Path, reached: impl Fn(usize, usize) -> bool) {
        let mut names = self.durable_names.clone();
        for change in &self.pending_names {
            if !matches!(change, NameChange::Unlink(name) if name.ends_with(".db")) {
                change.apply(&mut names);
            }
        }
        self.write_out(names, into, |pending| {
            let changes = pending.iter().enumerate();
            let reached = changes.filter(|(n, _)| reached(*n, pending.len()));
            reached.map(|(_, change)| change).collect()
        });
    }

    fn write_out(
        &self,
        names: BTreeMap<String, Inode>,
        into: &Path,
        mut survivors: impl FnMut(&[Change]) -> Vec<&Change>,
    ) {
        for (name, inode) in names {
            let content = &self.inodes[inode.0];
            let mut bytes = content.durable.clone();
            for change in survivors(&content.pending) {
                change.apply(&mut bytes);
            }
            let mut options = File::options();
            let file = options.write(true).create_new(true).mode(0o600);
            file.open(into.join(name)).unwrap().write_all(&bytes).unwrap();
        }
    }

    /// Describes pending changes of names and contents.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("  names {:?}\n", self.pending_names);
        for (name, inode) in &self.names {
            let content = &self.inodes[inode.0];
            let (durable, pending) = (content.durable.len(), content.pending.len());
            if pending > 0 {
                text += &format!(
                    "  {name} {} bytes, {durable} durable, {pending} sectors or truncations pending\n",
                    content.len
                );
            }
        }
        text
    }

    fn add(&mut self, durable: Vec<u8>) -> Inode {
        let len = durable.len() as u64;
        self.inodes.push(Content {
            durable,
            pending: Vec::new(),
            len,
        });
        Inode(self.inodes.len() - 1)
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self {
            Self::Link(name, inode) => drop(names.insert(name.clone(), *inode)),
            Self::Unlink(name) => drop(names.remove(name)),
        }
    }
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => {
                let (at, end) = (*at as usize, *at as usize + bytes.len());
                to.resize(to.len().max(end), 0);
                to[at..end].copy_from_slice(bytes);
            }
            Self::Truncate(len) => to.resize(*len as usize, 0),
        }
    }
}

impl Rng {
    /// Returns which unsynchronised changes reached the disk: none, all, the first ones, or any of them.
    fn survivors<'a, T>(&mut self, pending: &'a [T]) -> Vec<&'a T> {
        match self.below(4) {
            0 => Vec::new(),
            1 => pending.iter().collect(),
            2 => {
                let end = self.below(pending.len() as u64 + 1) as usize;
                pending[..end].iter().collect()
            }
            _ => {
                let share = self.below(1_000);
                pending.iter().filter(|_| self.hits(share)).collect()
            }
        }
    }
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns true for databases and their journals, but not for the shared memory, which a power loss empties.
fn is_database(name: &str) -> bool {
    [".db", ".db-wal", ".db-journal"]
        .iter()
        .any(|end| name.ends_with(end))
}
