//! `cargo xtask bench probe`: the cost of the probe for a training, by crates/torch-probe/tests/measure_overhead.py.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use super::report::Report;
use crate::child::Child;
use crate::layout::Layout;
use crate::measure::machine;
use crate::toolchain::venv;

/// One rank without gradient synchronisation, and two ranks with each strategy.
const TRAININGS: u32 = 3;
/// Time for the last pair to end after the time limit.
const BEYOND: Duration = Duration::from_secs(10 * 60);
/// Fewer pairs are not significant enough to be written.
const PAIRS_MIN: u32 = 20;

/// How many pairs to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// Pairs of each training; with fewer than 20 the tables are only printed.
    #[arg(long, default_value_t = PAIRS_MIN)]
    pairs: u32,
    /// Minutes after which no further pair of a training starts. Twenty pairs take about ten minutes on an idle machine.
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// Measures, prints, and writes the document.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    let venv = venv::ensure(layout)?;
    let file = layout.logs().join("bench-probe-table.md");
    let limit = TRAININGS * (Duration::from_secs(u64::from(options.minutes) * 60) + BEYOND);
    Child::new(layout, "bench-probe", venv::python(&venv), limit)
        .args(["crates/torch-probe/tests/measure_overhead.py", "--table"])
        .args([&file])
        .args(["--pairs", &options.pairs.to_string()])
        .args(["--minutes", &options.minutes.to_string()])
        .succeed()?;
    let table = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let report = Report {
        heading: "Probe",
        revision,
        about: "Recipes with the probe and without it, as two trainings that take turns. While one trains a block of steps, all ranks of the \
                other are stopped. The training that starts changes from pair to pair."
            .to_owned(),
    };
    let notes = [
        "The figure of a pair is the median of its blocks without the first. The intervals of the median over all pairs are computed from \
         order statistics.",
        "The probe measures its own processor time with the clock of its thread, around each of its calls. With several ranks, the rank with \
         the highest time counts.",
    ];
    let keep = !options.dry && options.pairs >= PAIRS_MIN;
    report.finish_table(layout, table.trim_end(), &notes.map(str::to_owned), keep)?;
    Ok(ExitCode::SUCCESS)
}
