//! `lockstep agent`: reads the signals of this machine and sends them to a collector.

mod release;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use agent::config::{HostLabel, TlsFiles};
use agent::{AgentConfig, MetricsConfig, NvmlSource, Secret};
use clap::{Args, Subcommand};
use domain::ident::{NodeName, RackName};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::locate;

/// Start the agent of this machine and connect it to a collector.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  LOCKSTEP_JOIN=$(cat join.token) lockstep agent --collector http://127.0.0.1:8470
  lockstep agent --once                          print the values of this machine once
  lockstep agent --once --simulate h100x8        the same for simulated GPUs"
)]
pub(crate) struct Agent {
    /// Address of the collector. Without it, the agent only serves its values on --metrics-listen.
    #[arg(long, env = "LOCKSTEP_COLLECTOR", value_name = "URL")]
    collector: Option<String>,
    /// Join token from `lockstep token join`; needed only the first time. Prefer the environment variable: other users of the
    /// machine can see arguments.
    #[arg(long, env = "LOCKSTEP_JOIN", hide_env_values = true, value_name = "TOKEN")]
    join: Option<String>,
    /// PEM file of the certificate that the collector must present.
    #[arg(long, env = "LOCKSTEP_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Name of this node. Default: the host name.
    #[arg(long, env = "LOCKSTEP_NAME", value_name = "NODE")]
    name: Option<String>,
    /// Name of the rack in which this node is. The dashboard can group GPUs by it.
    #[arg(long, env = "LOCKSTEP_RACK", value_name = "NAME", value_parser = rack_name)]
    rack: Option<RackName>,
    /// Folder for the agent's spool and runs.
    #[arg(long, env = "LOCKSTEP_AGENT_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// NVML library to open instead of the system's own.
    #[arg(long, env = "LOCKSTEP_NVML_LIBRARY", value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Simulate GPUs, for example h100x8 or h100x8:throttle. The dashboard marks them as simulated.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
    /// Address on which to serve this node's /metrics, or `off`. Default: 127.0.0.1:9470, if it is free.
    #[arg(long, env = "LOCKSTEP_METRICS_LISTEN", value_name = "ADDR", value_parser = listen_or_off)]
    metrics_listen: Option<ListenOrOff>,
    /// Serve /metrics over HTTPS with this certificate (PEM).
    #[arg(
        long,
        env = "LOCKSTEP_METRICS_TLS_CERT",
        value_name = "FILE",
        requires = "metrics_tls_key"
    )]
    metrics_tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(
        long,
        env = "LOCKSTEP_METRICS_TLS_KEY",
        value_name = "FILE",
        requires = "metrics_tls_cert"
    )]
    metrics_tls_key: Option<PathBuf>,
    /// Serve /metrics only to clients that send the token in this file, as `Authorization: Bearer TOKEN`.
    #[arg(long, env = "LOCKSTEP_METRICS_TOKEN_FILE", value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
    /// Also serve dcgm-exporter's default metrics, so that its dashboards work. Their label for the host is `hostname`, or
    /// `Hostname` as in dcgm-exporter before 4.8.3.
    #[arg(
        long,
        env = "LOCKSTEP_DCGM_NAMES",
        value_name = "LABEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "hostname",
        value_parser = host_label
    )]
    dcgm_names: Option<HostLabel>,
    /// Folder where the host's /proc and /sys are mounted; for agents in a container.
    #[arg(long, env = "LOCKSTEP_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Refuse to start training processes on this node.
    #[arg(long, env = "LOCKSTEP_NO_RUNS")]
    no_runs: bool,
    /// Show training that was started without Lockstep, with torchrun or under Slurm, as runs that are only watched. Default: true
    /// on nodes with real GPUs.
    #[arg(long, env = "LOCKSTEP_WATCH_JOBS", value_name = "true|false")]
    watch_jobs: Option<bool>,
    /// Python interpreter or virtual environment for runs that do not name one.
    #[arg(long, env = "LOCKSTEP_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// Process ID of the parent, with which the agent ends. `up` starts the agents of simulated nodes with it.
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<i32>,
    /// Read everything once, print it in Prometheus' text format, and exit.
    #[arg(long)]
    once: bool,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

/// Requests to an agent that is already running.
#[derive(Subcommand)]
enum AgentCommand {
    Release(release::Release),
}

/// The default address of `/metrics`.
const METRICS_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9_470);

#[derive(Debug, Clone, Copy)]
struct ListenOrOff(Option<SocketAddr>);

impl Agent {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        if let Some(AgentCommand::Release(release)) = self.command {
            return release.execute().await;
        }
        if let Some(parent) = self.end_with {
            end_with(parent)?;
        }
        let once = self.once;
        let config = self.config()?;
        if once {
            let text = agent::once(config).await.map_err(anyhow::Error::from)?;
            crate::say::write(&text);
            return Ok(());
        }
        let shutdown = CancellationToken::new();
        let ender = shutdown.clone();
        tokio::spawn(async move {
            if super::shutdown_requested().await.is_ok() {
                ender.cancel();
            }
        });
        agent::run(config, shutdown)
            .await
            .map_err(|error| Failure::Failed(error.into()))
    }

    fn config(self) -> Result<AgentConfig, Failure> {
        let name = self.name.unwrap_or_else(host_name);
        let node = NodeName::new(name).map_err(|error| Failure::Usage(format!("--name: {error}")))?;
        let nvml = match (self.simulate, self.nvml_library) {
            (Some(spec), library) => NvmlSource::Simulated { library, spec },
            (None, Some(path)) => NvmlSource::Path(path),
            (None, None) => NvmlSource::System,
        };
        Ok(AgentConfig {
            collector: self.collector,
            join_token: self.join.map(Secret::new),
            node,
            rack: self.rack,
            data_dir: self
                .data
                .unwrap_or_else(|| locate::default_data_dir().join("agent")),
            root: self.root,
            nvml,
            metrics: MetricsConfig {
                required: self.metrics_listen.is_some(),
                listen: self
                    .metrics_listen
                    .map_or(Some(METRICS_LISTEN), |listen| listen.0),
                tls: self
                    .metrics_tls_cert
                    .zip(self.metrics_tls_key)
                    .map(|(cert, key)| TlsFiles { cert, key }),
                token_file: self.metrics_token_file,
                dcgm_names: self.dcgm_names,
            },
            accepts_runs: !self.no_runs,
            watch_jobs: self.watch_jobs,
            python: self.python,
            tls_ca: self.tls_ca,
            spool_bytes_max: agent::config::SPOOL_BYTES_MAX,
        })
    }
}

/// Makes the system send SIGTERM to this process when its parent ends. Fails if the parent has ended before.
fn end_with(parent: i32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(std::io::Error::from)?;
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get() == parent => Ok(()),
        _ => Err(Failure::Usage(format!(
            "--end-with {parent}: this process is not a child of that process, which may have ended"
        ))),
    }
}

/// Returns the host name. Replaces each character that a node name cannot contain with `-`.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

fn rack_name(text: &str) -> Result<RackName, String> {
    RackName::new(text).map_err(|error| error.to_string())
}

fn host_label(text: &str) -> Result<HostLabel, String> {
    match text {
        "hostname" => Ok(HostLabel::Lower),
        "Hostname" => Ok(HostLabel::Upper),
        _ => Err("must be hostname or Hostname".to_owned()),
    }
}

fn listen_or_off(text: &str) -> Result<ListenOrOff, String> {
    if text == "off" {
        return Ok(ListenOrOff(None));
    }
    text.parse()
        .map(|address| ListenOrOff(Some(address)))
        .map_err(|_| "must be an address, for example 127.0.0.1:9470, or off".to_owned())
}
