//! `lockstep demo`: a collector with a simulated cluster in one process. It shows Lockstep without a GPU, Python or a network.
//!
//! The nodes speak the agents' protocol and the runs are submitted through the public API, so the collector handles them like
//! a real cluster. The data folder is temporary: nothing is left behind.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use collector::{Config, Running};
use domain::api::runs::RunView;
use domain::run::spec::{Backend, Spec};
use serde_json::Value;
use sim_cluster::{Cluster, Workload, workloads};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::Client;
use crate::failure::Failure;

/// The four runs take seven nodes. The eighth node has no work, so a restarted run can use it.
const NODES_MIN: u32 = 8;
/// Maximum restarts of each run. Some faults come back after a restart.
const RESTARTS: u32 = 3;
/// Pause between two submissions, so that the runs do not all start in the same second.
const BETWEEN_RUNS: Duration = Duration::from_millis(300);

/// Show Lockstep on a simulated cluster. No GPU, Python or network is needed.
///
/// Four training runs on 8 nodes with 8 simulated GPUs each. Within a minute, one run has a slow rank, one hangs, one meets a memory
/// error of a GPU and fills its disk with checkpoints, and one waits for its data loader. Open the dashboard, see the culprit, and apply
/// the fix.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep demo                              dashboard at http://127.0.0.1:8470
  lockstep demo --listen 127.0.0.1:0         on a free port
  lockstep demo --nodes 32                   more nodes without work

All data is in a temporary folder, which is deleted when the demo ends (Ctrl-C).")]
pub(crate) struct Demo {
    /// Address on which to listen. Loopback only, because the demo prints its admin token.
    #[arg(long, default_value = "127.0.0.1:8470")]
    listen: SocketAddr,
    /// Number of simulated nodes, each with eight GPUs.
    #[arg(long, default_value_t = NODES_MIN, value_parser = clap::value_parser!(u32).range(i64::from(NODES_MIN)..=1_000))]
    nodes: u32,
}

impl Demo {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        if !self.listen.ip().is_loopback() {
            return Err(Failure::Usage(format!(
                "--listen {}: the demo accepts only a loopback address, because everyone who can reach it can use it",
                self.listen
            )));
        }
        let folder = tempfile::Builder::new().prefix("lockstep-demo-").tempdir()?;
        let mut config = Config::new(folder.path().to_path_buf());
        config.listen = self.listen;
        let mut running = collector::start(config).await.map_err(anyhow::Error::from)?;
        let result = self.show(&mut running).await;
        running.shutdown().await;
        result
    }

    async fn show(&self, running: &mut Running) -> Result<(), Failure> {
        let url = running.url();
        let token = running.admin_token_created.clone().unwrap_or_default();
        let cluster = Cluster {
            url: url.clone(),
            join: running.join_token().await.map_err(anyhow::Error::from)?,
            nodes: self.nodes,
            has_gpus: true,
            prefix: "demo",
            simulated: "demo".to_owned(),
            scenarios: Vec::new(),
            faults: None,
        };
        let mut nodes = sim_cluster::start(&cluster).await?;
        self.announce(&url, &token);
        let client = Client::with_token(&url, &token)?;
        let mut shutdown_requested = std::pin::pin!(super::shutdown_requested());
        let result = tokio::select! {
            ended = &mut shutdown_requested => return ended,
            ended = running.wait() => return super::collector::ended(ended),
            failed = first_failure(&mut nodes) => return Err(failed),
            result = submit_all(&client) => result,
        };
        result?;
        tokio::select! {
            ended = &mut shutdown_requested => ended,
            ended = running.wait() => super::collector::ended(ended),
            failed = first_failure(&mut nodes) => Err(failed),
        }
    }

    fn announce(&self, url: &str, token: &str) {
        println!(
            "Lockstep demo: {} SIMULATED nodes with 8 GPUs each; no value comes from hardware.\n",
            self.nodes
        );
        println!("  Dashboard   {url}\n  Log in with {token}\n");
        println!("In another terminal:\n  export LOCKSTEP_URL={url} LOCKSTEP_TOKEN={token}");
        println!("  lockstep run list\n  lockstep top --cluster\n");
        println!("Faults begin within a minute. Ctrl-C ends the demo and deletes its data.");
    }
}

/// Waits until a node ends, and returns the error. A node must not end by itself.
pub(super) async fn first_failure(nodes: &mut JoinSet<anyhow::Result<()>>) -> Failure {
    let ended = nodes.join_next().await;
    let why = match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(panic)) => panic.into(),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("it ended unexpectedly"),
    };
    Failure::Failed(why.context("a simulated node failed"))
}

async fn submit_all(client: &Client) -> Result<(), Failure> {
    for workload in workloads() {
        let view: RunView = client.post("/api/runs", &spec(workload)).await?;
        tracing::info!(run = view.summary.id, "submitted");
        sleep(BETWEEN_RUNS).await;
    }
    Ok(())
}

fn spec(workload: &Workload) -> Value {
    let spec = Spec {
        name: workload.name.to_owned(),
        recipe: Some(workload.recipe.to_owned()),
        nodes: Some(workload.nodes),
        nproc_per_node: Some(8),
        backend: Backend::Nccl,
        checkpoint_dir: Some(format!("/checkpoints/{}", workload.name)),
        max_restarts: RESTARTS,
        // 0 turns the timeout off: a hang stays until a user has seen it.
        stall_timeout_s: Some(0),
        ..Spec::default()
    };
    serde_json::to_value(spec).expect("a spec is plain data")
}
