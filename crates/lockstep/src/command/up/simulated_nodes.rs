//! Simulated nodes, each with an agent: one child process per node, because a process can load one simulator only.
//!
//! The agents end with this process, also if it is killed. An agent that ends by itself is reported and not started again, so its node
//! is down. Runs outlive the agents, and the agents of the next `up` with the same nodes continue with them.

use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use collector::Running;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};
use tracing::{error, warn};

use super::local_agent::{AgentLaunch, END_GRACE};
use super::simulation::Simulation;
use super::{NODE_PREFIX, WATCH_PERIOD};
use crate::command::shutdown_requested;
use crate::failure::Failure;

/// How many lines of its log are shown when an agent has ended.
const LOG_LINES: usize = 3;
/// How often to check whether agents have ended after SIGTERM.
const END_POLL: Duration = Duration::from_millis(50);

/// Starts the agents, each in its own folder below that of `launch`, and runs until the process is asked to end.
pub(super) async fn run(
    simulation: &Simulation,
    launch: &AgentLaunch,
    running: &mut Running,
) -> Result<(), Failure> {
    println!(
        "The agents write their logs to {}/*/agent.log",
        launch.dir.display()
    );
    let mut shutdown_requested = std::pin::pin!(shutdown_requested());
    let mut nodes = SimulatedNodes::start(simulation, launch, running).await?;
    let result = loop {
        tokio::select! {
            ended = &mut shutdown_requested => break ended,
            ended = running.wait() => break crate::command::collector::ended(ended),
            () = sleep(WATCH_PERIOD) => {}
        }
        if let Err(failure) = nodes.check() {
            break Err(failure);
        }
    };
    nodes.stop().await;
    result
}

/// The nodes whose agents are alive.
struct SimulatedNodes(Vec<SimulatedNode>);

struct SimulatedNode {
    name: String,
    launch: AgentLaunch,
    agent: Child,
}

impl SimulatedNodes {
    async fn start(simulation: &Simulation, launch: &AgentLaunch, running: &Running) -> anyhow::Result<Self> {
        let join = running
            .join_token()
            .await
            .context("cannot create a join token for the agents")?;
        let mut nodes = Vec::new();
        for index in 0..simulation.nodes() {
            let name = sim_cluster::node_name(NODE_PREFIX, index, simulation.nodes());
            let launch = AgentLaunch {
                simulate: Some(simulation.spec_of(index)),
                dir: launch.dir.join(&name),
                ..launch.clone()
            };
            nodes.push(SimulatedNode::start(name, launch, &join).await?);
        }
        Ok(Self(nodes))
    }

    /// Reports the agents that have ended since the last check. Fails if none is left.
    fn check(&mut self) -> Result<(), Failure> {
        let mut ended = Vec::new();
        self.0.retain_mut(|node| {
            let status = node.status();
            ended.extend(status.map(|status| (node.name.clone(), status, node.launch.clone())));
            status.is_none()
        });
        // Agents that end together end for the same reason.
        let Some((first, status, launch)) = ended.first() else {
            return Ok(());
        };
        let names: Vec<&str> = ended.iter().map(|(name, ..)| name.as_str()).collect();
        let log = launch.last_log_lines(LOG_LINES);
        error!(
            nodes = names.join(", "),
            %status,
            log,
            "the agent of a simulated node has ended; it is not started again"
        );
        if self.0.is_empty() {
            let why =
                anyhow::anyhow!("the agents of all simulated nodes have ended; the log of {first}: {log}");
            return Err(why.into());
        }
        Ok(())
    }

    /// Ends all agents. Kills those that do not end in time.
    async fn stop(mut self) {
        self.signal(Signal::TERM);
        let ended = async {
            while !self.is_empty() {
                sleep(END_POLL).await;
            }
        };
        if timeout(END_GRACE, ended).await.is_err() {
            warn!("agents of simulated nodes did not end in time; killing them");
            self.signal(Signal::KILL);
        }
    }

    /// Returns true if all agents have ended.
    fn is_empty(&mut self) -> bool {
        self.0.retain_mut(|node| node.status().is_none());
        self.0.is_empty()
    }

    fn signal(&self, signal: Signal) {
        for node in &self.0 {
            let _gone_already = kill_process(Pid::from_child(&node.agent), signal);
        }
    }
}

impl SimulatedNode {
    async fn start(name: String, launch: AgentLaunch, join: &str) -> anyhow::Result<Self> {
        wait_until_free(&launch.dir).await?;
        let agent = launch
            .command(join)?
            .args(["--name", &name, "--metrics-listen", "off", "--end-with"])
            .arg(std::process::id().to_string())
            .spawn()
            .with_context(|| format!("cannot start the agent of {name}"))?;
        Ok(Self { name, launch, agent })
    }

    /// Returns how the agent ended; `None` while it is alive.
    fn status(&mut self) -> Option<ExitStatus> {
        self.agent.try_wait().ok().flatten()
    }
}

/// Waits until the agent of an earlier `up`, which ends after that one was killed, has left the folder.
async fn wait_until_free(dir: &Path) -> anyhow::Result<()> {
    let free = async {
        while agent::lock_holder(dir).is_some() {
            sleep(END_POLL).await;
        }
    };
    timeout(END_GRACE, free)
        .await
        .with_context(|| format!("another agent uses the folder {}; stop it first", dir.display()))
}
