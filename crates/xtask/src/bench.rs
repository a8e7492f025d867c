//! `cargo xtask bench`: Lockstep beside what people run today, on this machine, with the same data, as ratios.
//!
//! `cargo xtask bench --against REV` measures the collector beside that of an earlier revision instead.
//!
//! Every server is started here, in a fresh folder, on loopback, one after the other, and ended by its own process id. Only
//! `--only` leaves parts out; a part that fails is named, and the others go on.

mod against;
mod agent;
mod probe;
mod query;
mod store;

mod peer;
mod report;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::layout::Layout;

/// What to measure.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    against: against::Options,
}

#[derive(Subcommand)]
enum What {
    /// The series store against Prometheus and VictoriaMetrics: cost, memory, disk, reads, start after a kill.
    Store(store::Options),
    /// PromQL against Prometheus and VictoriaMetrics: latency, CPU and memory for each kind of query, answers compared.
    Query(query::Options),
    /// The agent against all-smi and nvitop-exporter: memory, CPU a value read, system calls.
    Agent(agent::Options),
    /// What watching costs a training: the recipe `ddp` with and without the probe, in turns.
    Probe(probe::Options),
}

/// Measures, prints the table and keeps it in docs/benchmarks.md.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    match &options.what {
        None => against::run(layout, &options.against),
        Some(What::Store(options)) => store::run(layout, options),
        Some(What::Query(options)) => query::run(layout, options),
        Some(What::Agent(options)) => agent::run(layout, options),
        Some(What::Probe(options)) => probe::run(layout, options),
    }
}
