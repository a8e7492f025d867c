//! The lock of an agent's data folder.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FlockOperation;

/// The lock file of a running agent, however it was started. It contains the process id of that agent.
pub(crate) const LOCK_FILE: &str = "agent.lock";

/// Returns a text that identifies the lock file of a data folder until the machine's next boot, or an empty text if this is not possible.
/// Two machines never have the same, also if one is a clone of the other.
pub(crate) fn lock_id(data_dir: &Path) -> String {
    let boot = shim::boot_id().replace('-', "");
    match std::fs::metadata(data_dir.join(LOCK_FILE)) {
        Ok(file) if !boot.is_empty() => format!("{boot}:{:x}:{:x}", file.dev(), file.ino()),
        _ => String::new(),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_its_id_and_each_folder_has_another() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        assert_eq!(lock_id(folders[0].path()), "", "there is no lock file");
        for folder in &folders {
            std::fs::write(folder.path().join(LOCK_FILE), "7\n").expect("a file");
        }
        let [first, second] = folders.each_ref().map(|folder| lock_id(folder.path()));
        assert!(!first.is_empty() && first != second, "{first}, {second}");
        // An agent writes its process id into the file of the agent before it.
        std::fs::write(folders[0].path().join(LOCK_FILE), "8\n").expect("a file");
        assert_eq!(lock_id(folders[0].path()), first);
    }
}
