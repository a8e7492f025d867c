//! `cargo xtask bench`: Lockstep beside common tools, on this machine, with the same data, as ratios.
//!
//! `cargo xtask bench --against REV` compares the collector with that of an earlier revision instead.
//!
//! Each server is started here, in an empty folder, on loopback, one after the other, and is ended by its own process id. Only `--only`
//! leaves parts out. If a part fails, it is named, and the others continue.

mod against;
mod agent;
mod probe;
mod query;
mod rules;
mod store;
mod web;

mod database;
mod distribution;
mod report;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

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
    /// The series store against Prometheus and VictoriaMetrics: CPU, memory, disk, reads, start after a kill.
    Store(store::Options),
    /// PromQL against Prometheus and VictoriaMetrics: latency, CPU and memory for each kind of query. Compares the results.
    Query(query::Options),
    /// The agent against all-smi and nvitop-exporter: memory, CPU per value, system calls.
    Agent(agent::Options),
    /// The cost of the probe for a training: the recipe `ddp` with and without the probe, alternating.
    Probe(probe::Options),
    /// The CPU that rules and analysers cost a collector with 8,000 ranks, and how far they are behind.
    Rules(rules::Options),
    /// The dashboard in Chromium: first paint, main thread per frame, heap, a long log, and the time from sample to pixel.
    Web(web::Options),
}

/// Measures, prints the table and writes it to docs/benchmarks.md.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    match &options.what {
        None => against::run(layout, &options.against),
        Some(What::Store(options)) => store::run(layout, options),
        Some(What::Query(options)) => query::run(layout, options),
        Some(What::Agent(options)) => agent::run(layout, options),
        Some(What::Probe(options)) => probe::run(layout, options),
        Some(What::Rules(options)) => rules::run(layout, options),
        Some(What::Web(options)) => web::run(layout, options),
    }
}

/// Returns the values that `--only` names, in their order; all if it names none.
fn chosen<T: ValueEnum + Copy + PartialEq>(only: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| only.is_empty() || only.contains(value))
        .collect()
}
