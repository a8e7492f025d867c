//! The shim: a small process for each run and node that owns the ranks and outlives the agent.
//!
//! An agent's crash or upgrade must never end a training, so the ranks are not the agent's children. The shim starts
//! torchrun, takes the probe's datagrams, notes what happens in files ([`journal`](crate::launch::journal)), stops everything
//! when asked, and ends only when nothing it started is left. It has one thread, no runtime, and talks to nobody.
//!
//! ```text
//!            torchrun starts        ranks found          a rank fails │ stop file │ SIGTERM
//!  spawn ──▶ (looks every 20 ms) ──▶ watching (pidfds) ──────────────────────────▶ stopping
//!                                        │ torchrun ends                            │ SIGTERM, grace, SIGKILL
//!                                        ▼                                          ▼
//!                                    sweeping: every descendant, SIGTERM, SIGKILL, until none ──▶ Ended, exit
//! ```
//! While stopping, torchrun is held by SIGSTOP until the ranks have ended: it would take their exit statuses, and it would
//! signal them by its own ideas of time.

mod datagrams;
mod rank;
mod tree;

pub(crate) use datagrams::{segment_path, segments};
pub(crate) use tree::{marked, signal};

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use domain::ident::Rank;
use domain::run::state::{EndCause, NodeEnd, NodeReport};
use domain::run::torchrun::Launch;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::launch::journal::{Folder, Reports, SHIM_IDS_FROM};
use datagrams::Datagrams;
use rank::{End, LastWords, RankProcess};

/// Time between SIGTERM and SIGKILL when nobody said otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// The same after a failure: the other ranks have nothing left to wait for.
const FAILURE_GRACE: Duration = Duration::from_secs(10);
/// How often torchrun's children are looked at until all ranks are found. A rank that lives shorter is known by its log.
const LOOK_FOR_RANKS: Duration = Duration::from_millis(20);
/// How often the stop file is looked for.
const LOOK_AROUND: Duration = Duration::from_millis(200);
/// Time for torchrun to notice that its ranks have ended.
const LAUNCHER_PATIENCE: Duration = Duration::from_secs(5);
/// Time for what the ranks left behind to end by SIGTERM.
const SWEEP_PATIENCE: Duration = Duration::from_secs(2);
/// Processes that SIGKILL does not end by then hang in the kernel; the run is told about them and ends.
const SWEEP_MAX: Duration = Duration::from_secs(30);
/// How much of torchrun's own output is kept as a message.
const LAST_OUTPUT_BYTES: u64 = 2_048;

/// Why a shim could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// Its folder.
    #[error("the shim cannot use its folder")]
    Folder(#[from] io::Error),
    /// The kernel.
    #[error("the shim cannot set itself up")]
    Kernel(#[from] rustix::io::Errno),
}

/// For people who look into the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `running`, `stopping` or `ended`.
    pub state: String,
    /// The shim.
    pub shim_pid: u32,
    /// torchrun.
    pub launcher_pid: i32,
    /// Rank → process id.
    pub ranks: BTreeMap<u32, i32>,
}

/// Runs a shim in a folder that holds a `launch.json`; returns the process's exit code. Called for the hidden subcommand
/// `shim --dir DIR`, before anything else has started threads.
#[must_use]
pub fn main(dir: &Path) -> u8 {
    match run(&Folder::at(dir)) {
        Ok(()) => 0,
        Err(error) => {
            // The shim's stderr is DIR/shim.log.
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            eprintln!("{error}{}", source.unwrap_or_default());
            1
        }
    }
}

fn run(folder: &Folder) -> Result<(), ShimError> {
    // A second shim for the same attempt leaves at once.
    let Some(_lock) = folder.lock()? else {
        return Ok(());
    };
    let _already_leads = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (wakes, waker) = UnixStream::pair()?;
    wakes.set_nonblocking(true)?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    }
    let launch: Launch = folder.read("launch.json")?;
    let mut reports = Reports::open(&folder.file("shim.reports"), SHIM_IDS_FROM)?;
    let datagrams = Datagrams::open(folder)?;
    let launcher = match Launcher::spawn(folder, &launch) {
        Ok(launcher) => launcher,
        Err(error) => {
            let message = format!(
                "{} could not be started: {error}",
                launch.argv.first().map_or("", String::as_str)
            );
            reports.add(now_ms(), NodeReport::StartFailed { message })?;
            return Ok(());
        }
    };
    reports.add(
        now_ms(),
        NodeReport::ShimStarted {
            pid: std::process::id(),
            command: launch.shell_line(),
        },
    )?;
    let shim = Shim {
        folder: folder.clone(),
        launch,
        reports,
        datagrams,
        launcher,
        wakes,
        ranks: BTreeMap::new(),
        words: BTreeMap::new(),
        first_steps: BTreeMap::new(),
        stop: None,
        memory_kills: rank::memory_kills(),
    };
    shim.watch()
}

struct Shim {
    folder: Folder,
    launch: Launch,
    reports: Reports,
    datagrams: Datagrams,
    launcher: Launcher,
    wakes: UnixStream,
    /// By local rank.
    ranks: BTreeMap<u32, RankProcess>,
    /// By rank.
    words: BTreeMap<u32, LastWords>,
    first_steps: BTreeMap<u32, u64>,
    stop: Option<Stop>,
    memory_kills: u64,
}

/// A stop under way.
#[derive(Debug, Clone, Copy)]
struct Stop {
    /// A person or the collector asked; otherwise a rank failed.
    asked: bool,
    /// When SIGKILL follows.
    kill_at: Instant,
    killed: bool,
}

// === watching ===

impl Shim {
    fn watch(mut self) -> Result<(), ShimError> {
        self.note_status("running")?;
        while self.launcher.end.is_none() {
            self.wait_for_something()?;
            self.take_datagrams()?;
            self.find_ranks()?;
            self.note_exits()?;
            self.look_for_stop()?;
            self.pursue_stop();
            self.launcher.reap();
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
        let mut fds: Vec<PollFd<'_>> = sources.into_iter().chain(living).map(readable).collect();
        match rustix::event::poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take_datagrams(&mut self) -> io::Result<()> {
        let Self {
            datagrams,
            words,
            first_steps,
            reports,
            launch,
            ..
        } = self;
        let mut result = Ok(());
        datagrams.take(|line| {
            if contains(line, br#""kind":"error""#) {
                if let Ok(said) = serde_json::from_slice::<LastWords>(line) {
                    words.entry(said.rank).or_insert(said);
                }
            } else if first_steps.len() < launch.nproc as usize && contains(line, br#""kind":"step""#) {
                let Ok(step) = serde_json::from_slice::<StepHead>(line) else {
                    return;
                };
                if first_steps.insert(step.rank, step.step).is_none() {
                    let report = NodeReport::FirstStep {
                        rank: Rank(step.rank),
                        step: step.step,
                    };
                    result = reports.add(now_ms(), report).map(drop);
                }
            }
        })?;
        result
    }

    fn find_ranks(&mut self) -> Result<(), ShimError> {
        if self.all_ranks_known() {
            return Ok(());
        }
        let before = self.ranks.len();
        for child in tree::children(self.launcher.pid) {
            if self.ranks.values().any(|rank| rank.pid == child) {
                continue;
            }
            if let Some((local_rank, process)) = RankProcess::recognise(child) {
                let (rank, pid) = (Rank(process.rank), u32::try_from(child).unwrap_or(0));
                self.reports.add(
                    now_ms(),
                    NodeReport::RankStarted {
                        rank,
                        local_rank,
                        pid,
                    },
                )?;
                if self.stop.is_some() {
                    process.signal(Signal::TERM);
                }
                self.ranks.insert(local_rank, process);
            }
        }
        if self.ranks.len() > before {
            self.note_status("running")?;
        }
        Ok(())
    }

    fn note_exits(&mut self) -> Result<(), ShimError> {
        if self
            .ranks
            .values()
            .any(|rank| rank.lives() && rank.end().is_some())
        {
            // Its last words were sent before it ended.
            self.take_datagrams()?;
        }
        let seen_ns = now_ns();
        let mut failed = false;
        for rank in self.ranks.values_mut().filter(|rank| rank.lives()) {
            let Some(end) = rank.end() else {
                rank.gone = rank.is_gone();
                continue;
            };
            let memory = end.signal == Some(9) && rank::memory_kills() > self.memory_kills;
            let exit = rank.describe(end, self.words.get(&rank.rank), seen_ns, memory);
            failed |= exit.failed();
            rank.exit = Some(exit.clone());
            self.reports.add(now_ms(), NodeReport::RankExited(exit))?;
        }
        if failed && self.stop.is_none() {
            self.begin_stop(false, FAILURE_GRACE);
        }
        Ok(())
    }
}

// === stopping ===

impl Shim {
    fn look_for_stop(&mut self) -> Result<(), ShimError> {
        let mut drain = [0_u8; 16];
        let signalled = io::Read::read(&mut self.wakes, &mut drain).is_ok_and(|n| n > 0);
        let asked = match std::fs::read_to_string(self.folder.file("stop")) {
            Ok(text) => Some(text.trim().parse().map_or(GRACE_DEFAULT, Duration::from_millis)),
            Err(_) => signalled.then_some(GRACE_DEFAULT),
        };
        let Some(grace) = asked else { return Ok(()) };
        match &mut self.stop {
            None => {
                self.begin_stop(true, grace);
                self.note_status("stopping")?;
            }
            // A stop can become more urgent, never less.
            Some(stop) => stop.kill_at = stop.kill_at.min(Instant::now() + grace),
        }
        Ok(())
    }

    fn begin_stop(&mut self, asked: bool, grace: Duration) {
        self.stop = Some(Stop {
            asked,
            kill_at: Instant::now() + grace,
            killed: false,
        });
        if self.ranks.is_empty() {
            self.launcher.signal(Signal::TERM);
            return;
        }
        self.launcher.signal(Signal::STOP);
        for rank in self.ranks.values().filter(|rank| rank.lives()) {
            rank.signal(Signal::TERM);
        }
    }

    fn pursue_stop(&mut self) {
        let Some(stop) = &mut self.stop else { return };
        let now = Instant::now();
        if now >= stop.kill_at && !stop.killed {
            stop.killed = true;
            let own = i32::try_from(std::process::id()).unwrap_or(0);
            let others = tree::descendants(own)
                .into_iter()
                .filter(|pid| *pid != self.launcher.pid);
            others.for_each(|pid| tree::signal(pid, Signal::KILL));
        }
        if self.ranks.values().any(RankProcess::lives) || (self.ranks.is_empty() && !stop.killed) {
            return;
        }
        // The ranks' statuses are known: now torchrun may see them, say what it has to say, and go.
        self.launcher.signal(Signal::CONT);
        let go_by = *self.launcher.go_by.get_or_insert(now + LAUNCHER_PATIENCE);
        if now >= go_by {
            self.launcher.signal(Signal::KILL);
        }
    }
}

// === ending ===

impl Shim {
    fn finish(mut self) -> Result<(), ShimError> {
        self.take_datagrams()?;
        self.note_exits_by_log()?;
        let left = self.sweep()?;
        let end = self.launcher.end.unwrap_or_default();
        let asked = self.stop.is_some_and(|stop| stop.asked);
        let mut message = if end.code == Some(0) || asked {
            String::new()
        } else {
            self.last_output()
        };
        if !left.is_empty() {
            message = format!(
                "processes {left:?} hang in the kernel and cannot be ended; the node needs a look. {message}"
            );
        }
        let cause = if asked {
            EndCause::Stopped
        } else {
            EndCause::Finished
        };
        let ended = NodeReport::Ended(NodeEnd {
            code: end.code,
            signal: end.signal,
            cause,
            message,
        });
        self.note_status("ended")?;
        self.reports.add(now_ms(), ended)?;
        let _gone = std::fs::remove_file(self.folder.file("probe.sock"));
        Ok(())
    }

    /// Ranks whose status torchrun took before we saw it.
    fn note_exits_by_log(&mut self) -> Result<(), ShimError> {
        let log = std::fs::read(self.folder.file("launcher.stderr")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let launcher_succeeded = self.launcher.end.is_some_and(|end| end.code == Some(0));
        for rank in self.ranks.values_mut().filter(|rank| rank.exit.is_none()) {
            let by_log = rank::end_by_log(&log, rank.pid);
            let end = by_log.unwrap_or(End {
                code: launcher_succeeded.then_some(0),
                signal: None,
            });
            let exit = rank.describe(end, self.words.get(&rank.rank), now_ns(), false);
            rank.exit = Some(exit.clone());
            self.reports.add(now_ms(), NodeReport::RankExited(exit))?;
        }
        Ok(())
    }

    /// Ends everything that is left below the shim; what it returns cannot be ended.
    fn sweep(&mut self) -> Result<Vec<i32>, ShimError> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let began = Instant::now();
        let mut asked_nicely = Vec::new();
        loop {
            reap_all();
            self.take_datagrams()?;
            let left = tree::descendants(own);
            if left.is_empty() || began.elapsed() > SWEEP_MAX {
                return Ok(left);
            }
            let killing = began.elapsed() > SWEEP_PATIENCE || self.stop.is_some_and(|stop| stop.killed);
            for pid in left {
                if killing {
                    tree::signal(pid, Signal::KILL);
                } else if !asked_nicely.contains(&pid) {
                    asked_nicely.push(pid);
                    tree::signal(pid, Signal::TERM);
                }
            }
            let mut nothing: [PollFd<'_>; 0] = [];
            let _interrupted = rustix::event::poll(&mut nothing, Some(&timespec(LOOK_FOR_RANKS)));
        }
    }

    fn last_output(&self) -> String {
        let path = self.folder.file("launcher.stderr");
        let bytes = std::fs::read(path).unwrap_or_default();
        let from = bytes
            .len()
            .saturating_sub(usize::try_from(LAST_OUTPUT_BYTES).unwrap_or(usize::MAX));
        String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
    }

    fn note_status(&self, state: &str) -> io::Result<()> {
        let status = Status {
            state: state.to_owned(),
            shim_pid: std::process::id(),
            launcher_pid: self.launcher.pid,
            ranks: self.ranks.values().map(|rank| (rank.rank, rank.pid)).collect(),
        };
        self.folder
            .write("status.json", &serde_json::to_vec_pretty(&status)?)
    }
}

// === torchrun ===

#[derive(Debug)]
struct Launcher {
    pid: i32,
    pidfd: OwnedFd,
    end: Option<End>,
    /// When it must have gone by itself, its ranks having ended.
    go_by: Option<Instant>,
}

impl Launcher {
    fn spawn(folder: &Folder, launch: &Launch) -> io::Result<Self> {
        let (program, arguments) = launch.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let inherited = std::env::vars_os().filter(|(name, _)| !is_ours(&name.to_string_lossy()));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(inherited)
            .envs(&launch.env)
            .current_dir(&launch.workdir)
            .stdin(Stdio::null())
            .stdout(output(folder, "launcher.stdout")?)
            .stderr(output(folder, "launcher.stderr")?)
            .process_group(0);
        let child = command.spawn()?;
        // Not waited for through `Child`: the shim reaps whoever comes.
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let handle = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        let pidfd = rustix::process::pidfd_open(handle, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            pidfd,
            end: None,
            go_by: None,
        })
    }

    fn signal(&self, signal: Signal) {
        if self.end.is_none() {
            let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Takes all ended children, orphans handed to us among them; notes torchrun's end.
    fn reap(&mut self) {
        while let Some((pid, end)) = reap_one() {
            if pid == self.pid {
                self.end = Some(end);
            }
        }
    }
}

/// What the agent was started with is not the training's business, tokens least of all.
fn is_ours(name: &str) -> bool {
    name.starts_with("LOCKSTEP_")
}

fn output(folder: &Folder, name: &str) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.file(name))
}

fn reap_all() {
    while reap_one().is_some() {}
}

fn reap_one() -> Option<(i32, End)> {
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    Some((pid.as_raw_nonzero().get(), End::from_wait_status(status.as_raw())))
}

#[derive(Deserialize)]
struct StepHead {
    rank: u32,
    step: u64,
}

fn contains(line: &[u8], what: &[u8]) -> bool {
    line.windows(what.len()).any(|window| window == what)
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().cast_signed(),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn now_ms() -> i64 {
    now_ns() / 1_000_000
}

#[cfg(test)]
mod tests;
