//! The shim: a small process that owns the ranks of one attempt on one node and outlives the agent.
//!
//! A crash or an upgrade of the agent must never end a training, so the ranks are not children of the agent. The shim starts torchrun,
//! receives the probe's datagrams, writes what happens to files ([`files`]) and stops all its processes on request. It exits only when none
//! of the processes that it started is left. It has one thread and no async runtime, and talks to no other process.
//!
//! ```text
//!            torchrun starts        ranks found          a rank fails │ stop file │ SIGTERM
//!  spawn ──▶ (polls every 20 ms) ──▶ watching (pidfds) ──────────────────────────▶ stopping
//!                                        │ torchrun ends                            │ SIGTERM, grace, SIGKILL
//!                                        ▼                                          ▼
//!                                    sweeping: every descendant, SIGTERM, SIGKILL, until none ──▶ Ended, exit
//! ```
//! During a stop, the shim suspends torchrun with SIGSTOP from the end of the first rank until the end of the last rank. Otherwise torchrun
//! would reap the exit statuses of the ranks and signal the ranks on its own schedule. Before the first end, the store inside torchrun must
//! still answer ranks that agree on a stop point.
//!
//! The shim finds its processes in several ways: by their cgroup, if the machine allows one ([`cgroup`](crate::cgroup)); always by the
//! process tree, because the shim is the subreaper of everything it starts; and, if the shim is killed, by `owner.json`
//! ([`owner`](crate::owner)) and by the marks in the environments. Once per second it checks that the ranks make progress ([`progress`]). A
//! run in a container is started by the command of the container runtime instead of torchrun ([`contained`]).

mod contained;
mod launcher;
mod progress;
mod setting;
mod status_reports;
mod stop;

pub use contained::split_env;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::state::{EndCause, NodeEnd, NodeReport, RankExit};
use domain::run::torchrun::Launch;
use domain::time::TimestampMs;
use rustix::process::WaitOptions;

use crate::cgroup::{Group, Hierarchies};
use crate::datagrams::Datagrams;
use crate::files;
use crate::folder::Folder;
use crate::memory::MemoryKills;
use crate::owner::Owner;
use crate::page;
use crate::probe_message::{ProbeMessage, StepHead};
use crate::rank::{End, ErrorRecord, RankProcess, newly_ended};
use crate::reports::{Reports, SHIM_IDS_FROM, read_from};
use crate::time::{now_ms, now_ns, wait_for};
use crate::tree::{self, Process, Stat};
use launcher::Launcher;
use progress::Progress;
use setting::Setting;
use stop::Stop;

/// Time between SIGTERM and SIGKILL if the stop request does not contain one.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// Time between SIGTERM and SIGKILL after a rank failed. It is shorter: the other ranks have nothing left to wait for.
const FAILURE_GRACE: Duration = Duration::from_secs(10);
/// Interval between checks of torchrun's children until all ranks are found. torchrun's log names a rank that lives for less time.
const RANK_SEARCH_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between checks for the stop file.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between checks of the ranks' processes. A check reads `/proc` once per rank.
const RANK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of reports that wait for space on the disk. An attempt has far fewer, unless its ranks stall and recover all the time.
const PENDING_REPORTS_MAX: usize = 1_000;
/// Attempts to take the lock. An agent that checks the lock holds it itself for a moment; another shim holds it until it exits.
const LOCK_TRIES: u32 = 20;

/// Why a shim failed to start or to continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    /// The shim cannot read or write its folder.
    #[error("the shim cannot use its folder")]
    Folder(#[from] io::Error),
    /// A system call failed.
    #[error("a system call of the shim failed")]
    Kernel(#[from] rustix::io::Errno),
}

/// Runs a shim in a folder that contains `launch.json`, and returns the exit code of the process. The hidden subcommand `shim --dir DIR`
/// calls this before any other code has started threads.
#[must_use]
pub fn main(dir: &Path) -> u8 {
    run_and_print_error(dir, Setting::of_environment())
}

fn run_and_print_error(dir: &Path, setting: Setting) -> u8 {
    match run(&Folder::at(dir), setting) {
        Ok(()) => 0,
        Err(error) => {
            // The shim's stderr is DIR/shim.log.
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            eprintln!("{error}{}", source.unwrap_or_default());
            1
        }
    }
}

fn run(folder: &Folder, setting: Setting) -> Result<(), ShimError> {
    // A second shim of the same attempt exits, and so does one that starts after the end of the attempt.
    let Some(_lock) = lock(folder)? else {
        return Ok(());
    };
    let (entries, _) = read_from(&folder.file(files::AGENT_REPORTS), 0)?;
    if folder.has(files::OWNER) || entries.iter().any(|entry| entry.report.is_end()) {
        return Ok(());
    }
    let _already_leads = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (wakes, waker) = UnixStream::pair()?;
    wakes.set_nonblocking(true)?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    }
    let launch: Launch = folder.read(files::LAUNCH)?;
    let mut reports = Reports::open(&folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM)?;
    if folder.has(files::STOP) {
        let end = NodeEnd {
            cause: EndCause::NeverStarted,
            ..NodeEnd::default()
        };
        reports.add(now_ms(), NodeReport::Ended(end))?;
        return Ok(());
    }
    let datagrams = Datagrams::open(folder)?;
    create_pages(folder, &launch);
    let own = Hierarchies::read(Path::new("/proc/self"));
    let group = Group::make(&own, setting.kinds, &folder.unique_name());
    let mut owner = Owner::new(group);
    // Written before any process starts, so that all of them can be found if the shim is killed.
    owner.note(folder)?;
    let launcher = match spawn(folder, &launch, &mut owner) {
        Ok(launcher) => launcher,
        Err(error) => {
            let message = format!(
                "{} could not be started: {error}",
                launch.argv.first().map_or("", String::as_str)
            );
            owner.group.iter().for_each(Group::remove);
            reports.add(now_ms(), NodeReport::StartFailed { message })?;
            return Ok(());
        }
    };
    owner.launcher = Process::of(launcher.pid);
    let _disk_full = owner.note(folder);
    let memory = MemoryKills::watch(&own, owner.group.as_ref().map(Group::path), Instant::now());
    let shim = Shim {
        folder: folder.clone(),
        launch,
        setting,
        reports,
        datagrams,
        launcher,
        wakes,
        group: owner.group.clone(),
        owner,
        ranks: BTreeMap::new(),
        errors: BTreeMap::new(),
        first_steps: BTreeSet::new(),
        progress: Progress::new(setting.limits),
        ranks_checked_at: Instant::now(),
        pending_reports: VecDeque::new(),
        stop: None,
        memory,
        reached_stop_point: false,
    };
    shim.watch()
}

/// Creates the mid-step pages. A rank without a page continues without one.
fn create_pages(folder: &Folder, launch: &Launch) {
    for rank in launch.first_rank..launch.first_rank.saturating_add(launch.nproc) {
        if let Err(error) = page::create(folder, rank) {
            // The shim's stderr is DIR/shim.log.
            eprintln!(
                "the mid-step page of rank {rank} cannot be created, so its position is unknown: {error}"
            );
            return;
        }
    }
}

fn lock(folder: &Folder) -> io::Result<Option<std::fs::File>> {
    for _ in 0..LOCK_TRIES {
        if let Some(lock) = folder.lock()? {
            return Ok(Some(lock));
        }
        std::thread::sleep(RANK_SEARCH_INTERVAL);
    }
    Ok(None)
}

fn spawn(folder: &Folder, launch: &Launch, owner: &mut Owner) -> io::Result<Launcher> {
    let inside = owner
        .group
        .as_ref()
        .filter(|group| group.enter().is_ok())
        .cloned();
    let launcher = Launcher::spawn(folder, launch);
    let out = inside.as_ref().map(Group::leave);
    if !matches!(out, Some(Ok(()))) {
        // The launcher is not in the group, or this process is still in it too: the group must then not be killed as a whole.
        owner.group = None;
    }
    launcher
}

struct Shim {
    folder: Folder,
    launch: Launch,
    setting: Setting,
    reports: Reports,
    datagrams: Datagrams,
    launcher: Launcher,
    wakes: UnixStream,
    group: Option<Group>,
    owner: Owner,
    /// Local rank → rank.
    ranks: BTreeMap<u32, RankProcess>,
    /// Rank → its last error record.
    errors: BTreeMap<u32, ErrorRecord>,
    /// Ranks that have finished a step.
    first_steps: BTreeSet<u32>,
    progress: Progress,
    ranks_checked_at: Instant,
    /// Reports that could not be written yet because the disk is full.
    pending_reports: VecDeque<(TimestampMs, NodeReport)>,
    stop: Option<Stop>,
    memory: MemoryKills,
    /// A rank reached the stop point and exits by itself.
    reached_stop_point: bool,
}

// === watching ===

impl Shim {
    fn watch(mut self) -> Result<(), ShimError> {
        self.write_status("running");
        self.write_report(NodeReport::ShimStarted {
            pid: std::process::id(),
            command: self.launch.shell_line(),
            kept_by: self.kept_by(),
        });
        let mut waiting = true;
        while self.launcher.end.is_none() && waiting {
            self.wait_for_event()?;
            self.take_datagrams()?;
            self.find_container();
            self.find_ranks();
            if self.note_exits()? && self.stop.is_none() {
                self.begin_stop_after_failure();
            }
            self.check_ranks();
            self.check_for_stop();
            waiting = self.continue_stop();
            self.reap();
            self.abandon_stuck_client();
        }
        self.finish()
    }

    fn all_ranks_known(&self) -> bool {
        self.ranks.len() >= usize::try_from(self.launch.nproc).unwrap_or(usize::MAX)
    }

    fn wait_for_event(&mut self) -> Result<(), ShimError> {
        let timeout = if self.all_ranks_known() {
            STOP_CHECK_INTERVAL
        } else {
            RANK_SEARCH_INTERVAL
        };
        let living = self
            .ranks
            .values()
            .filter(|rank| rank.lives())
            .map(|rank| rank.pidfd.as_fd());
        let sources = [
            self.wakes.as_fd(),
            self.datagrams.socket.as_fd(),
            self.launcher.pidfd.as_fd(),
        ];
        Ok(wait_for(sources.into_iter().chain(living), timeout)?)
    }

    fn take_datagrams(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let Self {
            datagrams,
            errors,
            first_steps,
            progress,
            launch,
            ..
        } = self;
        let (mut first, mut stopping) = (Vec::new(), Vec::new());
        datagrams.take(|line| {
            // Any process that can write to the socket can send any rank number. Accept only ranks of this node.
            let ours = |message: &ProbeMessage| message.rank().wrapping_sub(launch.first_rank) < launch.nproc;
            match ProbeMessage::parse(line).filter(ours) {
                Some(ProbeMessage::Error(record)) => {
                    errors.entry(record.rank).or_insert(record);
                }
                Some(ProbeMessage::Step(step)) => {
                    progress.stepped(step.rank, step.step, now);
                    if first_steps.insert(step.rank) {
                        first.push(step);
                    }
                }
                Some(ProbeMessage::Stop(head)) => stopping.push(head),
                Some(ProbeMessage::Checkpoint(head)) => progress.moved(head.rank, now),
                Some(ProbeMessage::Bye(head)) => progress.leaves(head.rank),
                Some(ProbeMessage::Nccl(head)) => {
                    progress.collectives(head.rank, &head.comm, head.collectives())
                }
                None => {}
            }
        })?;
        for StepHead { rank, step } in first {
            let rank = Rank(rank);
            self.write_report(NodeReport::FirstStep { rank, step });
        }
        for StepHead { rank, step } in stopping {
            self.reached_stop_point = true;
            let rank = Rank(rank);
            self.write_report(NodeReport::StopStep { rank, step });
        }
        Ok(())
    }

    fn find_ranks(&mut self) {
        if self.all_ranks_known() {
            return;
        }
        let Some(torchrun) = self.launcher.torchrun() else {
            return;
        };
        let before = self.ranks.len();
        for child in tree::children(torchrun) {
            if self.ranks.values().any(|rank| rank.pid == child) {
                continue;
            }
            if let Some((local_rank, process)) = RankProcess::recognise(child) {
                let (rank, pid) = (Rank(process.rank), u32::try_from(child).unwrap_or(0));
                self.write_report(NodeReport::RankStarted {
                    rank,
                    local_rank,
                    pid,
                });
                if self.stop.is_some() {
                    process.terminate();
                }
                let noted = Process::of(child).map(|process| (rank.0, process));
                self.owner.ranks.extend(noted);
                self.ranks.insert(local_rank, process);
            }
        }
        if self.ranks.len() > before {
            // If the write fails, the rank can still be found below torchrun, which is in the file already.
            let _disk_full = self.owner.note(&self.folder);
            self.write_status("running");
        }
    }

    /// Reports the ranks that have ended. Returns true if one of them failed.
    fn note_exits(&mut self) -> Result<bool, ShimError> {
        if self
            .ranks
            .values()
            .any(|rank| rank.lives() && rank.end().is_some())
        {
            // A rank sends its error record before it ends.
            self.take_datagrams()?;
        }
        let seen_ns = now_ns();
        let exits = newly_ended(&mut self.ranks, |rank, end| {
            let memory = end.signal == Some(libc::SIGKILL) && self.memory.has_recent_kill();
            let last_step = self.progress.last_step(rank.rank);
            let mut exit = rank.describe(end, self.errors.get(&rank.rank), seen_ns, memory, last_step);
            if rank.taken.is_some() && exit.message.is_none() && exit.failed() {
                exit.message = Some("it was ended because torchrun had died before it".into());
            }
            exit
        });
        let failed = exits.iter().any(RankExit::failed);
        exits
            .into_iter()
            .for_each(|exit| self.write_report(NodeReport::RankExited(exit)));
        Ok(failed)
    }

    fn check_ranks(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.ranks_checked_at) < RANK_CHECK_INTERVAL {
            return;
        }
        self.ranks_checked_at = now;
        self.memory.tick(now);
        self.write_pending_reports();
        if self.stop.is_some() || self.pending_reports.len() > PENDING_REPORTS_MAX {
            return;
        }
        let living = self.ranks.values().filter(|rank| rank.lives());
        let states: Vec<(u32, u8)> = living
            .filter_map(|rank| Some((rank.rank, Stat::read(rank.pid)?.state)))
            .collect();
        let reports = self.progress.check(&states, now);
        reports.into_iter().for_each(|report| self.write_report(report));
    }
}

fn reap_one() -> Option<(i32, End)> {
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    Some((pid.as_raw_nonzero().get(), End::from_wait_status(status.as_raw())))
}

#[cfg(test)]
mod tests;
