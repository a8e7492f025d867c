//! The end of the lab before all trials are done.

use std::path::Path;

use super::setting;
use crate::fault_run::now_ms;

/// Returns true if the lab must end now, because it was asked to or the command that started it is gone. Trials in progress are given up.
pub(super) fn must_end() -> bool {
    let is_asked = setting("STOP_FILE").is_some_and(|file| Path::new(&file).exists());
    let is_orphan = setting("OWNER").is_some_and(|pid| !Path::new("/proc").join(pid).exists());
    is_asked || is_orphan
}

/// Returns true if no other trial may start.
pub(super) fn starts_no_more() -> bool {
    must_end() || setting("UNTIL_MS").is_some_and(|until_ms| now_ms() >= until_ms.parse::<i64>().unwrap())
}
