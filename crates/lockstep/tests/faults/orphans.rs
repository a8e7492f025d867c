//! Processes that a run has left behind: none may be there once it has ended, whatever died in between.

use std::time::{Duration, Instant};

use crate::product::process::{mentions, processes};

/// An ended run is told when nothing is left of it, but a node that comes back ends what it finds only then: it connects, which it
/// tries twice a minute, then come SIGTERM, 30 s of grace and SIGKILL.
const GONE_WITHIN: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);

/// What is left of a run after the time it may take: process ids with their command lines.
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

/// Ranks and torchrun by the variable each process of a run is given and hands on; the shim by its folder.
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
