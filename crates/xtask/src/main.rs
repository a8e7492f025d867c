//! Everything a person types that is not the product itself: building the dashboard, running it all, testing it all.
//!
//! A subcommand is a file. What they need from the machine (a wasm compiler, PyTorch, Chromium, Prometheus) is found or
//! fetched by `toolchain`, into one cache folder outside the checkout, so that a second clone costs nothing.

mod bench;
mod generate;
mod lab;
mod run;
mod soak;
mod test;
mod web;

mod child;
mod fingerprint;
mod layout;
mod lock;
mod measure;
mod progress;
mod toolchain;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::layout::Layout;

/// Build, run and test Lockstep.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the dashboard into web/dist and prints what each step took and what the page weighs.
    Web(web::Options),
    /// Sets everything up, then starts collector and agent; simulates GPUs, and says so, where none is found.
    Run(run::Options),
    /// Sets everything up, then runs every check and test; the last line counts them.
    Test(test::Options),
    /// Writes the files that are made from definitions: docs/metrics.md, docs/nvml-fields.md, grafana/. Tests hold them against those.
    Generate,
    /// Measures Lockstep beside what people run today, and keeps the table in docs/benchmarks.md.
    Bench(bench::Options),
    /// Runs what takes too long for every change: kills, power losses, fuzzing, load, a full disk. Writes docs/soak.md.
    Soak(soak::Options),
    /// Does faults to real training on this machine and keeps the table of what Lockstep made of them.
    Lab(lab::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli.command) {
        Ok(code) => code,
        Err(error) => {
            progress::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let layout = Layout::of_this_checkout()?;
    match command {
        Command::Web(options) => web::build(&layout, &options).map(|()| ExitCode::SUCCESS),
        Command::Run(options) => run::start(&layout, &options),
        Command::Test(options) => test::all(&layout, &options),
        Command::Generate => generate::run(&layout).map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => bench::run(&layout, &options),
        Command::Soak(options) => soak::run(&layout, &options),
        Command::Lab(options) => lab::run(&layout, &options),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
