//! Finds files on this machine: the data folder, and in it the admin token, with which the CLI works without a login.

use std::path::{Path, PathBuf};

/// Returns the default data folder of a collector: `/var/lib/lockstep` for root, otherwise in the user's data folder.
pub(crate) fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/lockstep");
    }
    dirs::data_dir()
        .unwrap_or_else(|| PathBuf::from("."))
        .join("lockstep")
}

/// Returns the admin token that a collector on this machine wrote, if this user can read it.
pub(crate) fn local_token(data_dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data_dir.join("admin.token")).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
