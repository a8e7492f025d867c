//! One set-up at a time: two `cargo xtask` on one machine must not fill the same cache folder at once.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::progress;

/// Holds the lock until dropped. The system frees it if the program dies.
pub(crate) struct Lock {
    _file: File,
}

/// Waits until no other program holds the lock of this name.
pub(crate) fn hold(cache: &Path, name: &str) -> Result<Lock> {
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let path = cache.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    if file.try_lock().is_err() {
        progress::say(name, "another set-up is running; waiting for it");
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(Lock { _file: file })
}
