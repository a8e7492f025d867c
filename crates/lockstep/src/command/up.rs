//! `lockstep up`: a collector, and this machine's agent as a child process.
//!
//! The child has its own process group and holds a lock on its folder. If the collector is killed, the agent and all runs stay alive; a
//! later `up` finds the lock held and adopts the agent instead of starting another. An orderly end (SIGTERM, Ctrl-C) stops both processes.
//! Runs continue, because their shims own them.
//!
//! With `--simulate SPEC,nodes=N`, simulated nodes replace this machine: one agent each, or from 128 nodes up a generator.

mod generator;
mod local_agent;
mod simulated_nodes;
mod simulation;

use std::time::Duration;

use clap::Args;
use collector::Running;
use tokio::time::Instant;
use tracing::error;

use super::collector::{CollectorOptions, announce};
use crate::failure::Failure;
use local_agent::{AgentLaunch, LocalAgent};
use simulation::{Method, Simulation};

/// How often to check that the child or adopted agent is alive.
const WATCH_PERIOD: Duration = Duration::from_millis(500);
/// The first pause before an ended agent is started again. The pause doubles up to [`PAUSE_MAX`] if the agent keeps ending at once.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest pause; see [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// An agent that lived this long was healthy: the next pause is [`PAUSE_MIN`] again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The beginning of the names of simulated nodes. The first node is `sim-00`: the simulator counts nodes from 0 too.
const NODE_PREFIX: &str = "sim";

/// Start a collector and, as a child process, an agent for this machine.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep up                                    this machine's GPUs, dashboard at http://127.0.0.1:8470
  lockstep up --simulate h100x8:throttle         eight simulated GPUs, one of which throttles
  lockstep up --simulate h100x8,nodes=4          four simulated nodes, each with an agent and eight GPUs
  lockstep up --data ./demo --listen 127.0.0.1:9000

A second `up` on the same data folder takes over the agent that an earlier one left. Agents of several simulated nodes end with `up`.")]
pub(crate) struct Up {
    #[command(flatten)]
    options: CollectorOptions,
    /// Simulate GPUs, for example h100x8, h100x8:throttle or h100x8:file=PATH. With nodes=N, for example h100x8:throttle,nodes=4,
    /// simulate N nodes, each with an agent. For 128 or more nodes, a generator simulates h100x8 nodes without agents. The dashboard marks
    /// all of them as simulated.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<Simulation>,
}

impl Up {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        if let Some(simulation) = &self.simulate {
            self.check(simulation)
                .map_err(|why| Failure::Usage(format!("--simulate {simulation}: {why}")))?;
        }
        let mut running = self.options.start().await?;
        announce(&self.options, &running);
        let result = self.run(&mut running).await;
        running.shutdown().await;
        result
    }

    /// Checks the simulation against this machine and the other options. Returns why it is not possible.
    fn check(&self, simulation: &Simulation) -> Result<(), String> {
        if simulation.method() == Method::Generator && self.options.tls_cert().is_some() {
            return Err(
                "the generator connects without TLS; use fewer nodes, or leave out --tls-cert".to_owned(),
            );
        }
        simulation.check_memory(store::machine::memory_bytes())
    }

    async fn run(&self, running: &mut Running) -> Result<(), Failure> {
        let Some(simulation) = &self.simulate else {
            return run_local_agent(&self.launch("agent", None, running), running).await;
        };
        println!("GPUs are SIMULATED ({simulation}); their values do not come from hardware.");
        match simulation.method() {
            Method::LocalAgent => {
                let launch = self.launch("agent", Some(simulation.spec_of(0)), running);
                run_local_agent(&launch, running).await
            }
            Method::Agents => {
                let launch = self.launch("agents", None, running);
                simulated_nodes::run(simulation, &launch, running).await
            }
            Method::Generator => generator::run(simulation, self.options.local_url(running), running).await,
        }
    }

    /// Returns how to start an agent in this folder of the data folder.
    fn launch(&self, folder: &str, simulate: Option<String>, running: &Running) -> AgentLaunch {
        AgentLaunch {
            url: self.options.local_url(running),
            simulate,
            tls_ca: self.options.tls_cert().cloned(),
            dir: self.options.data_dir().join(folder),
        }
    }
}

/// Keeps the agent of this machine alive until the process is asked to end.
async fn run_local_agent(launch: &AgentLaunch, running: &mut Running) -> Result<(), Failure> {
    println!("The agent writes its log to {}", launch.log_file().display());
    let mut shutdown_requested = std::pin::pin!(super::shutdown_requested());
    let mut agent = LocalAgent::adopt_or_start(launch, running).await;
    let (mut began, mut pause) = (Instant::now(), PAUSE_MIN);
    let result = loop {
        tokio::select! {
            ended = &mut shutdown_requested => break ended,
            ended = running.wait() => break super::collector::ended(ended),
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
        if agent.as_mut().is_ok_and(LocalAgent::is_alive) {
            continue;
        }
        if began.elapsed() > HEALTHY_AFTER {
            pause = PAUSE_MIN;
        }
        let why = match &agent {
            Ok(_) => launch.last_log_lines(1),
            Err(error) => format!("{error:#}"),
        };
        error!(
            why,
            pause_s = pause.as_secs(),
            "the agent has ended; restarting it after a pause"
        );
        tokio::select! {
            ended = &mut shutdown_requested => break ended,
            ended = running.wait() => break super::collector::ended(ended),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
        began = Instant::now();
        agent = LocalAgent::adopt_or_start(launch, running).await;
    };
    if let Ok(agent) = &mut agent {
        agent.stop().await;
    }
    result
}
