//! The shim: a small process for each run and node that owns the ranks and outlives the agent.
//!
//! An agent's crash or upgrade must never end a training, so the ranks are not the agent's children. The shim starts
//! torchrun, takes the probe's datagrams, notes what happens in files ([`files`]), stops everything
//! when asked, and ends only when nothing it started is left. It has one thread, no runtime, and talks to no one else.
//!
//! ```text
//!            torchrun starts        ranks found          a rank fails │ stop file │ SIGTERM
//!  spawn ──▶ (looks every 20 ms) ──▶ watching (pidfds) ──────────────────────────▶ stopping
//!                                        │ torchrun ends                            │ SIGTERM, grace, SIGKILL
//!                                        ▼                                          ▼
//!                                    sweeping: every descendant, SIGTERM, SIGKILL, until none ──▶ Ended, exit
//! ```
//! While stopping, torchrun is held by SIGSTOP from the first rank's end until the last one's: it would take their exit statuses, and
//! it would signal them by its own ideas of time. Until then its store answers ranks that agree on where to stop.
//!
//! What it owns is held together by a group of the kernel where the machine has one to give ([`cgroup`](crate::cgroup)); always by the
//! process tree below the shim, which is the subreaper of all it starts; and, should the shim be killed, by what it noted
//! ([`owner`](crate::owner)) and by the marks in environments. Once a second it looks whether the ranks still get on ([`progress`]).
//! A run in a container is started by the runtime's command in torchrun's place ([`contained`]).

mod contained;
mod launcher;
mod progress;
mod setting;
mod stop;
mod telling;

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
use crate::heard::{Heard, StepHead};
use crate::memory::MemoryKills;
use crate::owner::Owner;
use crate::page;
use crate::rank::{End, LastWords, RankProcess, newly_ended};
use crate::reports::{Reports, SHIM_IDS_FROM, read_from};
use crate::time::{now_ms, now_ns, wait_for};
use crate::tree::{self, Process, Stat};
use launcher::Launcher;
use progress::Progress;
use setting::Setting;
use stop::Stop;

/// Time between SIGTERM and SIGKILL when nobody said otherwise.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// The same after a failure: the other ranks have nothing left to wait for.
const FAILURE_GRACE: Duration = Duration::from_secs(10);
/// How often torchrun's children are looked at until all ranks are found. A rank that lives shorter is known by its log.
const LOOK_FOR_RANKS: Duration = Duration::from_millis(20);
/// How often the stop file is looked for.
const LOOK_AROUND: Duration = Duration::from_millis(200);
/// How often the ranks' processes are looked at: one read of `/proc` a rank.
const LOOK_AT_RANKS: Duration = Duration::from_secs(1);
/// Reports that wait for room on the disk: far more than an attempt has, unless its ranks stand still and get on all the time.
const UNSAID_MAX: usize = 1_000;
/// An agent that looks who holds the lock holds it itself for a moment; another shim holds it for good.
const LOCK_TRIES: u32 = 20;

/// Why a shim could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    /// Its folder.
    #[error("the shim cannot use its folder")]
    Folder(#[from] io::Error),
    /// The kernel.
    #[error("the shim cannot set itself up")]
    Kernel(#[from] rustix::io::Errno),
}

/// Runs a shim in a folder that holds a `launch.json`; returns the process's exit code. Called for the hidden subcommand
/// `shim --dir DIR`, before anything else has started threads.
#[must_use]
pub fn main(dir: &Path) -> u8 {
    run_and_say(dir, Setting::of_environment())
}

fn run_and_say(dir: &Path, setting: Setting) -> u8 {
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
    // A second shim for the same attempt leaves, and so does one that comes when all is over.
    let Some(_lock) = lock(folder)? else {
        return Ok(());
    };
    let (said, _) = read_from(&folder.file(files::AGENT_REPORTS), 0)?;
    if folder.has(files::OWNER) || said.iter().any(|entry| entry.report.is_end()) {
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
    // Noted before anything is started: whoever comes after a killed shim finds all of it.
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
        words: BTreeMap::new(),
        first_steps: BTreeSet::new(),
        progress: Progress::new(setting.limits),
        looked_at_ranks: Instant::now(),
        unsaid: VecDeque::new(),
        stop: None,
        memory,
        came_to_stop_step: false,
    };
    shim.watch()
}

/// A rank whose page is not there goes on without one.
fn create_pages(folder: &Folder, launch: &Launch) {
    for rank in launch.first_rank..launch.first_rank.saturating_add(launch.nproc) {
        if let Err(error) = page::create(folder, rank) {
            // The shim's stderr is DIR/shim.log.
            eprintln!(
                "the mid-step page of rank {rank} cannot be made, so its position is not known: {error}"
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
        std::thread::sleep(LOOK_FOR_RANKS);
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
        // Not in the group, or still in it together with this process: then it is none to be killed as a whole.
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
    /// By local rank.
    ranks: BTreeMap<u32, RankProcess>,
    /// By rank.
    words: BTreeMap<u32, LastWords>,
    /// Ranks that have finished a step.
    first_steps: BTreeSet<u32>,
    progress: Progress,
    looked_at_ranks: Instant,
    /// Reports that a full disk has not taken yet.
    unsaid: VecDeque<(TimestampMs, NodeReport)>,
    stop: Option<Stop>,
    memory: MemoryKills,
    /// A rank came to the step of the stop order, and ends by itself.
    came_to_stop_step: bool,
}

// === watching ===

impl Shim {
    fn watch(mut self) -> Result<(), ShimError> {
        self.note_status("running");
        self.say(NodeReport::ShimStarted {
            pid: std::process::id(),
            command: self.launch.shell_line(),
            kept_by: self.kept_by(),
        });
        let mut patient = true;
        while self.launcher.end.is_none() && patient {
            self.wait_for_something()?;
            self.take_datagrams()?;
            self.find_container();
            self.find_ranks();
            if self.note_exits()? && self.stop.is_none() {
                self.begin_stop_after_failure();
            }
            self.look_at_ranks();
            self.look_for_stop();
            patient = self.pursue_stop();
            self.reap();
            self.give_up_a_client_that_stays();
        }
        self.finish()
    }

    fn all_ranks_known(&self) -> bool {
        self.ranks.len() >= usize::try_from(self.launch.nproc).unwrap_or(usize::MAX)
    }

    fn wait_for_something(&mut self) -> Result<(), ShimError> {
        let timeout = if self.all_ranks_known() {
            LOOK_AROUND
        } else {
            LOOK_FOR_RANKS
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
            words,
            first_steps,
            progress,
            launch,
            ..
        } = self;
        let (mut first, mut stopping) = (Vec::new(), Vec::new());
        datagrams.take(|line| {
            // Whoever can write into the socket may say anything of anybody; ranks of this node are few.
            let ours = |heard: &Heard| heard.rank().wrapping_sub(launch.first_rank) < launch.nproc;
            match Heard::parse(line).filter(ours) {
                Some(Heard::Error(said)) => {
                    words.entry(said.rank).or_insert(said);
                }
                Some(Heard::Step(step)) => {
                    progress.stepped(step.rank, step.step, now);
                    if first_steps.insert(step.rank) {
                        first.push(step);
                    }
                }
                Some(Heard::Stop(head)) => stopping.push(head),
                Some(Heard::Checkpoint(head)) => progress.moved(head.rank, now),
                Some(Heard::Bye(head)) => progress.leaves(head.rank),
                Some(Heard::Nccl(said)) => progress.collectives(said.rank, &said.comm, said.collectives()),
                None => {}
            }
        })?;
        for StepHead { rank, step } in first {
            let rank = Rank(rank);
            self.say(NodeReport::FirstStep { rank, step });
        }
        for StepHead { rank, step } in stopping {
            self.came_to_stop_step = true;
            let rank = Rank(rank);
            self.say(NodeReport::StopStep { rank, step });
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
                self.say(NodeReport::RankStarted {
                    rank,
                    local_rank,
                    pid,
                });
                if self.stop.is_some() {
                    process.ask_to_end();
                }
                let noted = Process::of(child).map(|process| (rank.0, process));
                self.owner.ranks.extend(noted);
                self.ranks.insert(local_rank, process);
            }
        }
        if self.ranks.len() > before {
            // Without the note, a rank is found below torchrun, which is noted.
            let _disk_full = self.owner.note(&self.folder);
            self.note_status("running");
        }
    }

    /// Reports the ranks that have ended; whether one of them failed.
    fn note_exits(&mut self) -> Result<bool, ShimError> {
        if self
            .ranks
            .values()
            .any(|rank| rank.lives() && rank.end().is_some())
        {
            // Its last words were sent before it ended.
            self.take_datagrams()?;
        }
        let seen_ns = now_ns();
        let exits = newly_ended(&mut self.ranks, |rank, end| {
            let memory = end.signal == Some(libc::SIGKILL) && self.memory.lately();
            let last_step = self.progress.last_step(rank.rank);
            let mut exit = rank.describe(end, self.words.get(&rank.rank), seen_ns, memory, last_step);
            if rank.taken.is_some() && exit.message.is_none() && exit.failed() {
                exit.message = Some("it was ended because torchrun had died before it".into());
            }
            exit
        });
        let failed = exits.iter().any(RankExit::failed);
        exits
            .into_iter()
            .for_each(|exit| self.say(NodeReport::RankExited(exit)));
        Ok(failed)
    }

    fn look_at_ranks(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.looked_at_ranks) < LOOK_AT_RANKS {
            return;
        }
        self.looked_at_ranks = now;
        self.memory.tick(now);
        self.say_the_rest();
        if self.stop.is_some() || self.unsaid.len() > UNSAID_MAX {
            return;
        }
        let living = self.ranks.values().filter(|rank| rank.lives());
        let states: Vec<(u32, u8)> = living
            .filter_map(|rank| Some((rank.rank, Stat::read(rank.pid)?.state)))
            .collect();
        let news = self.progress.look(&states, now);
        news.into_iter().for_each(|report| self.say(report));
    }
}

fn reap_one() -> Option<(i32, End)> {
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    Some((pid.as_raw_nonzero().get(), End::from_wait_status(status.as_raw())))
}

#[cfg(test)]
mod tests;
