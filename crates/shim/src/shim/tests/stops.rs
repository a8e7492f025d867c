//! Tests of stops that processes resist, and of ends in an unusual order.

use std::path::Path;

use super::*;
use crate::cgroup::own_folder;

#[test]
fn a_rank_that_is_stopped_and_ignores_sigterm_is_killed_after_the_grace() {
    let case = Case::start(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf' + __import__('os').environ['RANK'], 'w'); time.sleep(600)",
    );
    case.wait_for_file("deaf0");
    case.wait_for_file("deaf1");
    signal(case.pid_of(0), rustix::process::Signal::STOP);
    case.folder.write(files::STOP, b"400").unwrap();
    let began = Instant::now();
    let (end, exits) = case.end();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(
        (end.cause, codes(&exits)),
        (EndCause::Stopped, vec![(None, Some(9)); 2])
    );
}

#[test]
fn a_rank_that_ends_successfully_too_early_is_reported_at_once() {
    // Not before the shim has seen it: on a busy machine it could live for less time than a check takes.
    let case = Case::start(
        "import os, time\nwhile os.environ['RANK'] == '0' or not os.path.exists('leave'): time.sleep(0.01)",
    );
    case.pid_of(1);
    std::fs::write(case.workdir().join("leave"), "").unwrap();
    case.wait_for(|report| {
        matches!(report, NodeReport::RankExited(exit) if exit.rank == Rank(1) && exit.code == Some(0))
    });
    let others = case
        .reports()
        .into_iter()
        .filter(|entry| matches!(entry.report, NodeReport::RankExited(_)));
    assert_eq!(others.count(), 1, "rank 0 goes on until somebody ends it");
    case.folder.write(files::STOP, b"0").unwrap();
    assert_eq!(case.end().0.cause, EndCause::Stopped);
}

#[test]
fn when_torchrun_is_killed_its_ranks_end_with_it_and_their_exits_are_known() {
    let case = Case::start("import time; time.sleep(600)");
    let _both = (case.pid_of(0), case.pid_of(1));
    let status: Status = case.folder.read(files::STATUS).unwrap();
    signal(status.launcher_pid, SIGKILL);
    let (end, exits) = case.end();
    assert_eq!((end.cause, end.signal), (EndCause::Finished, Some(9)));
    assert_eq!(codes(&exits), [(None, Some(15)); 2]);
    assert!(
        exits[0]
            .message
            .as_deref()
            .is_some_and(|message| message.contains("torchrun"))
    );
}

/// A process frozen by the freezer of cgroup v1 handles no signal at all, not even SIGKILL, like one that hangs in a driver.
struct Frozen {
    folder: PathBuf,
}

impl Frozen {
    fn group() -> Option<Self> {
        let own = own_folder(Path::new("/proc/self"), "cgroup", "freezer")?;
        let folder = own.join(format!("lockstep-test-{}", std::process::id()));
        std::fs::create_dir(&folder).ok().map(|()| Self { folder })
    }

    fn freeze(&self, pid: i32) {
        std::fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
        let deadline = Instant::now() + WAIT_MAX;
        std::fs::write(self.folder.join("freezer.state"), "FROZEN").unwrap();
        while std::fs::read_to_string(self.folder.join("freezer.state")).unwrap() != "FROZEN\n" {
            assert!(Instant::now() < deadline, "it does not freeze");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn thaw(&self) {
        std::fs::write(self.folder.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        let deadline = Instant::now() + WAIT_MAX;
        while std::fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_rank_that_no_signal_reaches_does_not_hold_up_the_end_and_is_named() {
    let Some(frozen) = Frozen::group() else {
        eprintln!("no freezer of cgroup v1 that can be written. Skipped.");
        return;
    };
    let hurry = [
        ("TEST_KILLED_MS", "500"),
        ("TEST_LAUNCHER_MS", "1000"),
        ("TEST_SWEEP_MS", "1500"),
    ];
    let case = Case::start_with("import time; time.sleep(600)", &hurry, &[]);
    let (_other, hangs) = (case.pid_of(0), case.pid_of(1));
    frozen.freeze(hangs);
    case.folder.write(files::STOP, b"200").unwrap();
    let began = Instant::now();
    let NodeReport::Ended(end) = case.wait_for(|report| matches!(report, NodeReport::Ended(_))) else {
        unreachable!()
    };
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(
        end.message.contains(&hangs.to_string()) && end.cause == EndCause::Stopped,
        "{end:?}"
    );
    let named =
        case.wait_for(|report| matches!(report, NodeReport::RankExited(exit) if exit.rank == Rank(1)));
    let NodeReport::RankExited(exit) = named else {
        unreachable!()
    };
    assert_eq!((exit.code, exit.signal), (None, None));
    assert!(
        exit.message
            .is_some_and(|message| message.contains("hangs in the kernel"))
    );
    // When it is thawed, the pending SIGKILL ends it.
    frozen.thaw();
    let deadline = Instant::now() + WAIT_MAX;
    while !marked(std::slice::from_ref(&case.mark)).is_empty() {
        assert!(Instant::now() < deadline, "it was never killed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Only the shim sees the small disk that is mounted over its folder; the test reads it through the shim's root folder.
const SMALL_DISK: &str = "cp @DIR/launch.json @DIR.json && mount -t tmpfs -o size=256k small @DIR && mkdir @DIR/probe \
                          && cp @DIR.json @DIR/launch.json && exec \"$@\"";

fn can_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "small", "/mnt"])
        .output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        eprintln!("no right to mount a small disk. Skipped.");
    }
    can
}

#[test]
fn a_full_disk_ends_no_training_and_reports_are_written_later() {
    if !can_mount() {
        return;
    }
    // The last error record is longer than the rest of the page that the reports have begun.
    let script = "import json, os, socket, sys, time\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ['SOCKET'])\n\
                  rank = int(os.environ['RANK'])\n\
                  def say(**r): s.send(json.dumps(dict(rank=rank, **r), separators=(',', ':')).encode())\n\
                  step = 0\n\
                  while not (rank == 1 and os.path.exists('raise')):\n\
                  \x20   step += 1\n\
                  \x20   say(kind='step', step=step, pad='x' * 500)\n\
                  \x20   time.sleep(0.02)\n\
                  say(kind='error', type='OSError', message='no space', traceback='T' * 6000)\n\
                  sys.exit(3)";
    let mut case = Case::start_with(script, &[], &["unshare", "-m", "sh", "-c", SMALL_DISK, "sh"]);
    let beneath = case.folder.clone();
    case.folder = Folder::at(format!(
        "/proc/{}/root{}",
        case.shim.id(),
        beneath.path().display()
    ));
    let deadline = Instant::now() + WAIT_MAX;
    while case.folder.path() != beneath.path() && !case.folder.has(files::STATUS) {
        assert!(Instant::now() < deadline, "the shim does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    for rank in [0, 1] {
        case.wait_for(|report| matches!(report, NodeReport::FirstStep { rank: Rank(r), .. } if *r == rank));
    }
    let fill = case.folder.path().join("fill");
    while std::fs::write(
        &fill,
        vec![0; std::fs::metadata(&fill).map_or(0, |meta| meta.len() as usize) + 4_096],
    )
    .is_ok()
    {}
    let before = case.reports().len();
    // Longer than the ranks' records need to reach the full disk.
    std::thread::sleep(Duration::from_secs(2));
    assert!(case.shim.try_wait().unwrap().is_none(), "the shim died of it");
    let raises = case.pid_of(1);
    std::fs::write(
        beneath.path().parent().unwrap().parent().unwrap().join("raise"),
        "",
    )
    .unwrap();
    while Process::of(raises).is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(case.shim.try_wait().unwrap().is_none(), "the shim waits for room");
    assert_eq!(
        case.reports().len(),
        before,
        "there is no room for a report, not for half of one"
    );
    // The shim's view of the disk ends with the shim; the opened file stays.
    let kept = File::open(case.folder.file(files::SHIM_REPORTS)).unwrap();
    std::fs::remove_file(&fill).unwrap();
    assert!(case.shim.wait().unwrap().success());
    let kept = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&kept));
    let (entries, _) = read_from(Path::new(&kept), 0).unwrap();
    let exited =
        |entry: &Entry| matches!(&entry.report, NodeReport::RankExited(exit) if exit.code == Some(3));
    assert!(entries.iter().any(exited), "{entries:#?}");
    assert!(matches!(entries.last().unwrap().report, NodeReport::Ended(_)));
    assert_eq!(marked(std::slice::from_ref(&case.mark)), []);
}
