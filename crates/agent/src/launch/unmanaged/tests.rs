//! Tests with real processes that have the environment of ranks, found in the real `/proc`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use domain::ident::AttemptNo;
use domain::run::state::{NodeReport, Watched};
use rustix::process::{Pid, Signal, kill_process_group};
use shim::{files, read_from};

use super::*;
use crate::launch::testing;

struct Job {
    data: tempfile::TempDir,
    name: String,
    ranks: Vec<Child>,
}

impl Job {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let name = data.path().file_name().unwrap().to_str().unwrap();
        let name = format!("job{}", name.trim_start_matches('.'));
        Self {
            data,
            name,
            ranks: Vec::new(),
        }
    }

    /// Starts a rank that runs this script, with a child process that has the same variables. `cat` is a rank that trains until the job is
    /// over. The rank runs when this returns: while a process executes another program, its environment reads as empty.
    fn rank(&mut self, rank: u32, script: &str, more: &[(&str, &str)]) {
        let mut rank = Command::new("sh")
            .args([
                "-c",
                &format!("sleep 600 & worker=$!; echo; {script}; code=$?; kill $worker; exit $code"),
            ])
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("TORCHELASTIC_RUN_ID", &self.name)
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let read = rank.stdout.as_mut().unwrap().read(&mut [0]);
        assert_eq!(read.unwrap(), 1, "it ended at once");
        self.ranks.push(rank);
    }

    fn watcher(&self) -> Watcher {
        Watcher {
            node: NodeName::new("n0").unwrap(),
            data_dir: self.data.path().to_owned(),
            seen: HashMap::new(),
            jobs: BTreeMap::new(),
        }
    }

    fn reports(&self) -> Vec<NodeReport> {
        let run = RunId::new(self.name.clone()).unwrap();
        let folder = Folder::of(self.data.path(), &run, AttemptNo(1));
        let (entries, _) = read_from(&folder.file(files::SHIM_REPORTS), 0).unwrap();
        entries.into_iter().map(|entry| entry.report).collect()
    }

    fn watched<'a>(&self, watcher: &'a mut Watcher) -> Option<&'a mut UnmanagedJob> {
        watcher.jobs.get_mut(&RunId::new(self.name.clone()).unwrap())
    }

    /// Ticks until nothing is left to watch. The ranks are not reaped before.
    fn ended(&mut self, watcher: &mut Watcher) -> NodeReport {
        let deadline = Instant::now() + Duration::from_secs(60);
        let watched = self.watched(watcher).unwrap();
        while watched.tick().unwrap() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.reports().pop().unwrap()
    }

    /// Lets the ranks end.
    fn over(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.stdin.take());
        }
    }

    /// Reaps the ranks, as the parent that started them.
    fn take(&mut self) {
        for rank in &mut self.ranks {
            rank.wait().unwrap();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // Including its child process and its current command.
            let _ended = kill_process_group(Pid::from_child(rank), Signal::KILL);
            let _taken = rank.wait();
        }
    }
}

fn code(report: &NodeReport) -> Option<i32> {
    match report {
        NodeReport::Ended(end) => end.code,
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn ranks_are_found_without_their_workers_and_end_as_they_did() {
    let mut job = Job::new();
    job.rank(0, "cat", &[]);
    job.rank(1, "cat", &[]);
    let mut watcher = job.watcher();
    watcher.scan();
    watcher.scan();
    let reports = job.reports();
    let NodeReport::Watched(Watched { program, found, .. }) = &reports[0] else {
        panic!("{reports:?}")
    };
    assert_eq!((program.as_str(), *found), ("sh", true));
    let mut ranks: Vec<(u32, u32)> = reports[1..]
        .iter()
        .map(|report| match report {
            NodeReport::RankStarted { rank, pid, .. } => (rank.0, *pid),
            other => panic!("{other:?}"),
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [(0, job.ranks[0].id()), (1, job.ranks[1].id())]);
    // The test, which is their parent, does not reap them, so the agent can read their status, as with torchrun.
    job.watched(&mut watcher).unwrap().launcher_is_gone();
    job.over();
    let end = job.ended(&mut watcher);
    assert_eq!(code(&end), Some(0));
}

#[test]
fn a_failed_rank_is_reported_and_a_missed_status_is_unknown() {
    let mut job = Job::new();
    job.rank(0, "cat; false", &[]);
    let mut watcher = job.watcher();
    watcher.scan();
    let watched = job.watched(&mut watcher).unwrap();
    // Its parent, the test, continues to run, like a launcher that might restart it.
    watched.launcher_is_gone();
    job.over();
    let end = job.ended(&mut watcher);
    assert_eq!(code(&end), None);
    assert!(
        job.reports()
            .iter()
            .any(|report| matches!(report, NodeReport::RankExited(exit) if exit.code == Some(1)))
    );

    let mut job = Job::new();
    job.rank(0, "cat", &[]);
    let mut watcher = job.watcher();
    watcher.scan();
    job.watched(&mut watcher).unwrap().launcher_is_gone();
    job.over();
    job.take();
    let end = job.ended(&mut watcher);
    assert_eq!(code(&end), None, "0 was not seen, so it is not claimed");
}

#[test]
fn what_lockstep_started_is_left_alone() {
    let mut job = Job::new();
    job.rank(0, "cat", &[("LOCKSTEP_RUN", "mine")]);
    let mut watcher = job.watcher();
    watcher.scan();
    assert!(job.watched(&mut watcher).is_none());
}

#[test]
fn the_next_agent_continues_to_watch_and_a_late_one_reports_an_unknown_result() {
    let mut job = Job::new();
    job.rank(0, "cat", &[]);
    let mut first = job.watcher();
    first.scan();
    let mut beside = job.watcher();
    beside.adopt();
    assert!(job.watched(&mut beside).is_none(), "the first one holds it");
    drop(first);
    let mut second = job.watcher();
    second.adopt();
    second.scan();
    assert_eq!(job.reports().len(), 2, "nothing is reported twice");
    job.watched(&mut second).unwrap().launcher_is_gone();
    drop(second);
    job.over();
    job.take();
    let mut third = job.watcher();
    third.adopt();
    job.watched(&mut third).unwrap().launcher_is_gone();
    let end = job.ended(&mut third);
    assert_eq!(code(&end), None);
    let mut fourth = job.watcher();
    fourth.adopt();
    assert!(job.watched(&mut fourth).is_none(), "it is over");
}

#[test]
fn a_torchrun_that_was_started_by_hand_is_watched_to_its_end() {
    let Some(python) = testing::python_with_torch() else {
        return;
    };
    let mut job = Job::new();
    let script = job.data.path().join("train.py");
    // The ranks stay until the test has seen both. If the test fails before, they end by themselves.
    std::fs::write(
        &script,
        "import os, time\n\
         leave, until = os.path.join(os.path.dirname(__file__), 'leave'), time.monotonic() + 240\n\
         while not os.path.exists(leave) and time.monotonic() < until: time.sleep(0.02)\n\
         raise SystemExit(int(os.environ['RANK']) * 3)\n",
    )
    .unwrap();
    let torchrun = Command::new(python)
        .args([
            "-m",
            "torch.distributed.run",
            "--nnodes=1",
            "--nproc-per-node=2",
            "--rdzv-backend=c10d",
        ])
        .args(["--rdzv-endpoint=127.0.0.1:0", "--rdzv-id", &job.name])
        .arg(&script)
        .env("OMP_NUM_THREADS", "1")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    job.ranks.push(torchrun);
    let mut watcher = job.watcher();
    // torchrun imports PyTorch before it starts the ranks.
    let deadline = Instant::now() + Duration::from_secs(240);
    while job
        .watched(&mut watcher)
        .is_none_or(|watched| watched.pids().count() < 2)
    {
        assert!(Instant::now() < deadline, "no ranks came");
        std::thread::sleep(Duration::from_millis(50));
        // Examine all processes again: the test cannot wait for the next scan.
        watcher.seen.clear();
        watcher.scan();
    }
    std::fs::write(job.data.path().join("leave"), "").unwrap();
    let waited = std::thread::spawn({
        let mut torchrun = job.ranks.pop().unwrap();
        move || torchrun.wait().unwrap()
    });
    loop {
        watcher.wait();
        if !job.watched(&mut watcher).unwrap().tick().unwrap() {
            break;
        }
        assert!(Instant::now() < deadline, "it does not end");
    }
    assert!(!waited.join().unwrap().success());
    let reports = job.reports();
    let NodeReport::Watched(watched) = &reports[0] else {
        panic!("{reports:?}")
    };
    assert!(
        watched.command.contains("torch.distributed.run"),
        "{}",
        watched.command
    );
    assert!(watched.program.ends_with("train.py"), "{}", watched.program);
    let failed = reports.iter().find_map(|report| match report {
        NodeReport::RankExited(exit) if exit.rank.0 == 1 => exit.code,
        _ => None,
    });
    // On a busy machine, the parent may have reaped it first; any other number would be wrong.
    assert!(failed.is_none_or(|code| code == 3), "{reports:?}");
    assert_eq!(code(reports.last().unwrap()), None, "it did not end well");
}
