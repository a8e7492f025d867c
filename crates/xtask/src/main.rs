//! All development commands: build the dashboard, run everything, test everything.
//!
//! Each subcommand is one file. `toolchain` finds or downloads what they need from the machine (a wasm compiler, PyTorch, Chromium,
//! Prometheus). It uses one cache folder outside the checkout, so a second clone downloads nothing.

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
    /// Builds the dashboard into web/dist. Prints the time of each step and the size of the page.
    Web(web::Options),
    /// Sets everything up, then starts collector and agent. Simulates GPUs, with a notice, if there are none.
    Run(run::Options),
    /// Sets everything up, then runs all checks and tests. The last line shows the totals.
    Test(test::Options),
    /// Writes the generated files: docs/metrics.md, docs/nvml-fields.md, docs/api-fields.md, grafana/, and tables in docs/api.md and
    /// docs/store.md. Tests compare them with their definitions.
    Generate,
    /// Measures Lockstep and other tools side by side, and writes the table to docs/benchmarks.md.
    Bench(bench::Options),
    /// Runs tests that take too long for every change: kills, power losses, fuzzing, load, a full disk. Writes docs/soak.md.
    Soak(soak::Options),
    /// Injects faults into real training on this machine, and writes tables of the results.
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
