//! The program `loadgen`. Each subcommand prints one line of JSON on standard output.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use loadgen::http::Server;
use loadgen::{Fleet, agents, fleet, history, query, ranks, read, remote_write, runs, verify};
use serde::Serialize;

/// Sends the samples of a simulated GPU fleet to a server, and verifies what the server stored.
#[derive(Parser)]
#[command(name = "loadgen", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends samples by Prometheus remote write, to any server that accepts it.
    RemoteWrite(Request<remote_write::Plan>),
    /// Sends a small history of one month by remote write: the last hour of all nodes, six hours of some, 30 days of a few
    /// GPUs.
    History(Request<history::Plan>),
    /// Simulates agents over Lockstep's own protocol.
    Agents {
        #[command(flatten)]
        target: Target,
        /// Join token. Set it in the environment: arguments are visible to all users of the machine.
        #[arg(long, env = "LOCKSTEP_JOIN", hide_env_values = true)]
        join: Option<String>,
        #[command(flatten)]
        fleet: Fleet,
        #[command(flatten)]
        plan: agents::Plan,
    },
    /// Reports the ranks of the fleet over the control protocol for some time, so that the collector compares them. Their samples
    /// come from `agents` with the same fleet, at the same time.
    Ranks {
        #[command(flatten)]
        target: Target,
        /// Join token. Set it in the environment: arguments are visible to all users of the machine.
        #[arg(long, env = "LOCKSTEP_JOIN", hide_env_values = true)]
        join: Option<String>,
        #[command(flatten)]
        fleet: Fleet,
        #[command(flatten)]
        plan: ranks::Plan,
    },
    /// Simulates one run of many ranks over the control protocol: it starts, trains, fails once, restarts and ends.
    Runs {
        #[command(flatten)]
        target: Target,
        /// Join token. Set it in the environment: arguments are visible to all users of the machine.
        #[arg(long, env = "LOCKSTEP_JOIN", hide_env_values = true)]
        join: Option<String>,
        #[command(flatten)]
        plan: runs::Plan,
    },
    /// Reads back every sample and compares it. Fails if a sample is missing, changed or duplicated.
    Verify(Request<verify::Plan>),
    /// Times PromQL queries of one kind on a history, and compares the answers with those of another server.
    Query(Request<query::Plan>),
    /// Times reads of one shape.
    Read(Request<read::Plan>),
}

/// What to send to a server, or to ask it.
#[derive(clap::Args)]
struct Request<P: clap::Args> {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    fleet: Fleet,
    #[command(flatten)]
    plan: P,
}

#[derive(clap::Args)]
struct Target {
    /// URL of the server, such as http://127.0.0.1:8428.
    #[arg(long)]
    url: String,
    /// Token for the server. Set it in the environment: arguments are visible to all users of the machine.
    #[arg(long, env = "LOCKSTEP_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl Target {
    fn server(&self) -> Result<Server> {
        Server::new(&self.url, self.token.clone())
    }
}

/// One thread, so that the generator does not take the server's second core.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match execute(Cli::parse().command).await {
        Ok(code) => code,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

async fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::RemoteWrite(Request { target, fleet, plan }) => {
            let outcome = remote_write::run(&target.server()?, fleet, &plan, fleet::now_ms()).await?;
            print(&outcome, outcome.refused == 0)
        }
        Command::History(Request { target, fleet, plan }) => {
            let outcome = history::run(&target.server()?, fleet, &plan).await?;
            print(&outcome, outcome.refused == 0)
        }
        Command::Query(Request { target, fleet, plan }) => {
            let outcome = query::run(&target.server()?, fleet, &plan).await?;
            print(&outcome, outcome.agrees())
        }
        Command::Agents {
            target,
            join,
            fleet,
            plan,
        } => {
            let outcome = agents::run(&target.url, join, fleet, &plan).await?;
            print(&outcome, outcome.refused == 0 && outcome.unacknowledged == 0)
        }
        Command::Ranks {
            target,
            join,
            fleet,
            plan,
        } => {
            let outcome = ranks::run(&target.url, join, fleet, &plan).await?;
            print(&outcome, true)
        }
        Command::Runs { target, join, plan } => {
            let outcome = runs::run(&target.url, &target.server()?, join, &plan).await?;
            print(&outcome, true)
        }
        Command::Verify(Request { target, fleet, plan }) => {
            let outcome = verify::run(&target.server()?, fleet, &plan).await?;
            print(&outcome, outcome.is_complete())
        }
        Command::Read(Request { target, fleet, plan }) => {
            print(&read::run(&target.server()?, fleet, &plan).await?, true)
        }
    }
}

fn print(outcome: &impl Serialize, well: bool) -> Result<ExitCode> {
    let line = serde_json::to_string(outcome).context("an outcome is plain data")?;
    writeln!(std::io::stdout(), "{line}").context("cannot write the outcome")?;
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
