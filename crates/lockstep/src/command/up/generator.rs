//! Simulated nodes without agents, from one generator in this process: the simulated cluster of `lockstep demo`, with as many nodes as
//! requested and without its runs.

use collector::Running;
use sim_cluster::Cluster;
use tracing::info;

use super::NODE_PREFIX;
use super::simulation::Simulation;
use crate::command::demo::first_failure;
use crate::command::shutdown_requested;
use crate::failure::Failure;

/// Joins the nodes to the collector at `url`, and runs until the process is asked to end.
pub(super) async fn run(simulation: &Simulation, url: String, running: &mut Running) -> Result<(), Failure> {
    let cluster = Cluster {
        url,
        join: running.join_token().await.map_err(anyhow::Error::from)?,
        nodes: simulation.nodes(),
        has_gpus: true,
        prefix: NODE_PREFIX,
        simulated: simulation.to_string(),
        scenarios: Vec::new(),
        faults: None,
    };
    info!(
        nodes = cluster.nodes,
        "a generator simulates the nodes, without agents: GPUs have no load until a run starts, runs replay recorded training with the \
         faults of `lockstep demo`, and nothing is read from this machine"
    );
    let mut shutdown_requested = std::pin::pin!(shutdown_requested());
    let mut nodes = tokio::select! {
        ended = &mut shutdown_requested => return ended,
        ended = running.wait() => return crate::command::collector::ended(ended),
        joined = sim_cluster::start(&cluster) => joined?,
    };
    info!(nodes = cluster.nodes, "all simulated nodes have joined");
    tokio::select! {
        ended = &mut shutdown_requested => ended,
        ended = running.wait() => crate::command::collector::ended(ended),
        failed = first_failure(&mut nodes) => Err(failed),
    }
}
