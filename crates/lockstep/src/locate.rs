//! Where things are on this machine: the data folder, and through it the token that makes the CLI just work.

use std::path::{Path, PathBuf};

/// The folder of a collector that was not told another: `/var/lib/lockstep` for root, else the user's data folder.
pub(crate) fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/lockstep");
    }
    dirs::data_dir()
        .unwrap_or_else(|| PathBuf::from("."))
        .join("lockstep")
}

/// The admin token a collector on this machine left for its user, if it can be read.
pub(crate) fn local_token(data_dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data_dir.join("admin.token")).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
