//! Reads how full the file systems are. A query of a dead network file system hangs, so this reader has its own thread and misses ticks in
//! that case.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use super::text;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;

/// The types of file systems that contain users' data.
const KINDS: [&str; 16] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "nfs", "nfs4", "cifs", "lustre", "beegfs",
    "ceph", "gpfs", "overlay",
];
/// The maximum number of file systems with series. A node with more has one mount per container.
const SHOWN_MAX: usize = 64;

/// Reads the file systems in the slow tier.
pub(crate) struct Filesystems {
    root: PathBuf,
    samples: Samples,
    families: HashMap<Mount, Family>,
}

/// A device and where it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Mount {
    device: String,
    mountpoint: String,
}

impl Filesystems {
    /// Reads under `root`.
    pub(crate) fn new(root: &Path, samples: Samples) -> Self {
        Self {
            root: root.to_owned(),
            samples,
            families: HashMap::new(),
        }
    }

    /// Runs until the channel of ticks closes.
    pub(crate) fn run(mut self, ticks: &Receiver<Tick>) {
        while let Ok(tick) = ticks.recv() {
            self.read(&tick);
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, tick: &Tick) {
        let mounts = mounts(&self.root);
        for mount in &mounts {
            let path = self.root.join(mount.mountpoint.trim_start_matches('/'));
            let Ok(stat) = rustix::fs::statvfs(&path) else {
                continue;
            };
            if stat.f_blocks == 0 {
                continue;
            }
            let family = self
                .families
                .entry(mount.clone())
                .or_insert_with(|| mount.family());
            let out = &mut family.at(&self.samples, tick.at_ms);
            let fragment = stat.f_frsize as f64;
            out.put("node_filesystem_size_bytes", stat.f_blocks as f64 * fragment);
            out.put("node_filesystem_available_bytes", stat.f_bavail as f64 * fragment);
        }
        self.end_unmounted(&mounts, tick);
    }

    fn end_unmounted(&mut self, mounts: &[Mount], tick: &Tick) {
        let gone: Vec<Mount> = self
            .families
            .keys()
            .filter(|mount| !mounts.contains(mount))
            .cloned()
            .collect();
        for mount in gone {
            self.families.remove(&mount);
            self.samples.end_where(tick.at_ms, |series| {
                series.get("mountpoint") == Some(&mount.mountpoint)
                    && series.get("device") == Some(&mount.device)
            });
        }
    }
}

impl Mount {
    fn family(&self) -> Family {
        Family::new(vec![
            ("mountpoint", self.mountpoint.clone()),
            ("device", self.device.clone()),
        ])
    }
}

/// Returns the host's mounts. They are those of process 1, because `/proc/mounts` shows the reader's own. A device mounted at several
/// places (bind mounts) is shown once, at the first one.
fn mounts(root: &Path) -> Vec<Mount> {
    let table = text(root, "proc/1/mounts")
        .or_else(|| text(root, "proc/mounts"))
        .unwrap_or_default();
    let mut seen = HashSet::new();
    let parsed = table.lines().filter_map(parse);
    parsed
        .filter(|mount| seen.insert(mount.device.clone()))
        .take(SHOWN_MAX)
        .collect()
}

/// Parses `device mountpoint kind options …`.
fn parse(line: &str) -> Option<Mount> {
    let mut words = line.split(' ');
    let (device, mountpoint, kind) = (words.next()?, words.next()?, words.next()?);
    let is_data = KINDS.contains(&kind) || kind.starts_with("fuse.");
    is_data.then(|| Mount {
        device: unescaped(device),
        mountpoint: unescaped(mountpoint),
    })
}

/// Decodes white space and backslashes, which the kernel writes as three octal digits.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}
