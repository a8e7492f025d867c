//! The identity of a file, independent of its name: the metadata of its file system, without following a link.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// A file, a folder or a link at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    /// The last modification time, in nanoseconds since the epoch.
    pub(super) changed_ns: i64,
    /// When the inode was created, in nanoseconds since the epoch; `None` if the file system does not provide it.
    pub(super) born_ns: Option<i64>,
    /// The number of its hard links.
    pub(super) links: u64,
}

/// Tolerance between creation and modification time. A file is created before its last write, so a file that is younger than its last
/// change is a copy with the original's times. The tolerance covers the difference between the clocks of a file server and a client.
const BORN_SLACK_NS: i64 = 2_000_000_000;

impl Identity {
    /// Returns the identity of a path.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Self::at(CWD, path.as_os_str())
    }

    /// Returns the identity of a name in an open folder.
    pub(super) fn at(folder: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        match rustix::fs::statx(folder.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW, mask) {
            Ok(found) => {
                let born = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
                let ns = |time: rustix::fs::StatxTimestamp| nanoseconds(time.tv_sec, time.tv_nsec.into());
                Ok(Self {
                    device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
                    inode: found.stx_ino,
                    kind: kind(FileType::from_raw_mode(found.stx_mode.into())),
                    bytes: found.stx_size,
                    changed_ns: ns(found.stx_mtime),
                    born_ns: born.then(|| ns(found.stx_btime)),
                    links: found.stx_nlink.into(),
                })
            }
            // An old kernel, or a sandbox that does not support the call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Self {
                    device: found.st_dev,
                    inode: found.st_ino,
                    kind: kind(FileType::from_raw_mode(found.st_mode)),
                    bytes: found.st_size.cast_unsigned(),
                    changed_ns: nanoseconds(found.st_mtime, found.st_mtime_nsec.cast_signed()),
                    born_ns: None,
                    links: wide(found.st_nlink),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Converts metadata that were read without following links.
    pub(super) fn from_metadata(meta: &Metadata) -> Self {
        let born = meta
            .created()
            .ok()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let file_type = meta.file_type();
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            kind: if file_type.is_file() {
                Kind::File
            } else if file_type.is_dir() {
                Kind::Folder
            } else if file_type.is_symlink() {
                Kind::Link
            } else {
                Kind::Other
            },
            bytes: meta.len(),
            changed_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            born_ns: born.and_then(|age| i64::try_from(age.as_nanos()).ok()),
            links: meta.nlink(),
        }
    }

    /// Returns true if it is the same inode with the same content, judged without reading it.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let but_names = |one: &Self| Self { links: 0, ..*one };
        but_names(self) == but_names(other)
    }

    /// Returns true if it is the same folder, even if its contents changed.
    pub(super) fn is_same_folder(&self, other: &Self) -> bool {
        self.kind == Kind::Folder
            && other.kind == Kind::Folder
            && (self.device, self.inode, self.born_ns) == (other.device, other.inode, other.born_ns)
    }

    /// Returns true for a copy that has the times of its original, made by `cp -p`, `rsync -a` or `tar`.
    pub(super) fn is_copy(&self) -> bool {
        self.born_ns
            .is_some_and(|born| born.saturating_sub(self.changed_ns) > BORN_SLACK_NS)
    }
}

fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    }
}

/// Some machines use 32 bits for the kernel's link count.
fn wide(count: impl Into<u64>) -> u64 {
    count.into()
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn both_ways_to_read_an_identity_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), b"12345").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        for (name, kind) in [
            ("file", Kind::File),
            ("folder", Kind::Folder),
            ("link", Kind::Link),
        ] {
            let looked = Identity::of(&path(name)).unwrap();
            let meta = std::fs::symlink_metadata(path(name)).unwrap();
            assert_eq!(looked, Identity::from_metadata(&meta), "{name}");
            assert_eq!(looked.kind, kind, "{name}");
        }
        assert_eq!(Identity::of(&path("file")).unwrap().bytes, 5);
        assert!(Identity::of(&path("nothing")).is_err());
    }
}
