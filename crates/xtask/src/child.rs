//! Child processes, each with a time limit and a log.
//!
//! A child writes stdout and stderr into `target/xtask/STEP.log`. So several children can run at once without mixed lines, and no pipe
//! blocks this program when a grandchild survives. Meanwhile a line from time to time shows the end of the log.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::layout::Layout;
use crate::progress;

/// Poll interval for a child; short compared with the important steps, which take seconds.
const POLL: Duration = Duration::from_millis(50);
/// Interval of progress lines during a long step.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How much of a failed child's log is shown: enough for a compiler error, not for a whole build.
const TAIL_BYTES: u64 = 16 * 1024;
/// Maximum length of a log line in a progress line.
const LINE_CHARS: usize = 120;
/// True when SIGINT and SIGTERM end this program again, after a child that can be asked to end.
static SIGNALS_END: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// A child process to run.
pub(crate) struct Child {
    step: String,
    command: Command,
    limit: Duration,
    log: PathBuf,
    /// The file that asks the child to end, if it can be asked.
    stop_file: Option<PathBuf>,
}

/// SIGINT and SIGTERM to this program, while a child can be asked to end. After that, they end this program as usual.
struct Signals {
    received: Arc<AtomicBool>,
}

/// A child that ended by itself, successfully or not.
pub(crate) struct Ended {
    /// The exit status.
    pub(crate) status: ExitStatus,
    /// The file with all its output.
    pub(crate) log: PathBuf,
}

impl Ended {
    /// Returns all its output.
    pub(crate) fn printed(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))
    }
}

/// Variables that `cargo xtask` sets about its own package. If children inherited them, build scripts that watch them (ring's) would run
/// again, and all their dependents would be compiled again, at the next build from a shell.
fn own_package() -> impl Iterator<Item = String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
}

impl Child {
    /// Creates a child in the root of this checkout.
    pub(crate) fn new(layout: &Layout, step: &str, program: impl AsRef<OsStr>, limit: Duration) -> Self {
        let mut command = Command::new(program);
        command
            .current_dir(&layout.root)
            .stdin(Stdio::null())
            .env("CARGO_TERM_COLOR", "never");
        for name in own_package() {
            command.env_remove(name);
        }
        Self {
            step: step.to_owned(),
            command,
            limit,
            log: layout.logs().join(format!("{step}.log")),
            stop_file: None,
        }
    }

    /// On SIGINT or SIGTERM, creates this file instead of ending: the child watches it, and ends by itself with what it has. A second signal
    /// kills the child. Ctrl-C does not reach the child, because it has its own process group.
    pub(crate) fn stopped_by(mut self, file: &Path) -> Self {
        self.command.process_group(0);
        self.stop_file = Some(file.to_owned());
        self
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable for the child only.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets several variables for the child only.
    pub(crate) fn envs(mut self, variables: &[(&'static str, PathBuf)]) -> Self {
        self.command
            .envs(variables.iter().map(|(name, value)| (name, value)));
        self
    }

    /// Starts the child in another folder.
    pub(crate) fn folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs the child. Any failure is an error that shows the end of the log.
    pub(crate) fn succeed(self) -> Result<Ended> {
        let step = self.step.clone();
        let ended = self.end()?;
        if !ended.status.success() {
            progress::block(&format!("{step} printed, at the end"), &tail(&ended.log)?);
            bail!(
                "{step} failed ({}); all it printed is in {}",
                ended.status,
                ended.log.display()
            );
        }
        Ok(ended)
    }

    /// Runs the child until it ends, successfully or not. After the limit it and all its descendants are killed, which is an error.
    pub(crate) fn end(mut self) -> Result<Ended> {
        let signals = self.listen()?;
        let mut process = self.spawn()?;
        let start = Instant::now();
        let mut heartbeat = start + HEARTBEAT;
        loop {
            if let Some(status) = process
                .try_wait()
                .with_context(|| format!("cannot wait for {}", self.step))?
            {
                return Ok(Ended {
                    status,
                    log: self.log,
                });
            }
            if start.elapsed() > self.limit {
                let limit_s = self.limit.as_secs();
                return Err(self.killed(process, &format!("took more than {limit_s} s")));
            }
            if signals.as_ref().is_some_and(Signals::take) && !self.ask_to_end() {
                return Err(self.killed(process, "did not end after the first signal"));
            }
            if Instant::now() > heartbeat {
                heartbeat += HEARTBEAT;
                progress::say(&self.step, &last_line(&self.log));
            }
            thread::sleep(POLL);
        }
    }

    /// Starts the child without a time limit. Returns the process and its log.
    pub(crate) fn start(mut self) -> Result<(Process, PathBuf)> {
        Ok((self.spawn()?, self.log))
    }

    fn spawn(&mut self) -> Result<Process> {
        let folder = self.log.parent().context("a log lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let log = File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let second = log
            .try_clone()
            .context("cannot share the log between two streams")?;
        self.command.stdout(log).stderr(second);
        self.command.spawn().with_context(|| {
            format!(
                "{}: cannot start `{}`",
                self.step,
                Path::new(self.command.get_program()).display()
            )
        })
    }

    /// Listens for signals if the child can be asked to end, and removes what an earlier signal has left.
    fn listen(&self) -> Result<Option<Signals>> {
        let Some(file) = &self.stop_file else {
            return Ok(None);
        };
        if file.exists() {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        let signals = Signals::listen().context("cannot listen for signals")?;
        Ok(Some(signals))
    }

    /// Asks the child to end. Returns false if it was asked before, or cannot be asked.
    fn ask_to_end(&self) -> bool {
        let Some(file) = self.stop_file.as_ref().filter(|file| !file.exists()) else {
            return false;
        };
        progress::say(&self.step, "ends with what is done; a second signal kills it");
        fs::write(file, "").is_ok()
    }

    fn killed(&self, mut process: Process, why: &str) -> anyhow::Error {
        kill_tree(process.id());
        process.wait().ok();
        progress::block(
            &format!("{} printed, before it was killed", self.step),
            &tail(&self.log).unwrap_or_default(),
        );
        anyhow::anyhow!("{} {why} and was killed; log: {}", self.step, self.log.display())
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let signals = Self {
            received: Arc::default(),
        };
        SIGNALS_END.store(false, Ordering::SeqCst);
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, SIGNALS_END.clone())?;
            signal_hook::flag::register(signal, signals.received.clone())?;
        }
        Ok(signals)
    }

    /// Returns true if a signal was received since the last call.
    fn take(&self) -> bool {
        self.received.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        SIGNALS_END.store(true, Ordering::SeqCst);
    }
}

/// Returns the trimmed standard output of a short program; an error if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{name}`"))?;
    if !output.status.success() {
        bail!(
            "`{name}` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the first file of that name on PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Returns the outcome of a program: the last line of JSON that it printed.
pub(crate) fn outcome(printed: &str) -> Option<Value> {
    let line = printed.lines().rev().find(|line| line.starts_with('{'))?;
    serde_json::from_str(line).ok()
}

/// Returns the end of a log, from the start of a line.
pub(crate) fn tail(log: &Path) -> Result<String> {
    let mut file = File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.find('\n') {
        Some(newline) if length > TAIL_BYTES => Ok(text[newline + 1..].to_owned()),
        _ => Ok(text),
    }
}

fn last_line(log: &Path) -> String {
    let text = tail(log).unwrap_or_default();
    let line = text
        .split(['\n', '\r'])
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    line.unwrap_or("still working").chars().take(LINE_CHARS).collect()
}

/// Kills a process and all its descendants, also those with their own session. All parents are read before the first kill, because the
/// parent of an orphan is lost.
fn kill_tree(root: u32) {
    let parents = parents();
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(child, _)| *child),
        );
        next += 1;
    }
    for pid in doomed {
        if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
            // The process may have ended meanwhile.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
}

/// Returns (process, its parent) for every process of this machine.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(parent_of)
        .collect()
}

fn parent_of(pid: u32) -> Option<(u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may contain anything, so fields are counted from its end: state, parent, …
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Some((pid, parent))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn layout(name: &str) -> Layout {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Layout {
            cache: root.join("cache"),
            root,
        }
    }

    #[test]
    fn a_child_that_fails_is_an_error_that_names_its_log() {
        let layout = layout("fails");
        let child =
            Child::new(&layout, "fails", "sh", Duration::from_secs(20)).args(["-c", "echo why; exit 3"]);
        let error = child.succeed().err().unwrap().to_string();
        assert!(error.contains("fails.log"), "{error}");
        assert_eq!(tail(&layout.logs().join("fails.log")).unwrap(), "why\n");
        fs::remove_dir_all(layout.root).unwrap();
    }

    #[test]
    fn an_overdue_child_dies_with_its_descendants() {
        let layout = layout("overdue");
        let script = "setsid sh -c 'echo $$; sleep 600'";
        let child = Child::new(&layout, "overdue", "sh", Duration::from_secs(2)).args(["-c", script]);
        assert!(child.end().err().unwrap().to_string().contains("was killed"));
        let grandchild: u32 = tail(&layout.logs().join("overdue.log"))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while alive(grandchild) {
            assert!(
                Instant::now() < deadline,
                "the grandchild {grandchild} is still alive"
            );
            thread::sleep(POLL);
        }
        fs::remove_dir_all(layout.root).unwrap();
    }

    #[test]
    fn a_child_that_watches_a_file_ends_by_itself_after_sigterm() {
        let layout = layout("asked");
        let file = layout.root.join("stop");
        fs::write(&file, "left by an earlier signal").unwrap();
        let script = format!(
            "while [ ! -e {} ]; do echo waits; sleep 0.1; done; echo table",
            file.display()
        );
        let log = layout.logs().join("asked.log");
        let sender = thread::spawn(move || {
            // The signals are listened for before the child starts.
            while !fs::read_to_string(&log).is_ok_and(|text| text.contains("waits")) {
                thread::sleep(POLL);
            }
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
        });
        let ended = Child::new(&layout, "asked", "sh", Duration::from_secs(60))
            .args(["-c", script.as_str()])
            .stopped_by(&file)
            .end()
            .unwrap();
        sender.join().unwrap();
        assert!(ended.status.success());
        assert!(ended.printed().unwrap().ends_with("waits\ntable\n"));
        fs::remove_dir_all(layout.root).unwrap();
    }

    /// Returns true if the process is not a zombie: a zombie is dead, but its parent has not read its status yet.
    fn alive(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }
}
