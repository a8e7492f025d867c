//! The lock of an agent's data folder.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

/// The lock file of a running agent, however it was started. It contains the process id of that agent.
pub(crate) const LOCK_FILE: &str = "agent.lock";

/// Returns the id of the process that holds the lock of a data folder, or `None` if the lock is free.
#[must_use]
pub fn lock_holder(data_dir: &Path) -> Option<i32> {
    let path = data_dir.join(LOCK_FILE);
    let file = File::open(&path).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(_) => std::fs::read_to_string(&path).ok()?.trim().parse().ok(),
    }
}
