//! Processes that a run has left. When a run has ended, there must be none, whatever died before.

use std::time::{Duration, Instant};

use crate::product::process::{mentions, processes};

/// A run is reported as ended when nothing is left of it. But a node that comes back cleans up only then: it tries to connect twice per
/// minute, and then come SIGTERM, 30 s of grace and SIGKILL.
const GONE_WITHIN: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);

/// Returns the processes of a run that are left after the allowed time: process IDs with their command lines.
pub(crate) fn left_of(run: &str) -> Vec<String> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let left = living(run);
        if left.is_empty() || Instant::now() > deadline {
            return left.into_iter().map(described).collect();
        }
        std::thread::sleep(POLL);
    }
}

/// Finds ranks and torchrun by a variable that each process of a run inherits, and the shim by its folder.
fn living(run: &str) -> Vec<i32> {
    let variable = format!("LOCKSTEP_RUN={run}\0");
    let folder = format!("/runs/{run}.");
    let belongs = |pid: &i32| mentions(*pid, variable.as_bytes()) || mentions(*pid, folder.as_bytes());
    processes().into_iter().filter(belongs).collect()
}

fn described(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} {line}")
}
