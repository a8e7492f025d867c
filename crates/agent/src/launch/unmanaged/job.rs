//! The ranks of one job on this node, and the reports about them.
//!
//! A rank's exit status can be read only between its death and the moment at which its parent reaps it. torchrun checks several times per
//! second, and the rank's pidfd wakes the agent at once. If the agent misses a status, the job's result is unknown and is reported as such.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::state::{EndCause, NodeEnd, NodeReport, Watched};
use serde::{Deserialize, Serialize};
use shim::{Folder, Process, RankProcess, Reports, SHIM_IDS_FROM, boot_id, files, newly_ended, read_from};

use super::claim::Claim;
use crate::launch::watched::{next_attempt, program_of, shell_line};
use crate::uplink::link::now_ms;

/// How long to wait for new ranks if the launcher lives after a rank failed: a rendezvous with other nodes may take minutes.
const RESTARTED_WITHIN: Duration = Duration::from_secs(600);
/// How long to wait for another rank if the launcher lives and no rank failed.
const LAST_RANK_WITHIN: Duration = Duration::from_secs(20);
/// Maximum length of a command line, which is only for people. A longer one is cut.
const COMMAND_BYTES_MAX: usize = 16 << 10;

/// A job's ranks on this node.
pub(super) struct UnmanagedJob {
    folder: Folder,
    reports: Reports,
    /// Held while this agent watches. It shows the rest of the agent that the job is watched.
    _lock: File,
    state: JobState,
    ranks: BTreeMap<u32, RankProcess>,
    /// Since when no rank is alive.
    empty_since: Option<Instant>,
}

/// What the next agent needs to continue watching.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct JobState {
    /// The boot of the machine in which the process ids are valid.
    boot: String,
    launcher: Process,
    /// Local rank → rank.
    ranks: BTreeMap<u32, RankEntry>,
}

/// The process of a rank.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct RankEntry {
    rank: u32,
    process: Process,
}

impl UnmanagedJob {
    /// Starts to watch a new job, given its first rank.
    pub(super) fn watch(data_dir: &Path, claim: &Claim, pid: i32, launcher: i32) -> io::Result<Self> {
        let folder = Folder::of(data_dir, &claim.run, next_attempt(data_dir, &claim.run)?);
        folder.create()?;
        let command = command_of(pid);
        let watched = Watched {
            name: claim.run.to_string(),
            program: program_of(&command),
            // The launcher's command line has more information than its rank's. A shell that started the rank has none.
            command: shell_line(
                &Some(command_of(launcher))
                    .filter(|words| is_launcher(words))
                    .unwrap_or(command),
            ),
            pid: u32::try_from(launcher).unwrap_or(0),
            found: true,
        };
        let state = JobState {
            boot: boot_id(),
            launcher: Process::of(launcher).unwrap_or_default(),
            ..JobState::default()
        };
        let mut job =
            Self::open(folder, state)?.ok_or_else(|| io::Error::other("another agent watches it"))?;
        let json = serde_json::to_vec(&watched)?;
        job.report(NodeReport::Watched(watched))?;
        // Written last: the rest of the agent finds the folder by this file.
        job.folder.write(files::WATCH, &json)?;
        Ok(job)
    }

    /// Adopts a job of the previous agent. Returns `None` if there is nothing to watch.
    pub(super) fn adopt(folder: Folder) -> io::Result<Option<Self>> {
        if !folder.has(files::UNMANAGED_JOB) || folder.has(files::DONE) {
            return Ok(None);
        }
        let (entries, _) = read_from(&folder.file(files::SHIM_REPORTS), 0)?;
        if entries.iter().any(|entry| entry.report.is_end()) {
            return Ok(None);
        }
        let state: JobState = folder.read(files::UNMANAGED_JOB)?;
        let Some(mut job) = Self::open(folder, state)? else {
            return Ok(None);
        };
        let same_boot = job.state.boot == boot_id();
        for (local_rank, member) in job.state.ranks.clone() {
            let held = same_boot.then(|| RankProcess::hold(member.process.pid, member.rank));
            if let Some(rank) = held.flatten().filter(|_| member.process.lives()) {
                job.ranks.insert(local_rank, rank);
            }
        }
        Ok(Some(job))
    }

    fn open(folder: Folder, state: JobState) -> io::Result<Option<Self>> {
        let Some(lock) = folder.lock()? else {
            return Ok(None);
        };
        let reports = Reports::open(&folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM)?;
        Ok(Some(Self {
            folder,
            reports,
            _lock: lock,
            state,
            ranks: BTreeMap::new(),
            empty_since: None,
        }))
    }

    pub(super) fn has_room(&self, ranks_max: usize) -> bool {
        self.ranks.len() < ranks_max
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.ranks.values().map(|rank| rank.pid)
    }

    /// Returns the pidfds of the living ranks.
    pub(super) fn living(&self) -> impl Iterator<Item = &OwnedFd> {
        let living = self.ranks.values().filter(|rank| rank.lives());
        living.map(|rank| &rank.pidfd)
    }

    /// Adds a rank, which may replace one that ended.
    pub(super) fn note(&mut self, pid: i32, claim: &Claim) -> io::Result<()> {
        let (local_rank, rank) = (claim.local_rank, claim.rank);
        if self.ranks.get(&local_rank).is_some_and(RankProcess::lives) {
            return Ok(());
        }
        let Some((process, held)) = Process::of(pid).zip(RankProcess::hold(pid, rank)) else {
            return Ok(());
        };
        self.state.ranks.insert(local_rank, RankEntry { rank, process });
        self.ranks.insert(local_rank, held);
        let (rank, pid) = (Rank(rank), u32::try_from(pid).unwrap_or(0));
        self.folder.write_json(files::UNMANAGED_JOB, &self.state)?;
        self.report(NodeReport::RankStarted {
            rank,
            local_rank,
            pid,
        })
    }

    /// Records exits. Returns false if there is nothing left to watch.
    pub(super) fn tick(&mut self) -> io::Result<bool> {
        self.note_exits()?;
        if self.ranks.values().any(RankProcess::lives) {
            self.empty_since = None;
            return Ok(true);
        }
        let since = *self.empty_since.get_or_insert_with(Instant::now);
        let timeout = if self.state.launcher.lives() && self.has_failed() {
            RESTARTED_WITHIN
        } else if self.state.launcher.lives() {
            LAST_RANK_WITHIN
        } else {
            Duration::ZERO
        };
        if since.elapsed() < timeout {
            return Ok(true);
        }
        self.report(NodeReport::Ended(NodeEnd {
            code: self.all_well().then_some(0),
            signal: None,
            cause: EndCause::Finished,
            message: String::new(),
        }))?;
        Ok(false)
    }

    fn note_exits(&mut self) -> io::Result<()> {
        let exits = newly_ended(&mut self.ranks, |rank, end| {
            rank.describe(end, None, now_ms() * 1_000_000, false, None)
        });
        exits
            .into_iter()
            .try_for_each(|exit| self.report(NodeReport::RankExited(exit)))
    }

    /// Returns true if every rank that was ever recorded is known to have ended with 0.
    fn all_well(&self) -> bool {
        let well = |local: &u32| {
            let exit = self.ranks.get(local).and_then(|rank| rank.exit.as_ref());
            exit.is_some_and(|exit| !exit.failed())
        };
        !self.state.ranks.is_empty() && self.state.ranks.keys().all(well)
    }

    fn has_failed(&self) -> bool {
        let mut exits = self.ranks.values().filter_map(|rank| rank.exit.as_ref());
        exits.any(domain::run::state::RankExit::failed)
    }

    /// Simulates the end of the launcher, because the test that started the ranks continues to run.
    #[cfg(test)]
    pub(super) fn launcher_is_gone(&mut self) {
        self.state.launcher = Process::default();
    }

    fn report(&mut self, report: NodeReport) -> io::Result<()> {
        self.reports.add(now_ms(), report).map(drop)
    }
}

fn command_of(pid: i32) -> Vec<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND_BYTES_MAX);
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| std::ffi::OsString::from_vec(word.to_vec()))
        .collect()
}

fn is_launcher(command: &[std::ffi::OsString]) -> bool {
    const NAMES: [&str; 5] = ["torchrun", "torch.distributed", "accelerate", "deepspeed", "srun"];
    command.iter().take(4).any(|word| {
        let word = word.to_string_lossy();
        NAMES.iter().any(|name| word.contains(name))
    })
}
