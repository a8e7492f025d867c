//! The ranks of one job on this node, and what is told of them.
//!
//! A rank's exit can be read between its death and the moment at which its parent asks for it; torchrun asks several times a second, and
//! the rank's pidfd wakes us at once. When that was missed, how the job ended is not known, and that is what is said.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::state::{EndCause, NodeEnd, NodeReport, Watched};
use serde::{Deserialize, Serialize};
use shim::{Folder, Process, RankProcess, Reports, SHIM_IDS_FROM, boot_id, files, read_from};

use super::claim::Claim;
use crate::launch::watched::{next_attempt, program_of, shell_line};
use crate::uplink::link::now_ms;

/// A launcher that lives on without ranks starts them anew within this, or never: a rendezvous of other nodes may take minutes.
const RESTARTED_WITHIN: Duration = Duration::from_secs(600);
/// A launcher is gone, or was never seen: its ranks follow each other this closely.
const LAST_RANK_WITHIN: Duration = Duration::from_secs(20);
/// A command line is for people; what is longer is cut.
const COMMAND_BYTES_MAX: usize = 16 << 10;

/// A job's part on this node.
pub(super) struct Gang {
    folder: Folder,
    reports: Reports,
    /// Held while we watch, by which the rest of the agent knows that somebody does.
    _lock: File,
    members: Members,
    ranks: BTreeMap<u32, RankProcess>,
    /// Since when no rank lives.
    empty_since: Option<Instant>,
}

/// What the next agent needs to watch on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Members {
    /// This time of the machine; numbers of processes mean nothing in another.
    boot: String,
    launcher: Process,
    /// By local rank.
    ranks: BTreeMap<u32, Member>,
}

/// A rank's process.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct Member {
    rank: u32,
    process: Process,
}

impl Gang {
    /// A job that was not known, by its first rank.
    pub(super) fn found(data_dir: &Path, claim: &Claim, pid: i32, launcher: i32) -> io::Result<Self> {
        let folder = Folder::of(data_dir, &claim.run, next_attempt(data_dir, &claim.run)?);
        folder.create()?;
        let command = command_of(pid);
        let watched = Watched {
            name: claim.run.to_string(),
            program: program_of(&command),
            // What the launcher was told says more than what it told its rank; a shell that started it says nothing.
            command: shell_line(
                &Some(command_of(launcher))
                    .filter(|words| is_launcher(words))
                    .unwrap_or(command),
            ),
            pid: u32::try_from(launcher).unwrap_or(0),
            found: true,
        };
        let members = Members {
            boot: boot_id(),
            launcher: Process::of(launcher).unwrap_or_default(),
            ..Members::default()
        };
        let mut gang =
            Self::open(folder, members)?.ok_or_else(|| io::Error::other("another agent watches it"))?;
        let json = serde_json::to_vec(&watched)?;
        gang.report(NodeReport::Watched(watched))?;
        // Last: by this file the rest of the agent finds the folder.
        gang.folder.write(files::WATCH, &json)?;
        Ok(gang)
    }

    /// A job of the agent before this one; none where there is nothing to watch.
    pub(super) fn take_up(folder: Folder) -> io::Result<Option<Self>> {
        if !folder.has(files::GANG) || folder.has(files::DONE) {
            return Ok(None);
        }
        let (entries, _) = read_from(&folder.file(files::SHIM_REPORTS), 0)?;
        if entries.iter().any(|entry| entry.report.is_end()) {
            return Ok(None);
        }
        let members: Members = folder.read(files::GANG)?;
        let Some(mut gang) = Self::open(folder, members)? else {
            return Ok(None);
        };
        let same_boot = gang.members.boot == boot_id();
        for (local_rank, member) in gang.members.ranks.clone() {
            let held = same_boot.then(|| RankProcess::hold(member.process.pid, member.rank));
            if let Some(rank) = held.flatten().filter(|_| member.process.lives()) {
                gang.ranks.insert(local_rank, rank);
            }
        }
        Ok(Some(gang))
    }

    fn open(folder: Folder, members: Members) -> io::Result<Option<Self>> {
        let Some(lock) = folder.lock()? else {
            return Ok(None);
        };
        let reports = Reports::open(&folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM)?;
        Ok(Some(Self {
            folder,
            reports,
            _lock: lock,
            members,
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

    /// What to wait for.
    pub(super) fn living(&self) -> impl Iterator<Item = &OwnedFd> {
        let living = self.ranks.values().filter(|rank| rank.lives());
        living.map(|rank| &rank.pidfd)
    }

    /// A rank is there, maybe in the place of one that ended.
    pub(super) fn note(&mut self, pid: i32, claim: &Claim) -> io::Result<()> {
        let (local_rank, rank) = (claim.local_rank, claim.rank);
        if self.ranks.get(&local_rank).is_some_and(RankProcess::lives) {
            return Ok(());
        }
        let Some((process, held)) = Process::of(pid).zip(RankProcess::hold(pid, rank)) else {
            return Ok(());
        };
        self.members.ranks.insert(local_rank, Member { rank, process });
        self.ranks.insert(local_rank, held);
        let (rank, pid) = (Rank(rank), u32::try_from(pid).unwrap_or(0));
        self.folder.write_json(files::GANG, &self.members)?;
        self.report(NodeReport::RankStarted {
            rank,
            local_rank,
            pid,
        })
    }

    /// Notes exits; whether there is anything left to watch.
    pub(super) fn tick(&mut self) -> io::Result<bool> {
        self.note_exits()?;
        if self.ranks.values().any(RankProcess::lives) {
            self.empty_since = None;
            return Ok(true);
        }
        let since = *self.empty_since.get_or_insert_with(Instant::now);
        let patience = if self.members.launcher.lives() && self.has_failed() {
            RESTARTED_WITHIN
        } else if self.members.launcher.lives() {
            LAST_RANK_WITHIN
        } else {
            Duration::ZERO
        };
        if since.elapsed() < patience {
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
        let mut exits = Vec::new();
        for rank in self.ranks.values_mut().filter(|rank| rank.lives()) {
            let Some(end) = rank.end() else {
                rank.gone = rank.is_gone();
                continue;
            };
            let exit = rank.describe(end, None, now_ms() * 1_000_000, false, None);
            rank.exit = Some(exit.clone());
            exits.push(exit);
        }
        exits
            .into_iter()
            .try_for_each(|exit| self.report(NodeReport::RankExited(exit)))
    }

    /// Every rank that was ever here is known to have ended with 0.
    fn all_well(&self) -> bool {
        let well = |local: &u32| {
            let exit = self.ranks.get(local).and_then(|rank| rank.exit.as_ref());
            exit.is_some_and(|exit| !exit.failed())
        };
        !self.members.ranks.is_empty() && self.members.ranks.keys().all(well)
    }

    fn has_failed(&self) -> bool {
        let mut exits = self.ranks.values().filter_map(|rank| rank.exit.as_ref());
        exits.any(domain::run::state::RankExit::failed)
    }

    /// The test that started the ranks lives on where a launcher would have ended.
    #[cfg(test)]
    pub(super) fn launcher_is_gone(&mut self) {
        self.members.launcher = Process::default();
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
