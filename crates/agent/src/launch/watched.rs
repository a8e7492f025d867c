//! `lockstep exec -- COMMAND`: a command in the foreground that is watched like a run and otherwise not changed.
//!
//! ```text
//! terminal ── stdin, stdout, stderr, Ctrl-C ──▶ COMMAND (same process group) ──▶ torchrun ──▶ ranks
//!                                                  ▲ signals sent only to us, its exit status  │ datagrams
//!                                              lockstep exec ◀─────────────────────────────────┘
//!                                                  │ files of a folder, as a shim writes them
//!                                                  ▼
//!                                                agent
//! ```
//! For a watched run, it does what the shim does for a managed one: the same folder, lock, reports and socket ([`files`](shim::files)). In
//! addition it writes `watch.json`, so that the agent never stops the command. The command's output stays in its terminal. An error
//! in watching never ends the command or changes its exit code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::ident::{AttemptNo, NodeName, Rank, RunId};
use domain::run::spec::Spec;
use domain::run::state::{EndCause, NodeEnd, NodeReport, Start, Watched};
use domain::run::torchrun::{FLIGHT_RECORDER_ENTRIES, FLIGHT_RECORDER_VARIABLES, Launch};
use rustix::process::{Pid, PidfdFlags, Signal};
use shim::time::{now_ms, now_ns, wait_for};
use shim::{
    Datagrams, End, ErrorRecord, Folder, Hierarchies, MemoryKills, ProbeMessage, RankProcess, Reports,
    SHIM_IDS_FROM, children, files, newly_ended, page,
};

use crate::launch::Setting;
use crate::launch::companions;
use crate::sample::nccl::{self, plugin::Choice};

/// Interval between searches for ranks until they are found, and afterwards: torchrun may restart them.
const FIRST_SCAN_INTERVAL: Duration = Duration::from_millis(50);
const LATER_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// If no new rank was found for this long, all ranks are considered found.
const SETTLED: Duration = Duration::from_secs(3);
/// Signals that are forwarded if they were sent only to this process. SIGKILL and SIGSTOP cannot be forwarded.
const PASSED_ON: [(i32, Signal); 6] = [
    (libc::SIGTERM, Signal::TERM),
    (libc::SIGHUP, Signal::HUP),
    (libc::SIGINT, Signal::INT),
    (libc::SIGQUIT, Signal::QUIT),
    (libc::SIGUSR1, Signal::USR1),
    (libc::SIGUSR2, Signal::USR2),
];
/// Variables of our own environment that the command must not see.
const PRIVATE_VARIABLES: [&str; 3] = ["LOCKSTEP_TOKEN", "LOCKSTEP_ADMIN_TOKEN", "LOCKSTEP_JOIN"];
/// The exit codes of a shell for a command that does not exist, and for one that cannot be started.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// What to run, and the names under which to watch it.
#[derive(Debug, Clone)]
pub struct Exec {
    /// The data folder of this machine's agent.
    pub data_dir: PathBuf,
    /// The run that the command is or joins.
    pub run: RunId,
    /// The run's display name.
    pub name: String,
    /// This node's name, for the probe's records.
    pub node: NodeName,
    /// Whether NCCL loads `nccl-probe`.
    pub nccl_probe: bool,
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
}

/// Runs the command, watched if possible. Returns its exit code, or 128 plus the signal number if a signal ended it. `warn` receives
/// messages for the user.
pub fn exec(exec: &Exec, warn: &mut dyn FnMut(String)) -> u8 {
    match Watch::open(exec) {
        Ok(watch) => watch.run(exec, warn),
        Err(error) => {
            warn(format!("the command runs unwatched: {error}"));
            unwatched(&exec.command, warn)
        }
    }
}

/// Replaces this process by the command.
pub fn unwatched(command: &[OsString], warn: &mut dyn FnMut(String)) -> u8 {
    let mut replaced = plain(command);
    let error = std::os::unix::process::CommandExt::exec(&mut replaced);
    not_started(command, &error, warn)
}

fn plain(command: &[OsString]) -> Command {
    let (program, arguments) = command.split_first().expect("the command line has a command");
    let mut plain = Command::new(program);
    plain.args(arguments);
    PRIVATE_VARIABLES.iter().for_each(|name| {
        plain.env_remove(name);
    });
    plain
}

fn not_started(command: &[OsString], error: &io::Error, warn: &mut dyn FnMut(String)) -> u8 {
    warn(format!(
        "{:?} cannot be started: {error}",
        command.first().cloned().unwrap_or_default()
    ));
    if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_STARTED
    }
}

/// What watching needs, created before the command starts.
struct Watch {
    folder: Folder,
    attempt: AttemptNo,
    reports: Reports,
    datagrams: Datagrams,
    variables: BTreeMap<String, OsString>,
    /// Held until the end. It shows the agent that this process is alive.
    _lock: std::fs::File,
    ranks: BTreeMap<u32, RankProcess>,
    errors: BTreeMap<u32, ErrorRecord>,
    /// The last step of each rank.
    steps: BTreeMap<u32, u64>,
    memory: MemoryKills,
    first_rank_noted: bool,
    /// When a rank was last found. More ranks may follow shortly.
    found: Instant,
}

impl Watch {
    fn open(exec: &Exec) -> Result<Self, Box<dyn std::error::Error>> {
        let attempt = next_attempt(&exec.data_dir, &exec.run)?;
        let folder = Folder::of(&exec.data_dir, &exec.run, attempt);
        folder.create()?;
        let lock = folder
            .lock()?
            .ok_or("another lockstep exec has just started the same run")?;
        let companions = companions::unpack(&exec.data_dir)?;
        let mut reports = Reports::open(&folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM)?;
        let datagrams = Datagrams::open(&folder)?;
        let variables = variables(exec, attempt, &folder, &companions)?;
        note_launch(&folder, exec, 0)?;
        let watched = Watched {
            name: exec.name.clone(),
            program: program_of(&exec.command),
            command: shell_line(&exec.command),
            pid: std::process::id(),
            found: false,
        };
        let json = serde_json::to_vec(&watched)?;
        reports.add(now_ms(), NodeReport::Watched(watched))?;
        // Written last: the agent finds the folder by this file.
        folder.write(files::WATCH, &json)?;
        Ok(Self {
            folder,
            attempt,
            reports,
            datagrams,
            variables,
            _lock: lock,
            ranks: BTreeMap::new(),
            errors: BTreeMap::new(),
            steps: BTreeMap::new(),
            memory: MemoryKills::watch(&Hierarchies::read(Path::new("/proc/self")), None, Instant::now()),
            first_rank_noted: false,
            found: Instant::now(),
        })
    }

    fn run(mut self, exec: &Exec, warn: &mut dyn FnMut(String)) -> u8 {
        let signals = Signals::listen();
        let mut child = match plain(&exec.command).envs(&self.variables).spawn() {
            Ok(child) => child,
            Err(error) => {
                let message = error.to_string();
                let _printed_on_stderr = self.report(NodeReport::StartFailed { message });
                return not_started(&exec.command, &error, warn);
            }
        };
        let watched = signals
            .map_err(Box::from)
            .and_then(|mut signals| self.watch(exec, &mut child, &mut signals));
        let (status, stop_requested) = match watched {
            Ok(ended) => ended,
            Err(error) => {
                warn(format!("the command continues unwatched: {error}"));
                match child.wait() {
                    Ok(status) => (status, false),
                    Err(_) => return NOT_STARTED,
                }
            }
        };
        let command = i32::try_from(child.id()).unwrap_or(0);
        if let Err(error) = self.finish(command, status, stop_requested) {
            warn(format!("the end of the command could not be recorded: {error}"));
        }
        exit_code(status)
    }

    /// Watches until the command has ended. Also returns whether a forwarded signal may have ended it.
    fn watch(
        &mut self,
        exec: &Exec,
        child: &mut Child,
        signals: &mut Signals,
    ) -> Result<(ExitStatus, bool), Box<dyn std::error::Error>> {
        let pid = i32::try_from(child.id())?;
        let handle = Pid::from_raw(pid).ok_or("the process has no id")?;
        let pidfd = rustix::process::pidfd_open(handle, PidfdFlags::empty())?;
        let (mut stop_requested, mut scanned_at) = (false, None::<Instant>);
        loop {
            stop_requested |= signals.pass_on(&pidfd);
            self.take_datagrams()?;
            self.memory.tick(Instant::now());
            let settled = !self.ranks.is_empty() && self.found.elapsed() > SETTLED;
            let period = if settled {
                LATER_SCAN_INTERVAL
            } else {
                FIRST_SCAN_INTERVAL
            };
            if scanned_at.is_none_or(|at| at.elapsed() >= period) {
                scanned_at = Some(Instant::now());
                self.find_ranks(exec, pid)?;
            }
            self.note_exits()?;
            if let Some(status) = child.try_wait()? {
                return Ok((status, stop_requested));
            }
            let living = self
                .ranks
                .values()
                .filter(|rank| rank.lives())
                .map(|rank| rank.pidfd.as_fd());
            let sources = [
                pidfd.as_fd(),
                signals.wakes.as_fd(),
                self.datagrams.socket.as_fd(),
            ];
            wait_for(sources.into_iter().chain(living), period)?;
        }
    }

    /// Finds the topmost processes below the command that claim to be a rank. Child processes of a rank inherit its variables.
    fn find_ranks(&mut self, exec: &Exec, command: i32) -> io::Result<()> {
        let mut todo = vec![command];
        while let Some(pid) = todo.pop() {
            if self.ranks.values().any(|rank| rank.pid == pid) {
                continue;
            }
            match RankProcess::recognise(pid) {
                Some((local_rank, process)) => self.note_rank(exec, local_rank, process)?,
                None => todo.extend(children(pid)),
            }
        }
        Ok(())
    }

    fn note_rank(&mut self, exec: &Exec, local_rank: u32, process: RankProcess) -> io::Result<()> {
        // A living rank keeps its local rank. Another process with the same number is ignored.
        if self.ranks.get(&local_rank).is_some_and(RankProcess::lives) {
            return Ok(());
        }
        if !self.first_rank_noted {
            self.first_rank_noted = true;
            note_launch(&self.folder, exec, process.rank.saturating_sub(local_rank))?;
        }
        if let Err(error) = page::create(&self.folder, process.rank) {
            tracing::debug!(rank = process.rank, %error, "the rank's mid-step page cannot be created");
        }
        let (rank, pid) = (Rank(process.rank), u32::try_from(process.pid).unwrap_or(0));
        self.ranks.insert(local_rank, process);
        self.found = Instant::now();
        self.report(NodeReport::RankStarted {
            rank,
            local_rank,
            pid,
        })
    }

    fn take_datagrams(&mut self) -> io::Result<()> {
        let Self {
            datagrams,
            errors,
            steps,
            reports,
            ..
        } = self;
        let mut result = Ok(());
        datagrams.take(|line| match ProbeMessage::parse(line) {
            Some(ProbeMessage::Error(record)) => {
                errors.insert(record.rank, record);
            }
            Some(ProbeMessage::Step(step)) if steps.insert(step.rank, step.step).is_none() => {
                let report = NodeReport::FirstStep {
                    rank: Rank(step.rank),
                    step: step.step,
                };
                result = reports.add(now_ms(), report).map(drop);
            }
            _ => {}
        })?;
        result
    }

    fn note_exits(&mut self) -> io::Result<()> {
        let seen_ns = now_ns();
        let exits = newly_ended(&mut self.ranks, |rank, end| {
            let memory = end.signal == Some(libc::SIGKILL) && self.memory.has_recent_kill();
            let last_step = self.steps.get(&rank.rank).copied();
            rank.describe(end, self.errors.get(&rank.rank), seen_ns, memory, last_step)
        });
        exits
            .into_iter()
            .try_for_each(|exit| self.report(NodeReport::RankExited(exit)))
    }

    fn finish(mut self, command: i32, status: ExitStatus, stop_requested: bool) -> io::Result<()> {
        self.take_datagrams()?;
        self.note_exits()?;
        // The parent reaped these ranks before this process read their status. If the command succeeded, so did they.
        let unseen = self.ranks.values().filter(|rank| rank.exit.is_none());
        let end = |rank: &RankProcess| match status.code() {
            Some(0) => End::from_python(0),
            // If the command itself is the rank, its status is known.
            _ if rank.pid == command => End {
                code: status.code(),
                signal: status.signal(),
            },
            _ => End::default(),
        };
        let exits: Vec<_> = unseen
            .map(|rank| {
                let (error, step) = (self.errors.get(&rank.rank), self.steps.get(&rank.rank).copied());
                rank.describe(end(rank), error, now_ns(), false, step)
            })
            .collect();
        exits
            .into_iter()
            .try_for_each(|exit| self.report(NodeReport::RankExited(exit)))?;
        let cause = if stop_requested && !status.success() {
            EndCause::Stopped
        } else {
            EndCause::Finished
        };
        self.report(NodeReport::Ended(NodeEnd {
            code: status.code(),
            signal: status.signal(),
            cause,
            message: String::new(),
        }))?;
        let _gone = self.folder.remove(files::PROBE_SOCKET);
        tracing::debug!(attempt = %self.attempt, "the command has ended");
        Ok(())
    }

    fn report(&mut self, report: NodeReport) -> io::Result<()> {
        self.reports.add(now_ms(), report).map(drop)
    }
}

/// Returns the number of the next attempt. A run that was watched here before continues with it.
pub(super) fn next_attempt(data_dir: &Path, run: &RunId) -> io::Result<AttemptNo> {
    let all = Folder::all(data_dir)?;
    let before = all
        .iter()
        .filter(|(known, ..)| known == run)
        .map(|(_, attempt, _)| attempt.0);
    Ok(AttemptNo(before.max().unwrap_or(0) + 1))
}

/// Writes `launch.json` for the agent, which reads the first rank of this node from it.
fn note_launch(folder: &Folder, exec: &Exec, first_rank: u32) -> io::Result<()> {
    let launch = Launch {
        argv: argv(&exec.command),
        first_rank,
        ..Launch::default()
    };
    folder.write_json(files::LAUNCH, &launch)
}

/// Returns the variables of a managed launch. Values that the user has set take precedence.
fn variables(
    exec: &Exec,
    attempt: AttemptNo,
    folder: &Folder,
    companions: &Path,
) -> Result<BTreeMap<String, OsString>, Box<dyn std::error::Error>> {
    let mut python_path = companions.join("inject").into_os_string();
    if let Some(own) = std::env::var_os("PYTHONPATH").filter(|own| !own.is_empty()) {
        python_path.push(":");
        python_path.push(own);
    }
    let mut variables = BTreeMap::from([
        ("PYTHONPATH".to_owned(), python_path),
        ("LOCKSTEP_RUN".to_owned(), exec.run.as_str().into()),
        ("LOCKSTEP_ATTEMPT".to_owned(), attempt.to_string().into()),
        ("LOCKSTEP_NODE".to_owned(), exec.node.as_str().into()),
        (
            "LOCKSTEP_PROBE_SOCKET".to_owned(),
            folder.file(files::PROBE_SOCKET).into(),
        ),
    ]);
    if std::env::var_os("LOCKSTEP_PROBE").is_none() {
        variables.insert("LOCKSTEP_PROBE".to_owned(), "on".into());
    }
    if !FLIGHT_RECORDER_VARIABLES
        .iter()
        .any(|name| std::env::var_os(name).is_some())
    {
        let sizes = FLIGHT_RECORDER_VARIABLES.map(|name| (name.to_owned(), FLIGHT_RECORDER_ENTRIES.into()));
        variables.extend(sizes);
    }
    let start = Start {
        spec: Spec {
            nccl_probe: exec.nccl_probe,
            ..Spec::default()
        },
        ..Start::default()
    };
    let setting = Setting {
        node: exec.node.clone(),
        data_dir: exec.data_dir.clone(),
        python: None,
        collector: None,
        root: PathBuf::from("/"),
        beside: std::env::current_exe()?
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default(),
        accepts_runs: false,
        shim: Vec::new(),
    };
    let plugin = Choice::for_run(&exec.run, &start, &setting);
    folder.write_json(files::NCCL, &nccl::Plan::make(&start, &plugin))?;
    if let Choice::Ours(path) = plugin {
        variables.insert("NCCL_PROFILER_PLUGIN".to_owned(), path.into());
    }
    Ok(variables)
}

/// Returns the script of a command, or its program.
#[must_use]
pub fn program_of(command: &[OsString]) -> String {
    let words = argv(command);
    let script = words.iter().find(|word| word.ends_with(".py"));
    script.or(words.first()).cloned().unwrap_or_default()
}

pub(crate) fn shell_line(command: &[OsString]) -> String {
    let launch = Launch {
        argv: argv(command),
        ..Launch::default()
    };
    launch.shell_line()
}

fn argv(command: &[OsString]) -> Vec<String> {
    let words = command.iter();
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Signals that this process received.
struct Signals {
    wakes: UnixStream,
    came: Vec<(Arc<AtomicBool>, Signal)>,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let (wakes, waker) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        let mut came = Vec::new();
        for (number, signal) in PASSED_ON {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(number, flag.clone())?;
            signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
            came.push((flag, signal));
        }
        Ok(Self { wakes, came })
    }

    /// Forwards the signals that the command did not receive itself. Returns true if any signal arrived that ends a command. A terminal
    /// sends Ctrl-C to the whole foreground group, and Slurm sends its signals to each process of a step. In these cases the command
    /// already has the signal, and torchrun takes a second one as a request to stop immediately.
    fn pass_on(&mut self, command: &OwnedFd) -> bool {
        let mut drain = [0_u8; 64];
        let _nothing_there = io::Read::read(&mut self.wakes, &mut drain);
        let mut ends = false;
        for (came, signal) in &self.came {
            if !came.swap(false, Ordering::AcqRel) {
                continue;
            }
            ends |= !matches!(*signal, Signal::USR1 | Signal::USR2);
            let by_terminal = matches!(*signal, Signal::INT | Signal::QUIT) && in_foreground();
            if !by_terminal && std::env::var_os("SLURM_JOB_ID").is_none() {
                let _gone = rustix::process::pidfd_send_signal(command, *signal);
            }
        }
        ends
    }
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let group = terminal.and_then(|terminal| Ok(rustix::termios::tcgetpgrp(terminal)?));
    group.is_ok_and(|group| group == rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_command_is_known_by_its_script() {
        assert_eq!(
            program_of(&words("torchrun --nproc-per-node=2 /a/train.py --lr 1")),
            "/a/train.py"
        );
        assert_eq!(program_of(&words("srun ./a.out")), "srun");
    }

    #[test]
    fn a_run_of_the_same_name_is_the_next_attempt() {
        let data = tempfile::tempdir().unwrap();
        let run = RunId::new("train-1").unwrap();
        assert_eq!(next_attempt(data.path(), &run).unwrap(), AttemptNo(1));
        Folder::of(data.path(), &run, AttemptNo(3)).create().unwrap();
        Folder::of(data.path(), &RunId::new("train-2").unwrap(), AttemptNo(9))
            .create()
            .unwrap();
        assert_eq!(next_attempt(data.path(), &run).unwrap(), AttemptNo(4));
    }

    /// Returns the reports about a command, and its exit code.
    fn watched(command: &[&str]) -> (u8, Vec<NodeReport>) {
        let data = tempfile::tempdir().unwrap();
        let run = RunId::new("train-1").unwrap();
        let watched = Exec {
            data_dir: data.path().to_owned(),
            run: run.clone(),
            name: "train".into(),
            node: NodeName::new("n1").unwrap(),
            nccl_probe: false,
            command: command.iter().map(OsString::from).collect(),
        };
        let code = exec(&watched, &mut |text| panic!("unexpected message: {text}"));
        let folder = Folder::of(data.path(), &run, AttemptNo(1));
        assert!(folder.is_watched() && !folder.shim_lives());
        let (entries, _) = shim::read_from(&folder.file(files::SHIM_REPORTS), 0).unwrap();
        (code, entries.into_iter().map(|entry| entry.report).collect())
    }

    #[test]
    fn ranks_below_a_command_are_found_and_their_ends_reported() {
        let rank = "RANK=5 LOCAL_RANK=1 sh -c 'test \"$TORCH_FR_BUFFER_SIZE\" = 2000 || exit 5; sleep 0.5; \
             test -s \"${LOCKSTEP_PROBE_SOCKET%/*}/page-5\" && exit 3'; test $? = 3 && exit 4";
        let (code, reports) = watched(&["sh", "-c", rank]);
        assert_eq!(code, 4);
        assert!(
            matches!(&reports[0], NodeReport::Watched(watched) if watched.program == "sh"),
            "{reports:?}"
        );
        let started = |report: &NodeReport| {
            matches!(
                report,
                NodeReport::RankStarted {
                    rank: Rank(5),
                    local_rank: 1,
                    ..
                }
            )
        };
        assert!(reports.iter().any(started), "{reports:?}");
        assert!(
            reports
                .iter()
                .any(|report| matches!(report, NodeReport::RankExited(exit) if exit.rank == Rank(5)))
        );
        let last = reports.last().unwrap();
        assert!(
            matches!(last, NodeReport::Ended(end) if end.code == Some(4) && end.cause == EndCause::Finished)
        );
    }

    #[test]
    fn a_command_that_kills_itself_or_is_not_there_returns_what_a_shell_returns() {
        let (code, reports) = watched(&[
            "sh",
            "-c",
            "RANK=0 LOCAL_RANK=0 exec sh -c 'sleep 0.3; kill -9 $$'",
        ]);
        assert_eq!(code, 137);
        let killed =
            |report: &NodeReport| matches!(report, NodeReport::RankExited(exit) if exit.signal == Some(9));
        assert!(reports.iter().any(killed), "{reports:?}");
        assert!(matches!(reports.last(), Some(NodeReport::Ended(end)) if end.signal == Some(9)));
        let data = tempfile::tempdir().unwrap();
        let mut messages = Vec::new();
        let missing = Exec {
            data_dir: data.path().to_owned(),
            run: RunId::new("x").unwrap(),
            name: "x".into(),
            node: NodeName::new("n1").unwrap(),
            nccl_probe: false,
            command: vec!["/nonexistent/program".into()],
        };
        assert_eq!(exec(&missing, &mut |text| messages.push(text)), NOT_FOUND);
        assert_eq!(messages.len(), 1, "{messages:?}");
    }

    #[test]
    fn an_exit_code_is_the_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(0x0300)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
