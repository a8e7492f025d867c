//! Tests of hidden daemons and of kills because of memory, with real cgroups if this machine has them.

use std::path::Path;

use super::*;
use crate::cgroup::own_folder;

/// Rank 0 leaves a daemon: own session, no parent, no open files, an empty environment, and it ignores SIGTERM.
const DAEMON: &str = r#"
import os, sys, time
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
if os.environ["RANK"] == "0":
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid:
            with open("daemon.new", "w") as note:
                note.write(str(pid))
            os.rename("daemon.new", "daemon")
            os._exit(0)
        os.closerange(0, 256)
        os.execve(sys.executable, ["d", "-c", DEAF], {})
    os.wait()
time.sleep(600)
"#;

fn can_make(kinds: &str) -> bool {
    let own = Hierarchies::read(Path::new("/proc/self"));
    let home = if kinds == "v1" { own.pids } else { own.unified };
    let probe = home.map(|home| home.join(format!("lockstep-test-{}", std::process::id())));
    let can = probe.is_some_and(|probe| {
        std::fs::create_dir(&probe)
            .and_then(|()| std::fs::remove_dir(&probe))
            .is_ok()
    });
    if !can {
        eprintln!("no cgroup {kinds} that can be written. Skipped.");
    }
    can
}

/// Returns the daemon, once it has cleared its environment.
fn daemon(case: &Case) -> Process {
    let pid = std::fs::read_to_string(case.wait_for_file("daemon"))
        .unwrap()
        .parse()
        .unwrap();
    let deadline = Instant::now() + WAIT_MAX;
    while !tree::environment(pid).is_empty() {
        assert!(Instant::now() < deadline, "it never became a daemon");
        std::thread::sleep(Duration::from_millis(20));
    }
    Process::of(pid).unwrap()
}

fn status(case: &Case) -> Status {
    case.folder.read(files::STATUS).unwrap()
}

fn a_daemon_does_not_survive_a_stop(kinds: &str, kept_by: &str) {
    let case = Case::start_with(DAEMON, &[("LOCKSTEP_CGROUPS", kinds)], &[]);
    let daemon = daemon(&case);
    let shown = status(&case).kept_by;
    assert!(shown.starts_with(kept_by), "{shown}");
    let reported = case.wait_for(|report| matches!(report, NodeReport::ShimStarted { .. }));
    assert!(matches!(reported, NodeReport::ShimStarted { kept_by, .. } if kept_by == shown));
    case.folder.write(files::STOP, b"300").unwrap();
    case.end();
    assert!(!daemon.lives(), "the daemon survived");
    let group = shown.split_once(" /").map(|(_, path)| format!("/{path}"));
    assert!(
        group.is_none_or(|group| !Path::new(&group).exists()),
        "the group is left: {shown}"
    );
}

/// The daemon has no subreaper and no mark any more: only the cgroup contains it.
fn a_daemon_does_not_survive_its_shim(kinds: &str) {
    let mut case = Case::start_with(DAEMON, &[("LOCKSTEP_CGROUPS", kinds)], &[]);
    let daemon = daemon(&case);
    case.shim.kill().unwrap();
    case.shim.wait().unwrap();
    let leftovers = LeftoverProcesses::of(&case.folder, vec![case.mark.clone()]);
    assert!(leftovers.find().len() >= 4, "torchrun, two ranks and the daemon");
    let deadline = Instant::now() + WAIT_MAX;
    while leftovers.kill() {
        assert!(
            Instant::now() < deadline,
            "they do not end: {:?}",
            leftovers.find()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    leftovers.close();
    assert!(!daemon.lives() && marked(std::slice::from_ref(&case.mark)).is_empty());
    let group = Owner::read(&case.folder).group.unwrap();
    assert!(!group.path().exists());
}

#[test]
fn a_daemon_does_not_survive_in_the_process_tree() {
    a_daemon_does_not_survive_a_stop("off", "the process tree");
}

#[test]
fn a_daemon_does_not_survive_in_a_group_of_v2() {
    if can_make("v2") {
        a_daemon_does_not_survive_a_stop("v2", "cgroup v2 /");
        a_daemon_does_not_survive_its_shim("v2");
    }
}

#[test]
fn a_daemon_does_not_survive_in_a_group_of_v1() {
    if can_make("v1") {
        a_daemon_does_not_survive_a_stop("v1", "cgroup v1 (pids) /");
        a_daemon_does_not_survive_its_shim("v1");
    }
}

/// A v1 group with little memory, at the top of its hierarchy.
struct Narrow(PathBuf);

impl Narrow {
    fn make() -> Option<Self> {
        let own = own_folder(Path::new("/proc/self"), "cgroup", "memory")?;
        let top = own
            .ancestors()
            .take_while(|folder| folder.join("memory.oom_control").exists())
            .last()?;
        let folder = top.join(format!("lockstep-test-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let narrow = Self(folder);
        std::fs::write(narrow.0.join("memory.limit_in_bytes"), "200M").ok()?;
        Some(narrow)
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        let deadline = Instant::now() + WAIT_MAX;
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_rank_that_the_kernel_kills_for_memory_is_reported_as_such() {
    let Some(narrow) = Narrow::make() else {
        eprintln!("no memory controller of cgroup v1 that can be written. Skipped.");
        return;
    };
    let script = "import os, time\n\
                  hoard = []\n\
                  while os.environ['RANK'] == '1': hoard.append(b'x' * (4 << 20))\n\
                  time.sleep(600)";
    let procs = narrow.0.join("cgroup.procs");
    let enter = format!("echo 0 > {} && exec \"$@\"", procs.display());
    let case = Case::start_with(script, &[], &["sh", "-c", &enter, "sh"]);
    let NodeReport::RankExited(exit) =
        case.wait_for(|report| matches!(report, NodeReport::RankExited(exit) if exit.rank == Rank(1)))
    else {
        unreachable!()
    };
    assert_eq!((exit.signal, exit.out_of_memory), (Some(9), true));
    assert_eq!(
        status(&case).memory_kills,
        narrow.0.join("memory.oom_control").display().to_string()
    );
    let (_, exits) = case.end();
    assert!(!exits[0].out_of_memory, "the other one was ended by the shim");
}
