//! Finds files on this machine: the data folder, and in it the admin token, with which the CLI works without a login.

use std::path::PathBuf;

/// Returns the default data folder of a collector: `/var/lib/lockstep` for root, otherwise in the user's data folder.
pub(crate) fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/lockstep");
    }
    dirs::data_dir()
        .unwrap_or_else(|| PathBuf::from("."))
        .join("lockstep")
}

/// Returns the data folder that `LOCKSTEP_DATA` names, or the default one.
pub(crate) fn data_dir() -> PathBuf {
    std::env::var_os("LOCKSTEP_DATA").map_or_else(default_data_dir, PathBuf::from)
}

/// Returns the admin token that a collector on this machine wrote, if this user can read it.
pub(crate) fn local_token() -> Option<String> {
    let text = std::fs::read_to_string(data_dir().join("admin.token")).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
