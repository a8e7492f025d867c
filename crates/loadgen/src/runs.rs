//! Simulates one large run over the control protocol. Its ranks exist only as the reports of agents.
//!
//! ```text
//! agents:  join ─▶ control stream ─▶ Prepare: Prepared ─▶ Start: ShimStarted, RankStarted × ranks, FirstStep × ranks ─▶ …
//! driver:  submit ─▶ all ranks have made a step ─▶ train ─▶ one rank fails, the others are stopped
//!          ─▶ second attempt: all ranks have made a step ─▶ train ─▶ all ranks exit with 0 ─▶ the run has succeeded
//! ```
//! A phase ends when the collector has acknowledged its last report. The outcome describes the history of the run without ids
//! and times, so that two revisions of the collector can be compared.

mod agent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use domain::api::runs::{RunSummary, RunView};
use domain::run::state::RunState;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::http::Server;
use crate::process;
use agent::Agent;

/// The number of agents that join at the same time, as in [`crate::agents`].
const JOINING_MAX: usize = 8;
const JOIN_WITHIN: Duration = Duration::from_secs(300);
/// The maximum duration of a phase, at any revision.
const PHASE_WITHIN: Duration = Duration::from_secs(1_800);
/// The interval at which the driver polls. It is long, because each poll costs the collector a response.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The run to simulate.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Number of nodes of the run.
    #[arg(long, default_value_t = 1_000)]
    pub nodes: u32,
    /// Ranks per node.
    #[arg(long, default_value_t = 8)]
    pub ranks: u32,
    /// How long each of the two attempts trains, in seconds.
    #[arg(long, default_value_t = 60)]
    pub train_s: u64,
    /// The id of the collector's process on this machine. Its CPU time is read at the end of each phase.
    #[arg(long)]
    pub server_pid: Option<u32>,
}

/// The result.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of ranks of the run.
    pub ranks: u32,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Reports that the collector has acknowledged.
    pub reports: u64,
    /// The final state of the run.
    pub state: RunState,
    /// A text for each attempt, equal for equal histories: cause, outcome, number of nodes, ranks and exits.
    pub attempts: Vec<String>,
}

/// One phase.
#[derive(Debug, Serialize)]
pub struct Phase {
    /// The name of the phase.
    pub name: &'static str,
    /// The duration in seconds.
    pub seconds: f64,
    /// CPU seconds of the collector, if its process is known.
    pub server_cpu_s: Option<f64>,
}

/// Simulates the run.
///
/// # Errors
/// Fails if the agents cannot join, the run is refused, or a phase does not end.
pub async fn run(url: &str, server: &Server, join: Option<String>, plan: &Plan) -> Result<Outcome> {
    let join = join.context("agents need a join token; set LOCKSTEP_JOIN")?;
    let fleet = Arc::new(Fleet {
        plan: plan.clone(),
        join,
        url: url.to_owned(),
        joining: Semaphore::new(JOINING_MAX),
        joined: AtomicU64::new(0),
        steps: AtomicU64::new(0),
        reports: AtomicU64::new(0),
        signal: watch::Sender::new(Signal::Train),
    });
    let mut agents = JoinSet::new();
    let mut phases = Phases::new(plan.server_pid);
    for node in 0..plan.nodes {
        agents.spawn(Agent::new(fleet.clone(), node).run());
    }
    let (nodes, ranks) = (
        u64::from(plan.nodes),
        u64::from(plan.nodes) * u64::from(plan.ranks),
    );
    let joined = wait(&mut agents, JOIN_WITHIN, || {
        fleet.joined.load(Ordering::Relaxed) == nodes
    });
    joined.await.context("the agents did not join")?;
    phases.end("join");

    let id = submit(server, plan).await?;
    let trains = |steps| {
        let fleet = fleet.clone();
        move || fleet.steps.load(Ordering::Relaxed) >= steps
    };
    wait(&mut agents, PHASE_WITHIN, trains(ranks))
        .await
        .context("not all ranks started")?;
    phases.end("start");
    sleep(Duration::from_secs(plan.train_s)).await;
    phases.end("train");

    fleet.signal.send_replace(Signal::Fail);
    wait(&mut agents, PHASE_WITHIN, trains(2 * ranks))
        .await
        .context("not all ranks started again")?;
    phases.end("fail and restart");
    sleep(Duration::from_secs(plan.train_s)).await;
    phases.end("train again");

    fleet.signal.send_replace(Signal::Finish);
    let deadline = Instant::now() + PHASE_WITHIN;
    while !summary(server, &id).await?.state.is_final() {
        ensure!(Instant::now() < deadline, "the run did not end");
        ended_early(&mut agents)?;
        sleep(POLL_INTERVAL).await;
    }
    phases.end("finish");
    let view: RunView = get(server, &format!("/api/runs/{id}")).await?;
    agents.shutdown().await;
    Ok(Outcome {
        nodes: plan.nodes,
        ranks: plan.nodes * plan.ranks,
        phases: phases.done,
        reports: fleet.reports.load(Ordering::Relaxed),
        state: view.summary.state,
        attempts: view.attempts.iter().map(attempt).collect(),
    })
}

/// The state that all agents share.
struct Fleet {
    plan: Plan,
    join: String,
    url: String,
    joining: Semaphore,
    joined: AtomicU64,
    /// The number of first steps that the collector has acknowledged.
    steps: AtomicU64,
    reports: AtomicU64,
    signal: watch::Sender<Signal>,
}

/// What the ranks must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// Train.
    Train,
    /// One rank of the first attempt fails.
    Fail,
    /// All ranks exit with 0.
    Finish,
}

struct Phases {
    done: Vec<Phase>,
    began: Instant,
    server_pid: Option<u32>,
    cpu_s: Option<f64>,
}

impl Phases {
    fn new(server_pid: Option<u32>) -> Self {
        Self {
            done: Vec::new(),
            began: Instant::now(),
            server_pid,
            cpu_s: server_pid.and_then(process::cpu_s),
        }
    }

    fn end(&mut self, name: &'static str) {
        let cpu_s = self.server_pid.and_then(process::cpu_s);
        self.done.push(Phase {
            name,
            seconds: self.began.elapsed().as_secs_f64(),
            server_cpu_s: cpu_s.zip(self.cpu_s).map(|(now, before)| now - before),
        });
        (self.began, self.cpu_s) = (Instant::now(), cpu_s);
    }
}

/// Waits until a condition is true. Fails if an agent ends before.
async fn wait(agents: &mut JoinSet<Result<()>>, within: Duration, is_so: impl Fn() -> bool) -> Result<()> {
    let looks = async {
        while !is_so() {
            ended_early(agents)?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    timeout(within, looks)
        .await
        .with_context(|| format!("waited {} s", within.as_secs()))?
}

fn ended_early(agents: &mut JoinSet<Result<()>>) -> Result<()> {
    match agents.try_join_next() {
        None => Ok(()),
        Some(ended) => {
            ended.context("an agent panicked")??;
            bail!("an agent ended before the run did");
        }
    }
}

async fn submit(server: &Server, plan: &Plan) -> Result<String> {
    let spec = json!({
        "name": "loadgen",
        "script": "/srv/train.py",
        "nodes": plan.nodes,
        "nproc_per_node": plan.ranks,
        "max_restarts": 1,
    });
    let answer = server.post("/api/runs")?.json(&spec).send().await?;
    let (status, text) = (answer.status(), answer.text().await?);
    ensure!(status.is_success(), "the run was refused: {status}: {text}");
    Ok(serde_json::from_str::<RunSummary>(&text)?.id)
}

async fn summary(server: &Server, id: &str) -> Result<RunSummary> {
    let all: Vec<RunSummary> = get(server, "/api/runs").await?;
    let found = all.into_iter().find(|run| run.id == id);
    found.with_context(|| format!("the collector has no run {id}"))
}

async fn get<T: serde::de::DeserializeOwned>(server: &Server, path: &str) -> Result<T> {
    let answer = server.get(path)?.send().await?.error_for_status()?;
    answer
        .json()
        .await
        .with_context(|| format!("unexpected response from {path}"))
}

fn attempt(attempt: &domain::api::runs::AttemptView) -> String {
    let outcome = attempt.outcome.as_ref();
    let who = outcome
        .and_then(|outcome| outcome.rank)
        .map_or("-".to_owned(), |rank| rank.to_string());
    let ranks = || attempt.nodes.iter().flat_map(|node| &node.ranks);
    let exits = ranks().filter(|rank| rank.exit.is_some()).count();
    format!(
        "{}; {} by rank {who}; {} nodes, {} ranks, {exits} exits",
        attempt.cause,
        outcome.map_or("no outcome", |outcome| outcome.cause.as_str()),
        attempt.nodes.len(),
        ranks().count(),
    )
}
