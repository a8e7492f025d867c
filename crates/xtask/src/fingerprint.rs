//! One hash over files and words, to decide whether earlier results are still valid.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// Collects the inputs of a result.
#[derive(Default)]
pub(crate) struct Fingerprint {
    hash: Sha256,
}

impl Fingerprint {
    /// Adds a word such as a version or an option.
    pub(crate) fn word(mut self, word: &str) -> Self {
        self.part(word.as_bytes());
        self
    }

    /// Adds a file, or all files below a folder in a fixed order, except below the folders in `without`. Paths are relative to that folder,
    /// so that every checkout of the same files has the same hash.
    pub(crate) fn path(mut self, path: &Path, without: &[PathBuf]) -> Result<Self> {
        for file in files(path, without)? {
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = file.strip_prefix(path).unwrap_or(&file);
            self.part(name.as_os_str().as_encoded_bytes());
            self.part(&bytes);
        }
        Ok(self)
    }

    /// Adds the contents of a file, independent of its path.
    pub(crate) fn contents(mut self, file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.part(&bytes);
        Ok(self)
    }

    /// Returns the hash in hexadecimal.
    pub(crate) fn hex(self) -> String {
        hex::encode(self.hash.finalize())
    }

    /// The length is hashed too, so that moving a byte from one part to the next changes the hash.
    fn part(&mut self, bytes: &[u8]) {
        self.hash.update(bytes.len().to_le_bytes());
        self.hash.update(bytes);
    }
}

/// Returns all files at or below a path, sorted.
pub(crate) fn files(path: &Path, without: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            if without.contains(&path) {
                continue;
            }
            if path.is_dir() {
                folders.push(path)
            } else {
                found.push(path)
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_changed_file_changes_the_hash_and_an_excluded_one_does_not() {
        let folder = std::env::temp_dir().join(format!("xtask-fingerprint-{}", std::process::id()));
        let dist = folder.join("dist");
        fs::create_dir_all(&dist).unwrap();
        let hash = || {
            Fingerprint::default()
                .path(&folder, std::slice::from_ref(&dist))
                .unwrap()
                .hex()
        };
        fs::write(folder.join("a"), "one").unwrap();
        let first = hash();
        fs::write(dist.join("b"), "ignored").unwrap();
        assert_eq!(hash(), first);
        fs::write(folder.join("a"), "two").unwrap();
        assert_ne!(hash(), first);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn two_checkouts_of_the_same_files_have_one_hash() {
        let folder = std::env::temp_dir().join(format!("xtask-fingerprint-two-{}", std::process::id()));
        let hash = |checkout: &str, name: &str| {
            let root = folder.join(checkout);
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join(name), "text").unwrap();
            Fingerprint::default().path(&root, &[]).unwrap().hex()
        };
        assert_eq!(hash("one", "a"), hash("two", "a"));
        assert_ne!(hash("three", "b"), hash("two", "a"), "a name counts");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn words_do_not_run_together() {
        assert_ne!(
            Fingerprint::default().word("ab").word("c").hex(),
            Fingerprint::default().word("a").word("bc").hex()
        );
    }
}
