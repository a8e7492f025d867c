//! The fault matrix: all tests in crates/lockstep/tests/faults, repeated, and their table in docs/faults.md.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{exit_code, result, say};
use crate::toolchain::venv;

const INTRODUCTION: &str = "# Faults

This page shows what happens to a run when a rank, an agent, a node, a disk or the collector fails. It is for people who operate Lockstep.

`cargo xtask lab faults` writes the matrix. Each fault is injected into a real torchrun run of two agents with two ranks each, on Gloo. An
undisturbed run is the control. The code in crates/lockstep/tests/faults describes each fault.

- *right state*: the run ended in the expected state after the expected number of attempts. If the training must continue undisturbed, the
  same processes continued it.
- *right cause*: the end of the first attempt has the right cause and names the right node and rank, not a rank that failed as a
  consequence.
- *resumed right*: the second attempt continued from the right checkpoint, at the step after it. The loss of every rank at every step
  of every attempt equals that of the undisturbed run, to the last bit.
- *charts join*: the stored series of steps and losses contain every step of the run once over all attempts, with the true loss.
- *orphans*: processes of a run that remained after its end, from any origin.
- Seconds are medians: from the fault until the run was no longer shown as running, and until no process of the attempt was left.
";
const MATRIX: Matrix = Matrix {
    step: "lab-faults",
    binary: "faults",
    test: "matrix::all",
    begin: "=== table of faults ===",
    // Matrices with many repeats take hours.
    limit: Duration::from_secs(12 * 60 * 60),
};

/// Which faults to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of repeats of each fault.
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// Only these faults; the table is then only printed, and docs/faults.md stays unchanged.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the matrix.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the run.
    let revision = machine::revision(layout);
    let venv = venv::ensure(layout)?;
    let settings = [
        ("LOCKSTEP_FAULTS_REPEATS", options.repeats.to_string()),
        ("LOCKSTEP_FAULTS_ONLY", options.only.join(",")),
    ];
    let (table, well) = MATRIX.run(layout, &venv, &settings)?;
    result(&table);
    if options.only.is_empty() {
        keep(layout, options, &revision, &table, well)?;
    } else {
        say(
            "faults",
            "docs/faults.md is unchanged: it contains only complete matrices",
        );
    }
    Ok(exit_code(well))
}

fn keep(layout: &Layout, options: &Options, revision: &str, table: &str, well: bool) -> Result<()> {
    let command = format!("cargo xtask lab faults --repeats {}", options.repeats);
    let text = format!("{}\n\n{table}", machine::origin(&command, revision));
    let heading = format!("Matrix: {}", if well { "passed" } else { "failed" });
    section::keep(&layout.root.join("docs/faults.md"), INTRODUCTION, &heading, &text)
}
