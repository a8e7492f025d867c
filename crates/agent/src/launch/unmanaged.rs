//! Training that nobody told Lockstep of: ranks that torchrun or a Slurm script started by hand, found among the node's processes
//! and watched as a run, minus all control.
//!
//! ```text
//! /proc, every 10 s ──▶ new processes ──▶ claim: RANK, WORLD_SIZE, … and no LOCKSTEP_RUN ──▶ gang (run, this node's ranks)
//!                                                                                              │ watch.json, shim.reports
//!      pidfds of ranks ──▶ exits, as long as nobody has taken them ────────────────────────────┘ as `lockstep exec` writes them
//!                                                                                              ▼
//!                                                                               supervise, and the collector
//! ```
//! The agent is the shim of these runs: it holds the lock of the folder while it watches. There is no `launch.json`, so that the
//! next agent does not take a run for dead whose watcher was replaced; it finds the ranks by `gang.json` and watches on.
//!
//! A node is watched by one agent: a test's, or a second one beside it, would tell of the same ranks under another node's name.

mod claim;
mod gang;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ident::{NodeName, RunId};
use domain::topology::Inventory;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use shim::{Folder, Stat, all_processes, environment};
use tokio::sync::watch as seen;
use tokio_util::sync::CancellationToken;

use self::claim::Claim;
use self::gang::Gang;

/// How often new processes are looked for: a training that ends sooner is not worth a page.
const SCAN: Duration = Duration::from_secs(10);
/// The longest wait for an exit before the shutdown is looked at.
const WAIT: Duration = Duration::from_secs(1);
/// Gangs watched at once; a node has fewer GPUs than this by far. What comes beyond is not watched.
const GANGS_MAX: usize = 16;
/// Ranks of one gang on one node; torchrun starts one for each GPU.
const RANKS_MAX: usize = 64;
/// A process that was just forked still shows its parent's environment: the second look sees its own.
const LOOKS: u8 = 2;
/// Where a process's ancestors are looked at for the same rank.
const ANCESTORS_MAX: usize = 8;

/// What the watching needs to know.
pub(crate) struct Setting {
    pub(crate) node: NodeName,
    pub(crate) data_dir: PathBuf,
    /// What a person says; else real GPUs decide.
    pub(crate) wish: Option<bool>,
    pub(crate) inventory: seen::Receiver<Arc<Inventory>>,
    /// Whether the GPUs have been looked for.
    pub(crate) settled: seen::Receiver<bool>,
}

/// Watches until `shutdown`, where that is wished.
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
        if let Some(wish) = self.wish {
            return wish;
        }
        let _known = self.settled.wait_for(|settled| *settled).await;
        let inventory = self.inventory.borrow();
        inventory.simulated.is_none() && !inventory.gpus.is_empty()
    }
}

/// Held by the agent that watches on this machine, for each user one.
fn only_one() -> io::Result<Option<File>> {
    let user = rustix::process::geteuid().as_raw();
    let path = std::env::temp_dir().join(format!("lockstep-jobs-{user}.lock"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The processes that were looked at, and what was found.
struct Watcher {
    node: NodeName,
    data_dir: PathBuf,
    /// How often a process was looked at.
    seen: HashMap<i32, u8>,
    gangs: BTreeMap<RunId, Gang>,
}

impl Watcher {
    fn new(setting: Setting) -> Self {
        Self {
            node: setting.node,
            data_dir: setting.data_dir,
            seen: HashMap::new(),
            gangs: BTreeMap::new(),
        }
    }

    fn run(mut self, shutdown: &CancellationToken) {
        self.take_up();
        let mut scanned = None::<Instant>;
        while !shutdown.is_cancelled() {
            if scanned.is_none_or(|at| at.elapsed() >= SCAN) {
                scanned = Some(Instant::now());
                self.scan();
            }
            self.wait();
            self.gangs.retain(|run, gang| match gang.tick() {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    tracing::error!(%run, %error, "a job cannot be watched any more; is the disk full?");
                    false
                }
            });
        }
    }

    /// Those of the agent before this one.
    fn take_up(&mut self) {
        for (run, _, folder) in Folder::all(&self.data_dir).unwrap_or_default() {
            match Gang::take_up(folder) {
                Ok(Some(gang)) => {
                    tracing::info!(%run, "a job that was started by hand is watched on");
                    self.seen.extend(gang.pids().map(|pid| (pid, LOOKS)));
                    self.gangs.insert(run, gang);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%run, %error, "a job of an earlier agent cannot be watched"),
            }
        }
    }

    /// What a process was started with does not change, and numbers are given again after millions.
    fn scan(&mut self) {
        let all: HashSet<i32> = all_processes().collect();
        self.seen.retain(|pid, _| all.contains(pid));
        for pid in all {
            let looks = self.seen.entry(pid).or_default();
            if *looks == LOOKS {
                continue;
            }
            *looks += 1;
            if let Some(claim) = Claim::of(&environment(pid), self.node.as_str())
                && is_first(pid, &claim, self.node.as_str())
                && let Err(error) = self.note(pid, &claim)
            {
                tracing::warn!(pid, run = %claim.run, %error, "a rank that was started by hand cannot be watched");
            }
        }
    }

    fn note(&mut self, pid: i32, claim: &Claim) -> io::Result<()> {
        let room = self.gangs.len() < GANGS_MAX;
        let launcher = || Stat::read(pid).map_or(0, |stat| stat.parent);
        match self.gangs.get_mut(&claim.run) {
            Some(gang) if gang.has_room(RANKS_MAX) => gang.note(pid, claim),
            None if room => {
                let mut gang = Gang::found(&self.data_dir, claim, pid, launcher())?;
                tracing::info!(run = %claim.run, "a job that was started by hand is watched");
                gang.note(pid, claim)?;
                self.gangs.insert(claim.run.clone(), gang);
                Ok(())
            }
            _ => Err(io::Error::other("there are too many already")),
        }
    }

    /// Until a rank ends, or for a second.
    fn wait(&self) {
        let living = self.gangs.values().flat_map(Gang::living);
        let mut fds: Vec<PollFd<'_>> = living.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(WAIT.as_secs()).unwrap_or(1),
            tv_nsec: 0,
        };
        if fds.is_empty() {
            std::thread::sleep(WAIT);
        } else {
            let _woken = rustix::event::poll(&mut fds, Some(&timeout));
        }
    }
}

/// What a rank starts inherits its variables: only the first on the way down is the rank.
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
