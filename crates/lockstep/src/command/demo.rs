//! `lockstep demo`: a collector with a simulated cluster in one process, to see Lockstep at work without a GPU, Python or a network.
//!
//! The nodes speak the agents' protocol and the runs are submitted through the public API, so whatever the demo shows is what the collector
//! makes of a real cluster. Nothing is left behind: the data folder is temporary.

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

/// A worker of a node without work that a restarted run may take. The four runs take seven nodes.
const NODES_MIN: u32 = 8;
/// Restarts of each run: some faults come back.
const RESTARTS: u32 = 3;
/// Between two runs, so that they do not all begin with the same second.
const BETWEEN_RUNS: Duration = Duration::from_millis(300);

/// Show Lockstep at work on a simulated cluster: no GPU, Python or network is needed.
///
/// Four training runs on 8 nodes with 8 simulated GPUs each. Within a minute one run has a slow rank, one hangs, one meets a memory error of
/// a GPU and fills its disk with checkpoints, and one waits for its data loader. Open the dashboard, see who is to blame, and apply the fix.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep demo                              dashboard at http://127.0.0.1:8470
  lockstep demo --listen 127.0.0.1:0         on a free port
  lockstep demo --nodes 32                   more nodes without work

Everything it stores is in a temporary folder, which is removed at the end (Ctrl-C).")]
pub(crate) struct Demo {
    /// Where to listen. Loopback only: the demo's admin token is printed.
    #[arg(long, default_value = "127.0.0.1:8470")]
    listen: SocketAddr,
    /// Simulated nodes, each with eight GPUs.
    #[arg(long, default_value_t = NODES_MIN, value_parser = clap::value_parser!(u32).range(i64::from(NODES_MIN)..=1_000))]
    nodes: u32,
}

impl Demo {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        if !self.listen.ip().is_loopback() {
            return Err(Failure::Usage(format!(
                "--listen {}: the demo listens on this machine only, as anyone who reaches it may use it; choose a loopback address",
                self.listen
            )));
        }
        let folder = tempfile::Builder::new().prefix("lockstep-demo-").tempdir()?;
        let mut config = Config::new(folder.path().to_path_buf());
        config.listen = self.listen;
        let mut running = collector::start(config)
            .await
            .map_err(|error| Failure::Failed(error.into()))?;
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
        };
        let mut nodes = sim_cluster::start(&cluster).await?;
        self.announce(&url, &token);
        let client = Client::with_token(&url, &token)?;
        let mut asked_to_end = std::pin::pin!(super::asked_to_end());
        let result = tokio::select! {
            ended = &mut asked_to_end => return ended,
            ended = running.wait() => return super::collector::ended(ended),
            failed = first_failure(&mut nodes) => return Err(failed),
            result = submit_all(&client) => result,
        };
        result?;
        tokio::select! {
            ended = &mut asked_to_end => ended,
            ended = running.wait() => super::collector::ended(ended),
            failed = first_failure(&mut nodes) => Err(failed),
        }
    }

    fn announce(&self, url: &str, token: &str) {
        println!(
            "Lockstep demo: {} SIMULATED nodes with 8 GPUs each; nothing it shows comes from hardware.\n",
            self.nodes
        );
        println!("  Dashboard   {url}\n  Log in with {token}\n");
        println!("In another terminal:\n  export LOCKSTEP_URL={url} LOCKSTEP_TOKEN={token}");
        println!("  lockstep run list\n  lockstep top --cluster\n");
        println!("Faults begin within a minute. Ctrl-C ends the demo and removes what it stored.");
    }
}

/// A node that ends has failed.
async fn first_failure(nodes: &mut JoinSet<anyhow::Result<()>>) -> Failure {
    let ended = nodes.join_next().await;
    let why = match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(panic)) => panic.into(),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("it ended by itself"),
    };
    Failure::Failed(why.context("a node of the simulated cluster has failed"))
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
        // A hang stays until somebody has seen it.
        stall_timeout_s: Some(0),
        ..Spec::default()
    };
    serde_json::to_value(spec).expect("a spec is plain data")
}
