//! `lockstep up`: a collector, and this machine's agent as a child process.
//!
//! The child has its own process group and holds a lock on its folder. If the collector is killed, the agent and all runs stay alive; a
//! later `up` finds the lock held and adopts the agent instead of starting another. An orderly end (SIGTERM, Ctrl-C) stops both processes.
//! Runs continue, because their shims own them.

mod local_agent;

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tracing::error;

use super::collector::{CollectorOptions, announce};
use crate::failure::Failure;
use local_agent::{AgentLaunch, LocalAgent};

/// How often to check that the child or adopted agent is alive.
const WATCH_PERIOD: Duration = Duration::from_millis(500);
/// The first pause before an ended agent is started again. The pause doubles up to [`PAUSE_MAX`] if the agent keeps ending at once.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest pause; see [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// An agent that lived this long was healthy: the next pause is [`PAUSE_MIN`] again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Start a collector and, as a child process, an agent for this machine.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep up                                    this machine's GPUs, dashboard at http://127.0.0.1:8470
  lockstep up --simulate h100x8:throttle         eight simulated GPUs, one of which throttles
  lockstep up --data ./demo --listen 127.0.0.1:9000

A second `up` on the same data folder takes over the agent that an earlier one left.")]
pub(crate) struct Up {
    #[command(flatten)]
    options: CollectorOptions,
    /// Simulate this machine's GPUs, for example h100x8, h100x8:throttle or h100x8:file=PATH. The dashboard marks them as simulated.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
}

impl Up {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let mut running = self.options.start().await?;
        let launch = AgentLaunch {
            url: self.options.local_url(&running),
            simulate: self.simulate.clone(),
            tls_ca: self.options.tls_cert().cloned(),
            dir: self.options.data_dir().join("agent"),
        };
        announce(&self.options, &running);
        if let Some(spec) = &self.simulate {
            println!("GPUs are SIMULATED ({spec}); their values do not come from hardware.");
        }
        println!("The agent writes its log to {}", launch.log_file().display());
        let mut shutdown_requested = std::pin::pin!(super::shutdown_requested());
        let mut agent = LocalAgent::adopt_or_start(&launch, &running).await;
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
                Ok(_) => launch.last_log_line(),
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
            agent = LocalAgent::adopt_or_start(&launch, &running).await;
        };
        if let Ok(agent) = &mut agent {
            agent.stop().await;
        }
        running.shutdown().await;
        result
    }
}
