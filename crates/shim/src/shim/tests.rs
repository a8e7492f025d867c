//! Tests of the shim with real processes: Python ranks without PyTorch under a stand-in for torchrun that spawns, polls and reaps as
//! torchrun does, and the real torchrun if the test environment has it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use domain::run::state::RankExit;
use rustix::process::{Pid, Signal};

use super::*;
use crate::datagrams::{SEGMENT_BYTES, SEGMENTS_MAX, segment_path, segments};
use crate::files;
use crate::orders::StopOrder;
use crate::owner::LeftoverProcesses;
use crate::reports::Entry;
use crate::shim::status_reports::Status;
use crate::tree::{SIGKILL, marked};

/// Spawns ranks and checks them every half second. After a failure it ends the others and reports which rank failed, as torchrun does.
const LAUNCHER: &str = r#"
import os, subprocess, sys, time
ranks = []
for local in range(int(sys.argv[1])):
    env = dict(os.environ, RANK=str(local), LOCAL_RANK=str(local), WORLD_SIZE=sys.argv[1], TORCHELASTIC_RUN_ID="x")
    ranks.append(subprocess.Popen([sys.executable, "-c", os.environ["SCRIPT"]], env=env, start_new_session=True))
while True:
    time.sleep(0.5)
    codes = [rank.poll() for rank in ranks]
    bad = [(local, code) for local, code in enumerate(codes) if code not in (None, 0)]
    if bad:
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait()
        for local, code in bad:
            print(f"failed (exitcode: {code}) local_rank: {local} (pid: {ranks[local].pid}) of binary: x", file=sys.stderr)
        sys.exit(1)
    if all(code == 0 for code in codes):
        sys.exit(0)
"#;

/// Maximum time for any wait. It only ends a test that hangs: torchrun imports PyTorch, which takes a minute if nothing of it is cached.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Sends a signal to the process with this id.
fn signal(pid: i32, signal: Signal) {
    let _gone = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// The shim itself: this test's own executable, started again by [`Case::start`].
#[test]
#[ignore = "the process under test; other tests start it"]
fn shim_process() {
    let dir = std::env::args_os()
        .next_back()
        .filter(|dir| Path::new(dir).is_dir());
    std::process::exit(run_and_print_error(Path::new(&dir.unwrap()), hurried()).into());
}

/// The default times of the shim, or shorter ones if the environment sets them.
fn hurried() -> Setting {
    let mut setting = Setting::of_environment();
    let ms = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(Duration::from_millis(text.parse().unwrap()))
    };
    let Setting { limits, timeouts, .. } = &mut setting;
    for (name, value) in [
        ("TEST_STOPPED_MS", &mut limits.stopped),
        ("TEST_UNINTERRUPTIBLE_MS", &mut limits.uninterruptible),
        ("TEST_NO_STEP_MS", &mut limits.no_step),
        ("TEST_KILLED_MS", &mut timeouts.killed),
        ("TEST_LAUNCHER_MS", &mut timeouts.launcher),
        ("TEST_SWEEP_MS", &mut timeouts.sweep),
    ] {
        *value = ms(name).unwrap_or(*value);
    }
    setting
}

mod groups;
mod stalls;
mod stops;

struct Case {
    folder: Folder,
    shim: Child,
    mark: String,
    _data: tempfile::TempDir,
}

impl Case {
    fn start(script: &str) -> Self {
        Self::start_with(script, &[], &[])
    }

    /// Like `start`, with variables for the shim, and through another program that finally executes the shim.
    fn start_with(script: &str, variables: &[(&str, &str)], by: &[&str]) -> Self {
        let argv = ["python3", "-c", LAUNCHER, "2"].map(str::to_owned).to_vec();
        Self::launch_with(argv, script, variables, by)
    }

    fn launch(argv: Vec<String>, script: &str) -> Self {
        Self::launch_with(argv, script, &[], &[])
    }

    fn launch_with(argv: Vec<String>, script: &str, variables: &[(&str, &str)], by: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path().join("runs/x.1"));
        folder.create().unwrap();
        let run = format!("t{}", data.path().file_name().unwrap().to_str().unwrap());
        let env = [
            ("SCRIPT", script.to_owned()),
            ("LOCKSTEP_RUN", run.clone()),
            (
                "SOCKET",
                folder.file(files::PROBE_SOCKET).to_str().unwrap().to_owned(),
            ),
        ];
        let launch = Launch {
            argv: argv
                .into_iter()
                .map(|word| word.replace("@DIR", folder.path().to_str().unwrap()))
                .collect(),
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            workdir: data.path().to_str().unwrap().to_owned(),
            nproc: 2,
            ..Launch::default()
        };
        folder.write_json(files::LAUNCH, &launch).unwrap();
        let exe = std::env::current_exe().unwrap();
        let here = folder.path().to_str().unwrap();
        let by = by.iter().map(|word| word.replace("@DIR", here).into());
        let words: Vec<std::ffi::OsString> = by.chain([exe.into()]).collect();
        let shim = Command::new(&words[0])
            .args(&words[1..])
            .args(["--ignored", "--exact", "shim::tests::shim_process"])
            .arg(folder.path())
            .env("LOCKSTEP_TOKEN", "secret")
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self {
            folder,
            shim,
            mark: format!("LOCKSTEP_RUN={run}"),
            _data: data,
        }
    }

    fn reports(&self) -> Vec<Entry> {
        read_from(&self.folder.file(files::SHIM_REPORTS), 0).unwrap().0
    }

    fn wait_for(&self, what: impl Fn(&NodeReport) -> bool) -> NodeReport {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(entry) = self.reports().into_iter().find(|entry| what(&entry.report)) {
                return entry.report;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain; there is: {:#?}",
                self.reports()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn pid_of(&self, rank: u32) -> i32 {
        let started =
            self.wait_for(|report| matches!(report, NodeReport::RankStarted { rank: r, .. } if r.0 == rank));
        let NodeReport::RankStarted { pid, .. } = started else {
            unreachable!()
        };
        i32::try_from(pid).unwrap()
    }

    /// The working directory of the ranks.
    fn workdir(&self) -> PathBuf {
        self.folder.path().parent().unwrap().parent().unwrap().to_owned()
    }

    fn wait_for_file(&self, name: &str) -> PathBuf {
        let path = self.workdir().join(name);
        let deadline = Instant::now() + WAIT_MAX;
        while !path.exists() {
            assert!(Instant::now() < deadline, "{name} never came");
            std::thread::sleep(Duration::from_millis(20));
        }
        path
    }

    /// Waits for the end. Returns it with the exits in the order of the ranks, after checking that no process is left.
    fn end(mut self) -> (NodeEnd, Vec<RankExit>) {
        let NodeReport::Ended(end) = self.wait_for(|report| matches!(report, NodeReport::Ended(_))) else {
            unreachable!()
        };
        assert!(self.shim.wait().unwrap().success());
        assert_eq!(
            marked(std::slice::from_ref(&self.mark)),
            [],
            "processes were left behind"
        );
        assert!(!self.folder.shim_lives());
        let mut exits: Vec<RankExit> = self
            .reports()
            .into_iter()
            .filter_map(|entry| {
                if let NodeReport::RankExited(exit) = entry.report {
                    Some(exit)
                } else {
                    None
                }
            })
            .collect();
        exits.sort_by_key(|exit| exit.rank);
        (end, exits)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ended = self.shim.kill();
        let _reaped = self.shim.wait();
        let leftovers = LeftoverProcesses::of(&self.folder, vec![self.mark.clone()]);
        let deadline = Instant::now() + WAIT_MAX;
        while leftovers.kill() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        leftovers.close();
    }
}

fn codes(exits: &[RankExit]) -> Vec<(Option<i32>, Option<i32>)> {
    exits.iter().map(|exit| (exit.code, exit.signal)).collect()
}

#[test]
fn ranks_that_end_well_are_a_success() {
    let case = Case::start("import os; assert 'LOCKSTEP_TOKEN' not in os.environ; print('hello')");
    let (end, exits) = case.end();
    assert_eq!(
        end,
        NodeEnd {
            code: Some(0),
            ..NodeEnd::default()
        }
    );
    assert_eq!(codes(&exits), [(Some(0), None); 2]);
}

#[test]
fn a_killed_rank_is_the_first_to_fail_and_ends_the_others() {
    let case = Case::start("import time; time.sleep(600)");
    let _both = case.pid_of(0);
    signal(case.pid_of(1), SIGKILL);
    let began = Instant::now();
    let (end, exits) = case.end();
    assert!(began.elapsed() < FAILURE_GRACE, "{:?}", began.elapsed());
    assert_eq!(codes(&exits), [(None, Some(15)), (None, Some(9))]);
    assert!(exits[1].at_ns < exits[0].at_ns);
    assert_eq!((end.code, end.cause), (Some(1), EndCause::Finished));
    assert!(end.message.contains("exitcode: -9"), "{}", end.message);
}

#[test]
fn a_stop_ends_ranks_that_ignore_sigterm_after_the_grace() {
    let case = Case::start(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf' + __import__('os').environ['RANK'], 'w'); time.sleep(600)",
    );
    case.wait_for_file("deaf0");
    case.wait_for_file("deaf1");
    case.folder.write(files::STOP, b"300").unwrap();
    let began = Instant::now();
    let (end, exits) = case.end();
    assert!(
        (Duration::from_millis(290)..Duration::from_secs(6)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(end.cause, EndCause::Stopped);
    assert_eq!(codes(&exits), [(None, Some(9)); 2]);
}

#[test]
fn sigterm_to_the_shim_is_a_stop_with_time_to_save() {
    let script = "import os, signal, time\n\
                  def stop(*_): time.sleep(0.3); open('saved', 'w'); os._exit(0)  # Python drops a SystemExit that is raised while it closes a file\n\
                  signal.signal(signal.SIGTERM, stop); open('ready' + os.environ['RANK'], 'w'); time.sleep(600)";
    let case = Case::start(script);
    case.wait_for_file("ready0");
    case.wait_for_file("ready1");
    signal(
        i32::try_from(case.shim.id()).unwrap(),
        rustix::process::Signal::TERM,
    );
    case.wait_for_file("saved");
    let (end, exits) = case.end();
    assert_eq!(end.cause, EndCause::Stopped);
    assert_eq!(codes(&exits), [(Some(0), None); 2]);
}

#[test]
fn orphans_in_their_own_session_do_not_survive() {
    let script = "import os, subprocess, sys, time\n\
                  deaf = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(\"orphan\", \"w\"); time.sleep(600)'\n\
                  if os.environ['RANK'] == '0':\n\
                  \x20   subprocess.Popen([sys.executable, '-c', deaf], start_new_session=True)\n\
                  while not os.path.exists('orphan'): time.sleep(0.02)";
    let (end, exits) = Case::start(script).end();
    assert_eq!((end.code, exits.len()), (Some(0), 2));
}

#[test]
fn an_exception_travels_from_the_probe_into_the_exit() {
    let script = "import os, json, socket, time, sys\n\
                  rank = int(os.environ['RANK'])\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ['SOCKET'])\n\
                  def say(**r): s.send(json.dumps(dict(v=1, rank=rank, wall_ns=time.time_ns(), **r), separators=(',', ':')).encode())\n\
                  say(kind='step', step=1)\n\
                  if rank == 1: say(kind='error', type='ValueError', message='bad batch', traceback='T'); sys.exit(1)\n\
                  time.sleep(600)";
    let case = Case::start(script);
    case.wait_for(|report| {
        matches!(
            report,
            NodeReport::FirstStep {
                rank: Rank(1),
                step: 1
            }
        )
    });
    let folder = case.folder.clone();
    let kept = || std::fs::read_to_string(segment_path(&folder, 1)).unwrap();
    case.wait_for(|report| matches!(report, NodeReport::RankExited(exit) if exit.rank == Rank(1)));
    assert!(kept().lines().count() >= 2 && kept().contains("bad batch"));
    let (_, exits) = case.end();
    assert_eq!(
        (exits[1].error_type.as_deref(), exits[1].message.as_deref()),
        (Some("ValueError"), Some("bad batch"))
    );
    assert_eq!((exits[1].code, exits[0].signal), (Some(1), Some(15)));
}

/// Rank 0 reaches the stop point and exits with 3; rank 1 reaches it and saves for longer than torchrun would wait. The files `readyRANK`
/// exist once the ranks handle SIGTERM.
const COMES_TO_THE_STEP: &str = r#"
import json, os, signal, socket, sys, time
rank = int(os.environ["RANK"])
def signalled(*_):
    open("signalled", "w"); os._exit(9)
signal.signal(signal.SIGTERM, signalled)
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ["SOCKET"])
open(f"ready{rank}", "w")
while not os.path.exists(os.path.dirname(os.environ["SOCKET"]) + "/stop.after"): time.sleep(0.02)
time.sleep(0.2 * rank)
s.send(json.dumps(dict(v=1, kind="stop", rank=rank, step=12, how="signal"), separators=(",", ":")).encode())
if rank == 0: sys.exit(3)
time.sleep(float(os.environ.get("SAVES_S", "1.5"))); open("saved", "w")
"#;

#[test]
fn a_failure_after_the_stop_point_does_not_end_ranks_that_still_save() {
    let case = Case::start(COMES_TO_THE_STEP);
    let _both = (case.pid_of(0), case.pid_of(1));
    case.wait_for_file("ready0");
    case.wait_for_file("ready1");
    let order = StopOrder {
        step: 12,
        grace_ms: 15_000,
    };
    case.folder.write_json(files::STOP_AFTER, &order).unwrap();
    let saved = case.wait_for_file("saved");
    assert!(!saved.with_file_name("signalled").exists());
    let came: Vec<NodeReport> = case.reports().into_iter().map(|entry| entry.report).collect();
    for rank in [Rank(0), Rank(1)] {
        assert!(
            came.contains(&NodeReport::StopStep { rank, step: 12 }),
            "{came:?}"
        );
    }
    let (end, exits) = case.end();
    assert_eq!(codes(&exits), [(Some(3), None), (Some(0), None)]);
    assert_eq!((end.cause, end.message.as_str()), (EndCause::Stopped, ""));
}

#[test]
fn a_rank_that_does_not_exit_after_the_stop_point_is_terminated_and_then_killed() {
    let case = Case::start(&COMES_TO_THE_STEP.replace("1.5", "600"));
    let _both = (case.pid_of(0), case.pid_of(1));
    case.wait_for_file("ready0");
    case.wait_for_file("ready1");
    let order = StopOrder {
        step: 12,
        grace_ms: 300,
    };
    case.folder.write_json(files::STOP_AFTER, &order).unwrap();
    case.wait_for_file("signalled");
    let (end, exits) = case.end();
    assert_eq!(codes(&exits), [(Some(3), None), (Some(9), None)]);
    assert_eq!(end.cause, EndCause::Stopped);
}

#[test]
fn a_missing_program_is_reported() {
    let mut case = Case::launch(vec!["/nonexistent/python".into()], "");
    let report = case.wait_for(|report| matches!(report, NodeReport::StartFailed { .. }));
    let NodeReport::StartFailed { message } = report else {
        unreachable!()
    };
    assert!(message.contains("/nonexistent/python"), "{message}");
    case.shim.wait().unwrap();
}

#[test]
fn a_stop_that_was_requested_before_the_shim_started_starts_nothing() {
    let case = Case::start_with(
        "open('ran', 'w')",
        &[],
        &["sh", "-c", "echo 0 > @DIR/stop && exec \"$@\"", "sh"],
    );
    let ran = case.workdir().join("ran");
    let reports = case.folder.clone();
    assert_eq!(case.end().0.cause, EndCause::NeverStarted);
    assert!(!ran.exists() && !reports.has(files::OWNER));
}

#[test]
fn datagrams_go_to_segments_and_the_oldest_goes() {
    let data = tempfile::tempdir().unwrap();
    let folder = Folder::at(data.path().join("a-rather-long-name-".repeat(8)));
    folder.create().unwrap();
    let mut datagrams = Datagrams::open(&folder).unwrap();
    let opened = File::open(folder.path()).unwrap();
    let address = format!(
        "/proc/self/fd/{}/probe.sock",
        std::os::fd::AsRawFd::as_raw_fd(&opened)
    );
    let sender = UnixDatagram::unbound().unwrap();
    let line = vec![b'x'; 8_000];
    for _ in 0..(SEGMENTS_MAX + 2) * SEGMENT_BYTES / 8_000 {
        sender.send_to(&line, &address).unwrap();
        datagrams.take(|_| {}).unwrap();
    }
    sender.send_to(b"two\nlines", &address).unwrap();
    let mut seen = Vec::new();
    datagrams.take(|line| seen.push(line.to_vec())).unwrap();
    assert_eq!(seen, [b"two lines"]);
    let numbers = segments(&folder);
    assert_eq!(numbers.len() as u64, SEGMENTS_MAX);
    assert_eq!(numbers.last(), Some(&(SEGMENTS_MAX + 2)));
}

/// Needs PyTorch: the environment that `cargo xtask test` creates.
#[test]
fn real_torchrun_names_the_killed_rank() {
    let venv = std::env::var_os("LOCKSTEP_TEST_VENV").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/lockstep/venv"));
    let Some(python) = venv.or_else(home).map(|venv| venv.join("bin/python")) else {
        return;
    };
    if !python.exists() {
        eprintln!("no {}; `cargo xtask test` makes it. Skipped.", python.display());
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let script = data.path().join("sleep.py");
    std::fs::write(&script, "import time; print('up', flush=True); time.sleep(600)").unwrap();
    let options = "-m torch.distributed.run --nnodes=1 --node-rank=0 --nproc-per-node=2 --max-restarts=0 --rdzv-backend=static \
                   --rdzv-id=x.1 --master-addr=127.0.0.1 --monitor-interval=0.5 --log-dir=@DIR/ranks --redirects=3";
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut argv = vec![python.to_str().unwrap().to_owned()];
    argv.extend(options.split_whitespace().map(str::to_owned));
    argv.extend([
        format!("--master-port={port}"),
        script.to_str().unwrap().to_owned(),
    ]);
    let case = Case::launch(argv, "");
    let _both = case.pid_of(0);
    signal(case.pid_of(1), SIGKILL);
    let (end, exits) = case.end();
    assert_eq!(codes(&exits), [(None, Some(15)), (None, Some(9))]);
    assert_eq!(end.code, Some(1));
}
