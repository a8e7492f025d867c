//! Folders for measurements: creates empty ones, and reads their size on disk.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::fingerprint;

/// `stat` counts blocks of 512 bytes, whatever block size the file system has.
const BLOCK_BYTES: u64 = 512;

/// Empties a folder, or creates it.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Returns the bytes on disk of all files below a folder whose path satisfies `counts`. A file that disappears meanwhile (after a merge)
/// counts as 0.
pub(crate) fn bytes(folder: &Path, counts: impl Fn(&Path) -> bool) -> Result<u64> {
    let files = listed(folder)?;
    let blocks = files
        .iter()
        .filter(|file| counts(file))
        .filter_map(|file| fs::metadata(file).ok())
        .map(|metadata| metadata.blocks());
    Ok(blocks.sum::<u64>() * BLOCK_BYTES)
}

/// Lists a folder. A folder that disappears during the listing causes an error; merges end, so the next try succeeds.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    const TRIES: usize = 20;
    for _ in 1..TRIES {
        if let Ok(files) = fingerprint::files(folder, &[]) {
            return Ok(files);
        }
    }
    fingerprint::files(folder, &[])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn only_what_counts_is_counted() {
        let folder = std::env::temp_dir().join(format!("xtask-disk-{}", std::process::id()));
        empty(&folder).unwrap();
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("deep/a.db"), vec![7; 100_000]).unwrap();
        fs::write(folder.join("wal-1.db"), vec![7; 50_000]).unwrap();
        let (all, wal) = (
            bytes(&folder, |_| true).unwrap(),
            bytes(&folder, |file| file.ends_with("wal-1.db")).unwrap(),
        );
        assert!(all >= 150_000 && (50_000..90_000).contains(&wal), "{all} {wal}");
        empty(&folder).unwrap();
        assert_eq!(bytes(&folder, |_| true).unwrap(), 0);
        fs::remove_dir_all(folder).unwrap();
    }
}
