//! A file system of a few megabytes that can be filled and emptied. Needs root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Large enough for every checkpoint of a run, and quickly filled.
const SIZE: &str = "size=16m";

/// A mounted file system; unmounted when dropped.
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "tmpfs"])
            .arg(folder)
            .output()
            .context("`mount`")?;
        let message = String::from_utf8_lossy(&mounted.stderr);
        ensure!(
            mounted.status.success(),
            "a tmpfs cannot be mounted: {}",
            message.trim()
        );
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Fills the disk to the last byte.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut ballast = std::fs::File::create(self.ballast())?;
        for block in [64 << 10, 1 << 10, 1] {
            while ballast.write_all(&vec![0; block]).is_ok() {}
        }
        Ok(())
    }

    pub(crate) fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast())?)
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmount lazily: a process that hangs must not keep the mount.
        let _gone_already = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}
