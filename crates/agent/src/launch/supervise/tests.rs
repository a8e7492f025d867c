//! Tests of attempts from the first command to the end, with real shims and processes. Only the last test uses PyTorch.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::time::Instant;

use domain::ident::Rank;
use domain::run::spec::Spec;
use domain::run::state::{EndCause, NodeEnd, NodeReport, Start};
use domain::series::is_stale;
use domain::topology::Inventory;
use rustix::process::{Pid, Signal, kill_process};
use shim::files::FileName;
use shim::{LeftoverProcesses, StopOrder, marked, read_from};
use tokio::sync::watch;

use super::*;
use crate::launch::testing;

/// Two steps, then it waits to be stopped.
const TRAIN: &str = r#"
import json, os, socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(os.environ["LOCKSTEP_PROBE_SOCKET"])
def say(**r):
    s.send(json.dumps(dict(v=1, rank=int(os.environ["RANK"]), wall_ns=time.time_ns(), **r), separators=(",", ":")).encode())
say(kind="hello", torch="2.0.0")
for step in (1, 2):
    say(kind="step", step=step, step_s=0.1, loss=2.5)
    time.sleep(0.01)
print("trained", flush=True)
time.sleep(600)
"#;

mod bandwidth;
mod chaos;
mod live;
mod nccl;
mod versions;

/// Only ends a wait: a busy machine may need seconds to start Python.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The state in which the GPUs are known, so that nothing waits for them.
fn known() -> watch::Receiver<bool> {
    watch::channel(true).1
}

struct Agent {
    supervisor: Arc<Supervisor>,
    samples: Samples,
    shutdown: CancellationToken,
    run: RunId,
    data: Arc<tempfile::TempDir>,
}

impl Agent {
    fn new() -> Self {
        let data = Arc::new(tempfile::tempdir().unwrap());
        std::fs::write(data.path().join("train.py"), TRAIN).unwrap();
        let run = RunId::new(format!(
            "t-{}",
            data.path()
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .trim_start_matches('.')
        ))
        .unwrap();
        Self::start(data, run)
    }

    fn start(data: Arc<tempfile::TempDir>, run: RunId) -> Self {
        let nothing = data.path().join("empty");
        Self::start_beside(data, run, nothing)
    }

    /// Restarts the agent with companions in this folder.
    async fn beside(&mut self, folder: PathBuf) {
        self.shutdown.cancel();
        self.supervisor.stopped().await;
        *self = Self::start_beside(self.data.clone(), self.run.clone(), folder);
    }

    fn start_beside(data: Arc<tempfile::TempDir>, run: RunId, beside: PathBuf) -> Self {
        let setting = Setting {
            node: NodeName::new("n0").unwrap(),
            data_dir: data.path().to_owned(),
            python: Some(testing::fake_python(data.path())),
            collector: None,
            accepts_runs: true,
            root: data.path().to_owned(),
            beside,
            shim: testing::shim_command(),
        };
        let (samples, shutdown) = (Samples::new(), CancellationToken::new());
        let (_, inventory) = watch::channel(Arc::default());
        let supervisor = Supervisor::start(setting, samples.clone(), inventory, known(), shutdown.clone());
        Self {
            supervisor,
            samples,
            shutdown,
            run,
            data,
        }
    }

    /// Replaces the agent by one with changed settings.
    async fn set_up(&mut self, change: impl FnOnce(&mut Setting)) {
        self.shutdown.cancel();
        self.supervisor.stopped().await;
        let mut setting = self.supervisor.setting.clone();
        change(&mut setting);
        self.shutdown = CancellationToken::new();
        let (_, inventory) = watch::channel(Arc::default());
        let (samples, shutdown) = (self.samples.clone(), self.shutdown.clone());
        self.supervisor = Supervisor::start(setting, samples, inventory, known(), shutdown);
    }

    /// Ends the agent without notifying its shims, as in a crash, and starts another one.
    async fn restarted(self) -> Self {
        self.shutdown.cancel();
        self.supervisor.stopped().await;
        Self::start(self.data.clone(), self.run.clone())
    }

    fn spec(&self) -> Spec {
        Spec {
            script: Some(self.data.path().join("train.py").display().to_string()),
            ..Spec::default()
        }
    }

    fn command(&self, id: u64, command: NodeCommand) -> Option<Entry> {
        self.supervisor.command(&self.run, AttemptNo(1), id, Ok(command))
    }

    async fn prepare(&self) -> NodeReport {
        self.command(
            2,
            NodeCommand::Prepare {
                spec: Box::new(self.spec()),
                node_rank: 0,
                nnodes: 1,
                resume_from: None,
            },
        )
        .unwrap();
        self.report(|report| matches!(report, NodeReport::Prepared(_) | NodeReport::PrepareFailed { .. }))
            .await
    }

    async fn train(&self) {
        let NodeReport::Prepared(prepared) = self.prepare().await else {
            panic!("cannot prepare")
        };
        let start = Start {
            spec: self.spec(),
            nnodes: 1,
            nproc: prepared.nproc_default,
            master_addr: "127.0.0.1".into(),
            master_port: prepared.port,
            ..Start::default()
        };
        self.command(3, NodeCommand::Start(Box::new(start))).unwrap();
        for rank in [0, 1] {
            self.report(|report| matches!(report, NodeReport::FirstStep { rank: Rank(r), .. } if *r == rank))
                .await;
        }
    }

    fn reports(&self) -> Vec<NodeReport> {
        let folder = Folder::of(self.data.path(), &self.run, AttemptNo(1));
        let read = |name: FileName| {
            read_from(&folder.file(name), 0)
                .unwrap()
                .0
                .into_iter()
                .map(|entry| entry.report)
        };
        read(files::AGENT_REPORTS)
            .chain(read(files::SHIM_REPORTS))
            .collect()
    }

    async fn report(&self, what: impl Fn(&NodeReport) -> bool) -> NodeReport {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(report) = self.reports().into_iter().find(&what) {
                return report;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain; there is: {:#?}",
                self.reports()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn end(&self) -> NodeEnd {
        let NodeReport::Ended(end) = self.report(|report| matches!(report, NodeReport::Ended(_))).await
        else {
            unreachable!()
        };
        assert_eq!(marked(&[self.mark()]), [], "processes were left behind");
        end
    }

    fn mark(&self) -> String {
        format!("LOCKSTEP_RUN={}", self.run)
    }

    async fn value(&self, metric: &str, rank: &str) -> f64 {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let latest = self.samples.latest();
            let found = latest
                .iter()
                .find(|s| s.series.metric_name() == Some(metric) && s.series.get("rank") == Some(rank));
            if let Some(sample) = found {
                return sample.value;
            }
            assert!(Instant::now() < deadline, "no {metric} of rank {rank}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if Arc::strong_count(&self.data) == 1 {
            let folder = Folder::of(self.data.path(), &self.run, AttemptNo(1));
            let leftovers = LeftoverProcesses::of(&folder, vec![self.mark()]);
            leftovers.kill();
            leftovers.close();
        }
    }
}

#[tokio::test]
async fn a_run_is_prepared_started_watched_and_stopped() {
    let agent = Agent::new();
    agent.train().await;
    assert_eq!(agent.value("train_loss", "1").await, 2.5);
    for rank in ["0", "1"] {
        assert_eq!(agent.value("train_process_state", rank).await, 0.0);
        assert_eq!(
            agent.value("train_phase", rank).await,
            0.0,
            "it never imports torch"
        );
    }
    agent.command(4, NodeCommand::Stop { grace_ms: 5_000 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::Stopped);
    let deadline = Instant::now() + WAIT_MAX;
    while agent
        .samples
        .latest()
        .iter()
        .any(|sample| sample.series.get("run").is_some())
    {
        assert!(Instant::now() < deadline, "series outlive their run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(agent.samples.drain().iter().any(|sample| is_stale(sample.value)));
}

/// A new agent adopts preparations before NVML has answered.
#[tokio::test]
async fn a_preparation_waits_until_the_gpus_are_known() {
    let mut agent = Agent::new();
    agent.shutdown.cancel();
    agent.shutdown = CancellationToken::new();
    let (described, inventory) = watch::channel(Arc::default());
    let (settle, settled) = watch::channel(false);
    let setting = agent.supervisor.setting.clone();
    let samples = agent.samples.clone();
    agent.supervisor = Supervisor::start(setting, samples, inventory, settled, agent.shutdown.clone());
    let preparing = agent.prepare();
    let answering = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        described.send_replace(Arc::new(Inventory {
            driver_version: "570.86.15".into(),
            ..Inventory::default()
        }));
        settle.send_replace(true);
    };
    let (report, ()) = tokio::join!(preparing, answering);
    let NodeReport::Prepared(prepared) = report else {
        panic!("{report:?}")
    };
    assert_eq!(prepared.driver, "570.86.15");
}

#[tokio::test]
async fn the_same_command_twice_is_carried_out_once() {
    let agent = Agent::new();
    agent.train().await;
    let stop = || agent.command(4, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    assert_eq!(stop(), stop());
    agent.end().await;
    assert_eq!(stop().report, NodeReport::Accepted { command: 4 });
    let late = agent.command(5, NodeCommand::Stop { grace_ms: 0 }).unwrap();
    assert_eq!(late.report, NodeReport::Accepted { command: 5 });
    let ends = agent
        .reports()
        .into_iter()
        .filter(|report| matches!(report, NodeReport::Ended(_)));
    assert_eq!(ends.count(), 1);
}

#[tokio::test]
async fn a_new_agent_adopts_the_living_shim_and_continues_to_read() {
    let agent = Agent::new();
    agent.train().await;
    agent.value("train_step", "0").await;
    let pids = marked(&[agent.mark()]);
    let agent = agent.restarted().await;
    assert_eq!(agent.supervisor.attempts().len(), 1);
    assert_eq!(marked(&[agent.mark()]), pids, "the ranks did not notice");
    agent.command(4, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::Stopped);
}

#[tokio::test]
async fn the_order_to_stop_after_a_step_reaches_the_folder_once_and_outlives_the_agent() {
    let agent = Agent::new();
    agent.train().await;
    let after = |id, step| {
        let grace_ms = 5_000;
        agent
            .command(id, NodeCommand::StopAfter { step, grace_ms })
            .unwrap()
    };
    let accepted = after(4, 40);
    assert_eq!(accepted.report, NodeReport::Accepted { command: 4 });
    assert_eq!(after(4, 40), accepted);
    // Ranks may have read the first order by then.
    after(5, 90);
    let agent = agent.restarted().await;
    let folder = Folder::of(agent.data.path(), &agent.run, AttemptNo(1));
    let order: StopOrder = folder.read(files::STOP_AFTER).unwrap();
    assert_eq!((order.step, order.grace_ms), (40, 5_000));
    let again = agent
        .command(
            4,
            NodeCommand::StopAfter {
                step: 40,
                grace_ms: 5_000,
            },
        )
        .unwrap();
    assert_eq!(again, accepted);
    let ended = |report: &NodeReport| matches!(report, NodeReport::Ended(_));
    assert!(
        !agent.reports().iter().any(ended),
        "the ranks have not come there yet"
    );
    agent.command(6, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::Stopped);
}

#[tokio::test]
async fn ranks_of_a_killed_shim_are_ended_and_its_death_is_reported() {
    let agent = Agent::new();
    agent.train().await;
    let NodeReport::ShimStarted { pid, .. } = agent
        .report(|r| matches!(r, NodeReport::ShimStarted { .. }))
        .await
    else {
        unreachable!()
    };
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::ShimDied);
}

#[tokio::test]
async fn a_stop_before_the_start_ends_it_and_a_late_start_does_nothing() {
    let agent = Agent::new();
    agent.prepare().await;
    agent.command(3, NodeCommand::Stop { grace_ms: 0 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::NeverStarted);
    agent.command(4, NodeCommand::Start(Box::default())).unwrap();
    assert!(!Folder::of(agent.data.path(), &agent.run, AttemptNo(1)).has(files::LAUNCH));
}

#[tokio::test]
async fn what_is_not_understood_is_refused() {
    let agent = Agent::new();
    let answer = agent
        .supervisor
        .command(
            &agent.run,
            AttemptNo(1),
            2,
            Err("unknown variant `teleport`".into()),
        )
        .unwrap();
    assert!(
        matches!(answer.report, NodeReport::Refused { command: 2, reason } if reason.contains("teleport"))
    );
}

/// The recipe, the probe, torchrun and PyTorch together.
#[tokio::test]
async fn the_ddp_recipe_trains_and_is_seen() {
    let Some(python) = testing::python_with_torch() else {
        return;
    };
    let mut agent = Agent::new();
    agent.set_up(|setting| setting.python = Some(python)).await;
    let set = [("steps", "8"), ("width", "16"), ("layers", "1"), ("context", "8")];
    let spec = Spec {
        recipe: Some("ddp".into()),
        set: set
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..Spec::default()
    };
    agent
        .command(
            2,
            NodeCommand::Prepare {
                spec: Box::new(spec.clone()),
                node_rank: 0,
                nnodes: 1,
                resume_from: None,
            },
        )
        .unwrap();
    // PyTorch is imported three times in turn, and the first time reads gigabytes from the disk.
    let deadline = Instant::now() + Duration::from_secs(240);
    let prepared = loop {
        let found = agent.reports().into_iter().find_map(|report| match report {
            NodeReport::Prepared(prepared) => Some(prepared),
            NodeReport::PrepareFailed { message } => panic!("{message}"),
            _ => None,
        });
        if let Some(prepared) = found {
            break prepared;
        }
        assert!(Instant::now() < deadline, "PyTorch is not imported");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(prepared.torch_version.starts_with(|c: char| c.is_ascii_digit()));
    let start = Start {
        spec,
        nnodes: 1,
        nproc: 2,
        master_addr: "127.0.0.1".into(),
        master_port: prepared.port,
        ..Start::default()
    };
    agent.command(3, NodeCommand::Start(Box::new(start))).unwrap();
    while !agent
        .reports()
        .iter()
        .any(|report| matches!(report, NodeReport::Ended(_)))
    {
        assert!(
            Instant::now() < deadline,
            "it does not end: {:#?}",
            agent.reports()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let folder = Folder::of(agent.data.path(), &agent.run, AttemptNo(1));
    let end = agent.end().await;
    assert_eq!(
        (end.code, end.cause),
        (Some(0), EndCause::Finished),
        "{}",
        log_of(folder.path())
    );
    let steps = agent.samples.drain();
    for rank in ["0", "1"] {
        let of_rank = |metric: &str| {
            steps
                .iter()
                .filter(|s| s.series.metric_name() == Some(metric) && s.series.get("rank") == Some(rank))
                .count()
        };
        assert!(of_rank("train_step_seconds") >= 5, "rank {rank}");
        assert!(
            of_rank("train_loss") >= 5 && of_rank("train_sync_seconds") >= 1 && of_rank("train_info") >= 1
        );
    }
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("launcher.stderr")).unwrap_or_default()
}

#[tokio::test]
async fn only_folders_of_attempts_that_ended_long_ago_are_removed() {
    let data = tempfile::tempdir().unwrap();
    let folder = |name: &str, done: Option<Duration>| {
        let folder = Folder::at(data.path().join("runs").join(name));
        folder.create().unwrap();
        std::fs::write(folder.path().join("trace.json"), "{}").unwrap();
        if let Some(age) = done {
            let file = std::fs::File::create(folder.file(files::DONE)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        folder
    };
    let (hour, old) = (Duration::from_secs(3_600), KEEP_DONE + Duration::from_secs(60));
    let folders = [
        folder("old.1", Some(old)),
        folder("new.1", Some(hour)),
        folder("runs.1", None),
    ];
    remove_old(folders.to_vec()).await;
    let left = folders.map(|folder| folder.path().is_dir());
    assert_eq!(left, [false, true, true]);
}
