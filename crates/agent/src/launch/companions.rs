//! The companions of a training process, embedded in the binary: the probe and the recipes. The agent unpacks them where Python finds them.
//!
//! The folder is `DATA/lib/SHA256/{inject,recipes}`, named by a hash of its content. So two versions of the agent can run side by side, and
//! a running training keeps the probe with which it started. Folders have mode 0755, files 0444. Every launch compares each file with the
//! embedded one.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rust_embed::RustEmbed;
use sha2::{Digest, Sha256};

/// The Python package and the recipes, without their tests.
#[derive(RustEmbed)]
#[folder = "../torch-probe/"]
#[include = "inject/*"]
#[include = "recipes/*"]
#[exclude = "*__pycache__*"]
#[exclude = "*.pyc"]
struct Embedded;

/// Why the companions cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CompanionsError {
    /// Unpacking failed.
    #[error(
        "cannot unpack the training companions to {path:?}; check the free space and the permissions of the data folder"
    )]
    Unpack {
        /// The folder to unpack to.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// A file was changed after it was unpacked, or belongs to another user.
    #[error(
        "{path:?} was changed after this agent unpacked it, or belongs to another user; remove its folder to unpack it again"
    )]
    Changed {
        /// The changed file.
        path: PathBuf,
    },
}

/// Unpacks the companions if needed, verifies them, and returns their folder.
///
/// # Errors
/// If the files cannot be written, or differ from the embedded files.
pub fn unpack(data_dir: &Path) -> Result<PathBuf, CompanionsError> {
    let files = embedded();
    let lib = data_dir.join("lib");
    let folder = lib.join(digest(&files));
    if !folder.exists() {
        let beside = lib.join(format!(".unpacking-{}", std::process::id()));
        let unpacked = write_all(&beside, &files).and_then(|()| std::fs::rename(&beside, &folder));
        // Another agent with the same data folder may have created the folder first.
        if let Err(source) = unpacked.or_else(|error| if folder.exists() { Ok(()) } else { Err(error) }) {
            return Err(CompanionsError::Unpack { path: folder, source });
        }
    }
    verify(&folder, &files)?;
    Ok(folder)
}

fn embedded() -> BTreeMap<String, Vec<u8>> {
    Embedded::iter()
        .filter_map(|name| Some((name.to_string(), Embedded::get(&name)?.data.into_owned())))
        .collect()
}

/// Computes a hash over names and contents, each preceded by its length, so that different sets of files give different hashes.
fn digest(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in files {
        for part in [name.as_bytes(), bytes] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex::encode(hash.finalize())
}

fn write_all(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)?;
        for made in parent.ancestors().take_while(|made| made.starts_with(folder)) {
            std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o755))?;
        }
        std::fs::write(&path, bytes)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444))?;
    }
    Ok(())
}

fn verify(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), CompanionsError> {
    let own = rustix::process::geteuid().as_raw();
    for (name, bytes) in files {
        let path = folder.join(name);
        let trusted = std::fs::symlink_metadata(&path)
            .is_ok_and(|meta| meta.is_file() && meta.uid() == own && meta.mode() & 0o022 == 0);
        if !trusted || std::fs::read(&path).ok().as_ref() != Some(bytes) {
            return Err(CompanionsError::Changed { path });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn they_are_unpacked_once_and_a_change_is_noticed() {
        let data = tempfile::tempdir().unwrap();
        let folder = unpack(data.path()).unwrap();
        assert_eq!(unpack(data.path()).unwrap(), folder);
        let probe = folder.join("inject/sitecustomize.py");
        assert!(!folder.join("tests").exists());
        for recipe in domain::run::recipe::RECIPES {
            assert!(
                folder.join("recipes").join(recipe.name).join("main.py").exists(),
                "{}",
                recipe.name
            );
        }
        assert_eq!(std::fs::metadata(&probe).unwrap().mode() & 0o777, 0o444);
        std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::write(&probe, "import evil").unwrap();
        assert!(matches!(unpack(data.path()), Err(CompanionsError::Changed { path }) if path == probe));
    }
}
