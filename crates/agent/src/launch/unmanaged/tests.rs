//! Real processes with the environment of ranks, found in the real `/proc`.

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

    /// A rank that does this, and has a worker with its variables. `cat` is a rank that trains until the job is over.
    /// It runs when this returns: while a process becomes another program, its environment reads as empty.
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
        let said = rank.stdout.as_mut().unwrap().read(&mut [0]);
        assert_eq!(said.unwrap(), 1, "it ended at once");
        self.ranks.push(rank);
    }

    fn watcher(&self) -> Watcher {
        Watcher {
            node: NodeName::new("n0").unwrap(),
            data_dir: self.data.path().to_owned(),
            seen: HashMap::new(),
            gangs: BTreeMap::new(),
        }
    }

    fn reports(&self) -> Vec<NodeReport> {
        let run = RunId::new(self.name.clone()).unwrap();
        let folder = Folder::of(self.data.path(), &run, AttemptNo(1));
        let (entries, _) = read_from(&folder.file(files::SHIM_REPORTS), 0).unwrap();
        entries.into_iter().map(|entry| entry.report).collect()
    }

    fn gang<'a>(&self, watcher: &'a mut Watcher) -> Option<&'a mut Gang> {
        watcher.gangs.get_mut(&RunId::new(self.name.clone()).unwrap())
    }

    /// Ticks until nothing is left to watch; ranks are not taken before.
    fn ended(&mut self, watcher: &mut Watcher) -> NodeReport {
        let deadline = Instant::now() + Duration::from_secs(60);
        let gang = self.gang(watcher).unwrap();
        while gang.tick().unwrap() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.reports().pop().unwrap()
    }

    /// The ranks come to their end.
    fn over(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.stdin.take());
        }
    }

    /// Their status is read by the parent that started them.
    fn take(&mut self) {
        for rank in &mut self.ranks {
            rank.wait().unwrap();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // With its worker, and with what it was just doing.
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
    // The test, which is their parent, does not take their status: it is read as torchrun's is.
    job.gang(&mut watcher).unwrap().launcher_is_gone();
    job.over();
    let end = job.ended(&mut watcher);
    assert_eq!(code(&end), Some(0));
}

#[test]
fn a_failed_rank_is_told_and_one_whose_status_was_taken_claims_nothing() {
    let mut job = Job::new();
    job.rank(0, "cat; false", &[]);
    let mut watcher = job.watcher();
    watcher.scan();
    let gang = job.gang(&mut watcher).unwrap();
    // Its parent, the test, lives on: as a launcher that might start it anew.
    gang.launcher_is_gone();
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
    job.gang(&mut watcher).unwrap().launcher_is_gone();
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
    assert!(job.gang(&mut watcher).is_none());
}

#[test]
fn the_next_agent_watches_on_and_one_that_comes_too_late_says_so() {
    let mut job = Job::new();
    job.rank(0, "cat", &[]);
    let mut first = job.watcher();
    first.scan();
    let mut beside = job.watcher();
    beside.take_up();
    assert!(job.gang(&mut beside).is_none(), "the first one holds it");
    drop(first);
    let mut second = job.watcher();
    second.take_up();
    second.scan();
    assert_eq!(job.reports().len(), 2, "nothing is told twice");
    job.gang(&mut second).unwrap().launcher_is_gone();
    drop(second);
    job.over();
    job.take();
    let mut third = job.watcher();
    third.take_up();
    job.gang(&mut third).unwrap().launcher_is_gone();
    let end = job.ended(&mut third);
    assert_eq!(code(&end), None);
    let mut fourth = job.watcher();
    fourth.take_up();
    assert!(job.gang(&mut fourth).is_none(), "it is over");
}

#[test]
fn a_torchrun_that_nobody_announced_is_watched_to_its_end() {
    let Some(python) = testing::python_with_torch() else {
        return;
    };
    let mut job = Job::new();
    let script = job.data.path().join("train.py");
    std::fs::write(
        &script,
        "import os, time\ntime.sleep(3)\nraise SystemExit(int(os.environ['RANK']) * 3)\n",
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
    let deadline = Instant::now() + Duration::from_secs(120);
    while job.gang(&mut watcher).is_none_or(|gang| gang.pids().count() < 2) {
        assert!(Instant::now() < deadline, "no ranks came");
        std::thread::sleep(Duration::from_millis(50));
        // Another look at all of them: the test cannot wait for the next one.
        watcher.seen.clear();
        watcher.scan();
    }
    let waited = std::thread::spawn({
        let mut torchrun = job.ranks.pop().unwrap();
        move || torchrun.wait().unwrap()
    });
    loop {
        watcher.wait();
        if !job.gang(&mut watcher).unwrap().tick().unwrap() {
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
    // Its parent may have asked for it before us, on a busy machine; another number would be wrong.
    assert!(failed.is_none_or(|code| code == 3), "{reports:?}");
    assert_eq!(code(reports.last().unwrap()), None, "it did not end well");
}
