//! The one binary: collector, agent, and the command line that talks to them. A file a subcommand, under `command`.

#![allow(clippy::print_stdout, reason = "a command line program prints its results")]

#[macro_use]
mod say;

mod client;
mod command;
mod failure;
mod locate;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::command::Command;

/// Gives memory back that others keep, and shares it between threads: a collector's samples are made on some and let go of on
/// others.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What the allocator reads at its start. Memory that was let go of goes back within a second: names of a quarter of a million
/// series leave 90 MB behind otherwise. Two arenas, because each keeps its own leftovers and there are a dozen threads.
#[expect(
    unsafe_code,
    reason = "the allocator finds its settings by this name alone; nothing else has it"
)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 47] = b"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Watches PyTorch training on NVIDIA GPUs, says which rank is in trouble and why, and drives training runs.
#[derive(Parser)]
#[command(
    name = "lockstep",
    version,
    propagate_version = true,
    after_help = "First steps:
  lockstep demo                                  a simulated cluster with faults to find, in one process
  lockstep up --simulate h100x8                  a collector, an agent, and eight simulated GPUs
  lockstep run submit --recipe ddp --wait        a small training run
  lockstep run why RUN                           what is wrong with it

Options of services are variables too: --listen is LOCKSTEP_LISTEN. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no collector."
)]
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
