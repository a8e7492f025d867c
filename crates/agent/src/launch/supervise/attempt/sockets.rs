//! Reads the TCP connections between the ranks of an attempt on this node and its peers on other nodes.
//!
//! ```text
//! /proc/PID/fd              the ranks and their descendants ─▶ inodes of sockets
//! sock_diag                 the connections with these inodes ─▶ series by interface and peer
//! ```
//! Every 10 s, and each second while the ranks wait for each other.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::ident::RunId;
use domain::time::TimestampMs;

use crate::launch::preflight::nics::interface_by_address;
use crate::sample::Samples;
use crate::sample::sockets::{PeerTraffic, connections};

const USUAL_PERIOD: Duration = Duration::from_secs(10);
const WAITING_PERIOD: Duration = Duration::from_secs(1);
/// Ticks are not exact. A reading that is due within this time is not left to the next tick.
const TOLERANCE: Duration = Duration::from_millis(200);
/// Readings may take this share of the time: the inverse. On a machine with very many connections they become rare.
const COST_DIVISOR: u32 = 100;
/// Ranks that wait for more than this share of their steps are read each second.
const WAIT_SHARE_RAISED: f64 = 0.1;
/// The weight of one step in the share.
const STEP_WEIGHT: f64 = 0.1;
/// The maximum number of processes whose sockets are read: ranks, their loaders and helpers.
const PROCESSES_MAX: usize = 1_024;
/// The maximum number of open files that are read of one process.
const FILES_MAX: usize = 16_384;

/// The connections of one attempt's ranks on this node.
#[derive(Debug)]
pub(super) struct RankSockets {
    root: PathBuf,
    run: RunId,
    traffic: PeerTraffic,
    /// The share of a step for which the ranks wait for each other, averaged over recent steps.
    wait_share: f64,
    inodes: HashSet<u32>,
    interfaces: HashMap<IpAddr, String>,
    /// When the inodes and interfaces were read.
    listed_at: Option<Instant>,
    read_at: Option<Instant>,
    /// The duration of the last reading.
    took: Duration,
    failure_logged: bool,
}

impl RankSockets {
    /// Reads `/proc` below `root`.
    pub(super) fn new(root: &Path, run: &RunId) -> Self {
        Self {
            root: root.to_owned(),
            run: run.clone(),
            traffic: PeerTraffic::new(run),
            wait_share: 0.0,
            inodes: HashSet::new(),
            interfaces: HashMap::new(),
            listed_at: None,
            read_at: None,
            took: Duration::ZERO,
            failure_logged: false,
        }
    }

    /// Takes the duration of a rank's step, and its wait for other ranks.
    pub(super) fn note_step(&mut self, step_s: Option<f64>, sync_s: Option<f64>) {
        let (Some(step_s), Some(sync_s)) = (step_s.filter(|seconds| *seconds > 0.0), sync_s) else {
            return;
        };
        let share = (sync_s / step_s).clamp(0.0, 1.0);
        self.wait_share += STEP_WEIGHT * (share - self.wait_share);
    }

    /// Reads the connections of these processes if a reading is due. Called once per second.
    pub(super) fn tick(&mut self, ranks: Vec<u32>, now_ms: TimestampMs, samples: &Samples) {
        let now = Instant::now();
        if ranks.is_empty() || !is_due(self.read_at, self.period(), now) {
            return;
        }
        self.read_at = Some(now);
        if is_due(self.listed_at, USUAL_PERIOD, now) {
            self.listed_at = Some(now);
            self.inodes = inodes(&self.root, ranks);
            self.interfaces = interface_by_address();
        }
        match connections(&self.inodes) {
            Ok(found) => self.traffic.read(&found, &self.interfaces, now, now_ms, samples),
            Err(error) => self.log_failure(&error),
        }
        self.took = now.elapsed();
    }

    fn period(&self) -> Duration {
        let period = if self.wait_share > WAIT_SHARE_RAISED {
            WAITING_PERIOD
        } else {
            USUAL_PERIOD
        };
        period.max(self.took * COST_DIVISOR)
    }

    fn log_failure(&mut self, error: &io::Error) {
        if !self.failure_logged {
            self.failure_logged = true;
            tracing::warn!(run = %self.run, %error, "the ranks' connections cannot be read; a slow link between nodes is not found");
        }
    }
}

fn is_due(last: Option<Instant>, period: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) + TOLERANCE >= period)
}

/// Returns the inodes of the sockets of these processes and their descendants. A process that cannot be read has none.
fn inodes(root: &Path, mut todo: Vec<u32>) -> HashSet<u32> {
    let (mut seen, mut found) = (HashSet::new(), HashSet::new());
    while let Some(pid) = todo.pop() {
        if seen.len() >= PROCESSES_MAX || !seen.insert(pid) {
            continue;
        }
        let folder = root.join("proc").join(pid.to_string());
        found.extend(sockets(&folder));
        todo.extend(children(&folder));
    }
    found
}

/// Reads the links `socket:[INODE]` of a process.
fn sockets(folder: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(folder.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let inode = |file: std::fs::DirEntry| {
        let target = std::fs::read_link(file.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    };
    files.take(FILES_MAX).filter_map(inode).collect()
}

fn children(folder: &Path) -> Vec<u32> {
    let threads = std::fs::read_dir(folder.join("task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let parse = |list: String| -> Vec<u32> {
        let words = list.split_ascii_whitespace();
        words.filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(parse).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::ident::Rank;
    use domain::run::state::NodeReport;
    use shim::Entry;

    use super::super::usage::RankUsage;
    use super::*;

    #[test]
    fn the_sockets_of_ranks_and_their_descendants_are_found() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: u32, children: &str, files: &[&str]| {
            let folder = root.path().join(format!("proc/{pid}"));
            let task = folder.join(format!("task/{pid}"));
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("children"), children).unwrap();
            std::fs::create_dir_all(folder.join("fd")).unwrap();
            for (number, target) in files.iter().enumerate() {
                std::os::unix::fs::symlink(target, folder.join(format!("fd/{number}"))).unwrap();
            }
        };
        process(40, "41 42 ", &["/dev/null", "socket:[7]"]);
        // A loader shares a socket with its rank.
        process(41, "", &["socket:[7]", "socket:[8]", "pipe:[9]"]);
        process(42, "40", &["anon_inode:[eventpoll]", "socket:[oops]"]);
        process(50, "", &["socket:[10]"]);
        let found = inodes(root.path(), vec![40, 99]);
        assert_eq!(found, HashSet::from([7, 8]));
    }

    #[test]
    fn connections_are_read_more_often_while_ranks_wait_and_seldom_if_it_is_costly() {
        let mut sockets = RankSockets::new(Path::new("/"), &RunId::new("r").unwrap());
        assert_eq!(sockets.period(), USUAL_PERIOD);
        for _ in 0..3 {
            sockets.note_step(Some(5.0), Some(3.6));
            sockets.note_step(Some(0.0), Some(3.6));
            sockets.note_step(Some(5.0), None);
        }
        assert_eq!(sockets.period(), WAITING_PERIOD);
        sockets.took = Duration::from_millis(60);
        assert_eq!(sockets.period(), Duration::from_secs(6));
        for _ in 0..40 {
            sockets.note_step(Some(0.1), Some(0.001));
        }
        assert_eq!(sockets.period(), USUAL_PERIOD);
    }

    #[test]
    fn a_reading_is_due_at_its_first_tick_and_then_after_its_period() {
        let begun = Instant::now();
        assert!(is_due(None, USUAL_PERIOD, begun));
        let due_after = |millis: u64| {
            let now = begun + Duration::from_millis(millis);
            is_due(Some(begun), USUAL_PERIOD, now)
        };
        assert!(!due_after(9_000) && due_after(9_900) && due_after(10_000));
    }

    #[test]
    fn a_rank_that_has_ended_is_not_read() {
        let run = RunId::new("r").unwrap();
        let mut usage = RankUsage::new(Path::new("/"), &run);
        let mut sockets = RankSockets::new(Path::new("/"), &run);
        let entry = |report| Entry {
            id: 1,
            at_ms: 1,
            report,
        };
        let started = NodeReport::RankStarted {
            rank: Rank(3),
            local_rank: 0,
            pid: 42,
        };
        usage.note(&[entry(started)]);
        assert_eq!(usage.pids(), [42]);
        let exit = domain::run::state::RankExit {
            rank: Rank(3),
            ..Default::default()
        };
        usage.note(&[entry(NodeReport::RankExited(exit))]);
        sockets.tick(usage.pids(), 1_000, &Samples::new());
        assert_eq!(sockets.read_at, None);
    }
}
