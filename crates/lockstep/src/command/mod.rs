//! The subcommands, a file each.

mod agent;
mod alert;
mod collector;
mod demo;
mod doctor;
mod exec;
mod look;
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

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a collector and, as a child process, an agent for this machine.
    Up(up::Up),
    /// Show Lockstep at work on a simulated cluster: no GPU, Python or network is needed.
    Demo(demo::Demo),
    /// Start a collector only; agents on other machines connect to it.
    Collector(collector::Collector),
    /// Start the agent of this machine and connect it to a collector.
    Agent(agent::Agent),
    /// Submit, watch and stop training runs.
    Run(run::Run),
    /// Run any command, like torchrun, and watch it as a run without managing it.
    Exec(exec::Exec),
    /// Say what a training will need, before it is started.
    Plan(plan::Plan),
    /// Evaluate a PromQL query.
    Query(query::Query),
    /// Show what every GPU does, a line each, refreshed.
    Top(top::Top),
    /// Say what works on this machine, what does not, and the next step.
    Doctor(doctor::Doctor),
    /// Check rule files, and list the rules in force.
    Rules(rules::Rules),
    /// List diagnoses, take them on, and silence their alerts.
    Alert(alert::Alert),
    /// Back up, restore, check and clean up what is stored.
    Store(store::Store),
    /// Start, stop and list containers to work in: PyTorch with CUDA, this machine's GPUs, JupyterLab and SSH.
    Workspace(workspace::Workspace),
    /// Make, list and revoke tokens for people, programs and agents.
    Token(token::Token),
    /// Own the processes of one run on this node. Started by the agent, never by hand.
    #[command(hide = true)]
    Shim(shim::Shim),
}

impl Command {
    /// Carries the command out.
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

/// An agent's tasks are small, on the largest node too. Two threads, so that one held up by a disk does not hold up the rest.
const AGENT_THREADS: usize = 2;

/// Runs the collector. What takes long (encoding, evaluating, the disk) has threads of its own on the other
/// cores; what is left is a thousand small messages a second, and handing those from core to core costs more than they do.
fn serve(service: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    serve_on(cores.div_ceil(2), service)
}

/// Runs a long-lived service on `threads` threads, with a log, and with as many open files as the system allows.
fn serve_on(threads: usize, service: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    start_log();
    match OpenFiles::raise() {
        Ok(limits) => tracing::debug!("open files: {limits}"),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it is: {}", OpenFiles::current())
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

/// One crypto provider for the whole process; a second call changes nothing.
pub(crate) fn install_crypto() {
    let _already_there = rustls::crypto::ring::default_provider().install_default();
}

/// Sentences with fields on stderr; `LOCKSTEP_LOG` chooses what, like `info,collector=debug`.
fn start_log() {
    // At "trace" the WebSocket client writes down its requests, and with them the agent's token.
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
async fn asked_to_end() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        result = tokio::signal::ctrl_c() => Ok(result?),
    }
}
