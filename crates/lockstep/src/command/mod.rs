//! The subcommands, one file each.

mod agent;
mod alert;
mod collector;
mod demo;
mod doctor;
mod exec;
mod local_reading;
mod metrics_page;
mod plan;
mod query;
mod rules;
mod run;
mod shim;
mod store;
mod token;
mod top;
mod up;
mod workspace;

use clap::Subcommand;
use listener::OpenFiles;

use crate::failure::Failure;

/// The subcommands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a collector and, as a child process, an agent for this machine.
    Up(up::Up),
    /// Show Lockstep on a simulated cluster. No GPU, Python or network is needed.
    Demo(demo::Demo),
    /// Start only a collector. Agents on other machines connect to it.
    Collector(collector::Collector),
    /// Start the agent of this machine and connect it to a collector.
    Agent(agent::Agent),
    /// Submit, watch and stop training runs.
    Run(run::Run),
    /// Run any command, for example torchrun, and watch it as a run without managing it.
    Exec(exec::Exec),
    /// Estimate what a training run needs, before you start it.
    Plan(plan::Plan),
    /// Evaluate a PromQL query.
    Query(query::Query),
    /// Show what each GPU does, one line per GPU, refreshed.
    Top(top::Top),
    /// Check what works on this machine, what does not, and which step is next.
    Doctor(doctor::Doctor),
    /// Check and test rule files, and list the collector's rules.
    Rules(rules::Rules),
    /// List and acknowledge diagnoses, and silence their alerts.
    Alert(alert::Alert),
    /// Back up, restore, check and clean up the store.
    Store(store::Store),
    /// Start, stop and list workspaces: containers with PyTorch and CUDA, this machine's GPUs, JupyterLab and SSH.
    Workspace(workspace::Workspace),
    /// Create, list and revoke tokens for users, programs and agents.
    Token(token::Token),
    /// Own the processes of one run on this node. The agent starts it; do not start it yourself.
    #[command(hide = true)]
    Shim(shim::Shim),
}

impl Command {
    /// Runs the command.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        match self {
            Self::Up(up) => serve(up.execute()),
            Self::Demo(demo) => serve(demo.execute()),
            Self::Collector(collector) => serve(collector.execute()),
            Self::Agent(agent) => serve_on(AGENT_THREADS, agent.execute()),
            Self::Run(run) => ask(run.execute()),
            Self::Exec(exec) => exec.execute(),
            Self::Plan(plan) => plan.execute(),
            Self::Query(query) => ask(query.execute()),
            Self::Top(top) => ask(top.execute()),
            Self::Doctor(doctor) => ask(doctor.execute()),
            Self::Rules(rules) => ask(rules.execute()),
            Self::Alert(alert) => ask(alert.execute()),
            Self::Store(store) => ask(store.execute()),
            Self::Workspace(workspace) => ask(workspace.execute()),
            Self::Token(token) => ask(token.execute()),
            Self::Shim(shim) => shim.execute(),
        }
    }
}

/// The tasks of an agent are small, on the largest node too. With two threads, a task that waits for a disk does not delay the others.
const AGENT_THREADS: usize = 2;

/// Runs the collector on half of the cores. Slow work (encoding, evaluating, the disk) has threads of its own on the other cores. The rest
/// is about a thousand small messages per second; moving a message to another core costs more than handling it.
fn serve(service: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    serve_on(cores.div_ceil(2), service)
}

/// Runs a long-lived service on `threads` threads, with a log, and with the highest limit of open files that the system allows.
fn serve_on(threads: usize, service: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    start_log();
    match OpenFiles::raise() {
        Ok(limits) => tracing::debug!("open files: {limits}"),
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files; it stays at: {}", OpenFiles::current())
        }
    }
    install_crypto();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?
        .block_on(service)
}

/// Runs a short client command on one thread.
fn ask(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(command)
}

/// Installs one crypto provider for the whole process. A second call is a no-op.
pub(crate) fn install_crypto() {
    let _already_there = rustls::crypto::ring::default_provider().install_default();
}

/// Writes log lines to stderr. `LOCKSTEP_LOG` sets the filter, for example `info,collector=debug`.
fn start_log() {
    // At level "trace" the WebSocket client logs its requests, and with them the agent's token.
    let filter = tracing_subscriber::EnvFilter::try_from_env("LOCKSTEP_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"))
        .add_directive("tungstenite=warn".parse().expect("a well-formed directive"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
}

/// Resolves when the process is asked to end, by SIGTERM or Ctrl-C.
async fn shutdown_requested() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        result = tokio::signal::ctrl_c() => Ok(result?),
    }
}
