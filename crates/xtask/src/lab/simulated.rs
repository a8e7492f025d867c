//! The same question as `cargo xtask lab diagnosis`, on a simulated cluster: the tests in crates/lockstep/tests/faults/diagnosis/simulated, and
//! their tables in docs/lab.md. Finished trials are stored per revision, so that an interrupted command continues.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::diagnosis::{SCORING_SEEDS_FROM, keep};
use super::trials::Trials;
use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::machine;
use crate::progress::{exit_code, result, say};

const LIMIT: Duration = Duration::from_secs(12 * 60 * 60);
const BEGIN: &str = "=== table of simulated diagnoses ===";
const TRIALS: Matrix = Matrix {
    step: "lab-simulated",
    binary: "faults",
    test: "diagnosis::simulated::trials",
    begin: BEGIN,
    limit: LIMIT,
};
const REPLAY: Matrix = Matrix {
    step: "lab-replayed",
    test: "diagnosis::simulated::replay",
    ..TRIALS
};
const HOURS: Matrix = Matrix {
    step: "lab-simulated-healthy",
    test: "diagnosis::simulated::hours",
    ..TRIALS
};

/// What the trials are, for the page.
const OF_TRIALS: &str = "\
An ordinary collector is fed by the simulated cluster of `lockstep demo`: nodes that speak the agents' protocol. Nothing is scripted on the collector's side. Steps are \
recordings of rank 0 of the lab's recipes (crates/sim-cluster/traces: DDP, FSDP, HSDP), stretched to the drawn time of a step (0.12 to 1 s; in every eighth trial 2 to 6 s). Each rank and part of a step has \
log-normal noise (median 1, σ drawn from 0.01 to 0.05). In one run of four, batches differ (log-normal, σ 0.15). Now and then, a batch is late by a Pareto-distributed time (type I, α 1.5, from 20 ms, \
cut off at 1.5 s). The forms of the distributions are the usual ones for variable and for heavy-tailed times (Limpert, Stahel, Abbt, BioScience 2001; Crovella, Bestavros, IEEE/ACM ToN 1997); their \
parameters are our choice. Runs have 4 to 64 ranks, some have 1,024. A rank is a series of reports, not a process, so these results show what the analysers and rules make of such data. They do not \
show what the probe measures.";
const OF_REPLAY: &str = "\
**Not confirmed on hardware.** The same, but ranks report device `cuda` and backend `nccl`, and their waits as the probe's CUDA path does: no page shows a wait, the host is blocked in the \
backward pass or where the script reads the loss, waits of a sharded model are measured in about four steps per second, and Flight Recorders do not know whether a kernel has started. Recordings are \
from Gloo.";
const OF_HOURS: &str = "\
Simulated runs without faults: evaluations, checkpoint pauses, uneven and late batches, long steps, runs that end, and runs that a person stops and resumes. No alert above info may be sent. Each that is \
sent is listed with what was drawn.";

/// Which trials to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these kinds of faults; the tables are then only printed, and docs/lab.md stays unchanged.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    only: Vec<String>,
    /// Trials of each kind; 0 for none.
    #[arg(long = "trials", value_name = "N", default_value_t = 16)]
    count: u32,
    /// Trials with 1,024 ranks, in addition. Each runs alone.
    #[arg(long, value_name = "N", default_value_t = 8)]
    large: u32,
    /// Trials of each kind that are replayed as on GPUs with NCCL; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 6)]
    replayed: u32,
    /// Run-hours of healthy work; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 50)]
    healthy_hours: u32,
    /// The seed of the trials; below 1000 for setting thresholds, from 1000 on for scoring.
    #[arg(long, default_value_t = 1001)]
    seed: u64,
    /// Maximum number of trials at the same time.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=64))]
    runs: u32,
    /// Maximum number of nodes of the trials at the same time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=128))]
    nodes: u32,
    #[command(flatten)]
    trials: Trials,
}

/// A table of the page.
struct Table {
    matrix: Matrix,
    heading: &'static str,
    about: &'static str,
    /// The name of the file of finished trials.
    file: &'static str,
    /// What the command would be for this table only.
    command: String,
    settings: Vec<(&'static str, String)>,
}

/// Runs what is not done yet. Fails if a target is missed.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let revision = machine::revision(layout);
    let mut well = true;
    for table in options.tables() {
        let results = options.trials.file(layout, table.file, &revision)?;
        let mut settings = table.settings;
        settings.push(("LOCKSTEP_SIMULATED_SEED", options.seed.to_string()));
        settings.push(("LOCKSTEP_SIMULATED_RESULTS", results.display().to_string()));
        let (text, is_met) = table.matrix.run_optimised(layout, &settings)?;
        well &= is_met;
        result(&text);
        if !options.only.is_empty() || options.seed < SCORING_SEEDS_FROM {
            say(
                table.matrix.step,
                "only all kinds with a seed for scoring are kept in docs/lab.md",
            );
            continue;
        }
        let origin = machine::origin(&table.command, &revision);
        let text = format!("{origin}\n\n{}\n\n{text}", table.about);
        keep(layout, table.heading, is_met, &text)?;
    }
    Ok(exit_code(well))
}

impl Options {
    fn tables(&self) -> Vec<Table> {
        let command = |what: String| format!("cargo xtask lab simulated {what} --seed {}", self.seed);
        let names = self.only.iter().map(String::as_str);
        let (replayed, simulated): (Vec<&str>, Vec<&str>) = names.partition(|name| name.starts_with("nccl-"));
        let is_any = |of_table: &[&str]| self.only.is_empty() || !of_table.is_empty();
        let has_trials = self.count > 0 && is_any(&simulated);
        let has_replay = self.replayed > 0 && is_any(&replayed);
        let has_hours = self.healthy_hours > 0 && self.only.is_empty();
        let trials = Table {
            matrix: TRIALS,
            heading: "Simulated trials",
            about: OF_TRIALS,
            file: "simulated",
            command: command(format!("--trials {} --large {}", self.count, self.large)),
            settings: self.of_trials(
                &simulated,
                &[
                    ("LOCKSTEP_SIMULATED_TRIALS", self.count),
                    ("LOCKSTEP_SIMULATED_LARGE", self.large),
                ],
            ),
        };
        let replay = Table {
            matrix: REPLAY,
            heading: "Replayed as NCCL on GPUs, not confirmed on hardware",
            about: OF_REPLAY,
            file: "replayed",
            command: command(format!("--replayed {}", self.replayed)),
            settings: self.of_trials(&replayed, &[("LOCKSTEP_SIMULATED_TRIALS", self.replayed)]),
        };
        let hours = Table {
            matrix: HOURS,
            heading: "Healthy simulated work",
            about: OF_HOURS,
            file: "simulated-healthy",
            command: command(format!("--healthy-hours {}", self.healthy_hours)),
            settings: vec![("LOCKSTEP_SIMULATED_HOURS", self.healthy_hours.to_string())],
        };
        [(has_trials, trials), (has_replay, replay), (has_hours, hours)]
            .into_iter()
            .filter_map(|(is_wanted, table)| is_wanted.then_some(table))
            .collect()
    }

    /// Returns the settings of trials of these kinds; of all kinds of the table if none is given.
    fn of_trials(&self, only: &[&str], numbers: &[(&'static str, u32)]) -> Vec<(&'static str, String)> {
        let numbers = numbers.iter().map(|(name, number)| (*name, number.to_string()));
        let mut settings: Vec<_> = numbers.collect();
        settings.push(("LOCKSTEP_SIMULATED_ONLY", only.join(",")));
        settings.push(("LOCKSTEP_SIMULATED_RUNS", self.runs.to_string()));
        settings.push(("LOCKSTEP_SIMULATED_NODES", self.nodes.to_string()));
        settings
    }
}
