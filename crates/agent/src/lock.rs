//! The lock of an agent's data folder: who holds it.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

/// Held by a living agent, whoever started it; its contents are that agent's process id.
pub(crate) const LOCK_FILE: &str = "agent.lock";

/// The process that holds the lock of a data folder, if one does.
#[must_use]
pub fn lock_holder(data_dir: &Path) -> Option<i32> {
    let path = data_dir.join(LOCK_FILE);
    let file = File::open(&path).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(_) => std::fs::read_to_string(&path).ok()?.trim().parse().ok(),
    }
}
