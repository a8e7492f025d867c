//! `lockstep up`: a collector, and this machine's agent as a child process.
//!
//! The child is a process group of its own and holds its own lock, so killing the collector leaves the agent and every run
//! alive, and a later `up` finds the lock held and adopts the agent instead of starting another. An orderly end (SIGTERM,
//! Ctrl-C) stops both; runs go on, owned by their shims.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tracing::{info, warn};

use super::collector::{CollectorOptions, announce};
use crate::failure::Failure;

/// How often a child or adopted agent is looked at.
const WATCH_PERIOD: Duration = Duration::from_millis(500);
/// An agent that ends at once is not started again faster than this.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
/// Time an agent has to end by itself.
const END_GRACE: Duration = Duration::from_secs(10);

/// Start a collector and, as a child process, an agent for this machine.
#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    options: CollectorOptions,
    /// Simulate this machine's GPUs, like h100x8 or h100x8:throttle. The dashboard says so.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
}

impl Up {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let running = self.options.start().await?;
        let agent_dir = self.options.data_dir().join("agent");
        let join = running
            .join_token()
            .await
            .map_err(|error| Failure::Failed(error.into()))?;
        let launch = AgentLaunch {
            url: self.options.local_url(&running),
            join,
            simulate: self.simulate.clone(),
            tls_ca: self.options.tls_cert().cloned(),
            dir: agent_dir,
        };
        announce(&self.options, &running);
        if let Some(spec) = &self.simulate {
            println!("GPUs are SIMULATED ({spec}); nothing shown for them comes from hardware.");
        }
        println!("The agent writes its log to {}", launch.log_file().display());
        let mut agent = LocalAgent::adopt_or_start(&launch)?;
        // Listens from here on: a signal while the agent is being started again must not be missed.
        let mut asked_to_end = std::pin::pin!(super::asked_to_end());
        loop {
            tokio::select! {
                ended = &mut asked_to_end => {
                    ended?;
                    break;
                }
                () = tokio::time::sleep(WATCH_PERIOD) => {
                    if !agent.is_alive() {
                        warn!("the agent has ended; starting it again");
                        tokio::time::sleep(RESTART_PAUSE).await;
                        agent = LocalAgent::adopt_or_start(&launch)?;
                    }
                }
            }
        }
        agent.stop().await;
        running.shutdown().await;
        Ok(())
    }
}

/// How to start the agent.
struct AgentLaunch {
    url: String,
    join: String,
    simulate: Option<String>,
    tls_ca: Option<PathBuf>,
    dir: PathBuf,
}

impl AgentLaunch {
    fn log_file(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    /// The token travels in the environment: arguments can be read by every user of the machine. The running program itself is
    /// started, also when its file has been replaced by a newer one.
    fn start(&self) -> Result<Child, Failure> {
        std::fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {}", self.dir.display()))?;
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = std::process::Command::new("/proc/self/exe");
        command
            .arg("agent")
            .arg("--collector")
            .arg(&self.url)
            .arg("--data")
            .arg(&self.dir);
        command
            .env("LOCKSTEP_JOIN", &self.join)
            .env_remove("LOCKSTEP_ADMIN_TOKEN")
            .env_remove("LOCKSTEP_TOKEN");
        match &self.simulate {
            Some(spec) => command.env("LOCKSTEP_SIMULATE", spec),
            None => command.env_remove("LOCKSTEP_SIMULATE"),
        };
        if let Some(path) = &self.tls_ca {
            command.arg("--tls-ca").arg(path);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        Ok(command.spawn().context("cannot start the agent")?)
    }
}

/// The agent of this machine: our child, or one that an earlier collector left.
enum LocalAgent {
    Child(Child),
    Adopted(Pid),
}

impl LocalAgent {
    fn adopt_or_start(launch: &AgentLaunch) -> Result<Self, Failure> {
        if let Some(pid) = agent::lock_holder(&launch.dir).and_then(Pid::from_raw) {
            info!(
                pid = pid.as_raw_nonzero().get(),
                "found a living agent and adopted it"
            );
            return Ok(Self::Adopted(pid));
        }
        Ok(Self::Child(launch.start()?))
    }

    fn is_alive(&mut self) -> bool {
        match self {
            Self::Child(child) => matches!(child.try_wait(), Ok(None)),
            Self::Adopted(pid) => test_kill_process(*pid).is_ok(),
        }
    }

    async fn stop(&mut self) {
        let pid = match self {
            Self::Child(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            Self::Adopted(pid) => Some(*pid),
        };
        let Some(pid) = pid.filter(|_| self.is_alive()) else {
            return;
        };
        let _gone_already = kill_process(pid, Signal::TERM);
        let ended = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(END_GRACE, ended).await.is_err() {
            warn!("the agent did not end in time and is killed");
            let _gone_already = kill_process(pid, Signal::KILL);
        }
    }
}
