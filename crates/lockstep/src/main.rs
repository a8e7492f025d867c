//! The one binary: collector, agent, and the command line that talks to them. A file a subcommand, under `command`.

#![allow(clippy::print_stdout, reason = "a command line program prints its results")]

mod client;
mod command;
mod failure;
mod locate;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::command::Command;

/// Watches PyTorch training on NVIDIA GPUs, says which rank is in trouble and why, and drives training runs.
#[derive(Parser)]
#[command(name = "lockstep", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
