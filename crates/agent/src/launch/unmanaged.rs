//! Training that was not started by Lockstep: ranks that torchrun or a Slurm script started by hand. The agent finds them among the node's
//! processes and watches them as a run, but cannot control them.
//!
//! ```text
//! /proc, every 10 s ──▶ new processes ──▶ claim: RANK, WORLD_SIZE, … and no LOCKSTEP_RUN ──▶ job (run, this node's ranks)
//!                                                                                              │ watch.json, shim.reports
//!      pidfds of ranks ──▶ exits, until the parent reaps them ─────────────────────────────────┘ as `lockstep exec` writes them
//!                                                                                              ▼
//!                                                                               supervise, and the collector
//! ```
//! The agent acts as the shim of these runs: it holds the lock of the folder while it watches. There is no `launch.json`, so the next agent
//! does not report the run as failed. It finds the ranks by `gang.json` and continues to watch them.
//!
//! Only one agent watches a node. A second agent, such as one in a test, would report the same ranks under another node's name.

mod claim;
mod job;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ident::{NodeName, RunId};
use domain::topology::Inventory;
use shim::time::wait_for;
use shim::{Folder, Stat, all_processes, environment};
use tokio::sync::watch as seen;
use tokio_util::sync::CancellationToken;

use self::claim::Claim;
use self::job::UnmanagedJob;

/// Interval between scans for new processes. A shorter training is not worth a page.
const SCAN: Duration = Duration::from_secs(10);
/// Maximum wait for an exit before the shutdown is checked.
const WAIT: Duration = Duration::from_secs(1);
/// Maximum number of jobs that are watched at once; a node has far fewer GPUs than this. Additional jobs are not watched.
const JOBS_MAX: usize = 16;
/// Maximum number of ranks of one job on one node. torchrun starts one per GPU.
const RANKS_MAX: usize = 64;
/// How often a process is examined. A process that was just forked still shows its parent's environment; the second time it shows its own.
const EXAMINATIONS: u8 = 2;
/// How many ancestors of a process are checked for the same rank.
const ANCESTORS_MAX: usize = 8;

/// The settings of the watcher.
pub(crate) struct Setting {
    pub(crate) node: NodeName,
    pub(crate) data_dir: PathBuf,
    /// Whether a person enabled or disabled watching. `None`: watch if the node has real GPUs.
    pub(crate) watch_jobs: Option<bool>,
    pub(crate) inventory: seen::Receiver<Arc<Inventory>>,
    /// True once the search for GPUs has finished.
    pub(crate) settled: seen::Receiver<bool>,
}

/// Watches until `shutdown`, if watching is enabled.
pub(crate) async fn watch(mut setting: Setting, shutdown: CancellationToken) {
    let wished = tokio::select! {
        () = shutdown.cancelled() => return,
        wished = setting.is_wished() => wished,
    };
    if !wished {
        return;
    }
    let watching = tokio::task::spawn_blocking(move || match only_one() {
        Ok(Some(_lock)) => Watcher::new(setting).run(&shutdown),
        Ok(None) => tracing::info!("another agent of this machine watches the jobs that are started by hand"),
        Err(error) => tracing::warn!(%error, "jobs that are started by hand are not watched"),
    });
    let _ended = watching.await;
}

impl Setting {
    async fn is_wished(&mut self) -> bool {
        if let Some(watch_jobs) = self.watch_jobs {
            return watch_jobs;
        }
        let _known = self.settled.wait_for(|settled| *settled).await;
        let inventory = self.inventory.borrow();
        inventory.simulated.is_none() && !inventory.gpus.is_empty()
    }
}

/// Takes the lock of the agent that watches this machine. There is one lock per user.
fn only_one() -> io::Result<Option<File>> {
    let user = rustix::process::geteuid().as_raw();
    shim::lock_file(&std::env::temp_dir().join(format!("lockstep-jobs-{user}.lock")))
}

/// The processes that were examined, and the jobs that were found.
struct Watcher {
    node: NodeName,
    data_dir: PathBuf,
    /// How often each process was examined.
    seen: HashMap<i32, u8>,
    jobs: BTreeMap<RunId, UnmanagedJob>,
}

impl Watcher {
    fn new(setting: Setting) -> Self {
        Self {
            node: setting.node,
            data_dir: setting.data_dir,
            seen: HashMap::new(),
            jobs: BTreeMap::new(),
        }
    }

    fn run(mut self, shutdown: &CancellationToken) {
        self.adopt();
        let mut scanned = None::<Instant>;
        while !shutdown.is_cancelled() {
            if scanned.is_none_or(|at| at.elapsed() >= SCAN) {
                scanned = Some(Instant::now());
                self.scan();
            }
            self.wait();
            self.jobs.retain(|run, job| match job.tick() {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    tracing::error!(%run, %error, "a job cannot be watched any more; is the disk full?");
                    false
                }
            });
        }
    }

    /// Adopts the jobs of the previous agent.
    fn adopt(&mut self) {
        for (run, _, folder) in Folder::all(&self.data_dir).unwrap_or_default() {
            match UnmanagedJob::adopt(folder) {
                Ok(Some(job)) => {
                    tracing::info!(%run, "continuing to watch a job that was started by hand");
                    self.seen.extend(job.pids().map(|pid| (pid, EXAMINATIONS)));
                    self.jobs.insert(run, job);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%run, %error, "a job of an earlier agent cannot be watched"),
            }
        }
    }

    /// Examines new processes. The initial environment of a process does not change, and process ids are reused only after millions of
    /// processes.
    fn scan(&mut self) {
        let all: HashSet<i32> = all_processes().collect();
        self.seen.retain(|pid, _| all.contains(pid));
        for pid in all {
            let examined = self.seen.entry(pid).or_default();
            if *examined == EXAMINATIONS {
                continue;
            }
            *examined += 1;
            if let Some(claim) = Claim::of(&environment(pid), self.node.as_str())
                && is_first(pid, &claim, self.node.as_str())
                && let Err(error) = self.note(pid, &claim)
            {
                tracing::warn!(pid, run = %claim.run, %error, "a rank that was started by hand cannot be watched");
            }
        }
    }

    fn note(&mut self, pid: i32, claim: &Claim) -> io::Result<()> {
        let room = self.jobs.len() < JOBS_MAX;
        let launcher = || Stat::read(pid).map_or(0, |stat| stat.parent);
        match self.jobs.get_mut(&claim.run) {
            Some(job) if job.has_room(RANKS_MAX) => job.note(pid, claim),
            None if room => {
                let mut job = UnmanagedJob::watch(&self.data_dir, claim, pid, launcher())?;
                tracing::info!(run = %claim.run, "watching a job that was started by hand");
                job.note(pid, claim)?;
                self.jobs.insert(claim.run.clone(), job);
                Ok(())
            }
            _ => Err(io::Error::other("too many jobs or ranks are watched already")),
        }
    }

    /// Waits until a rank ends, at most one second.
    fn wait(&self) {
        let living = self.jobs.values().flat_map(UnmanagedJob::living);
        let _woken = wait_for(living.map(AsFd::as_fd), WAIT);
    }
}

/// Returns true if no ancestor claims the same rank. Child processes of a rank inherit its variables, so only the topmost process is the
/// rank.
fn is_first(pid: i32, claim: &Claim, node: &str) -> bool {
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        let Some(stat) = Stat::read(pid).filter(|stat| stat.parent > 1) else {
            return true;
        };
        pid = stat.parent;
        if Claim::of(&environment(pid), node)
            .is_some_and(|parent| parent.rank == claim.rank && parent.place == claim.place)
        {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
