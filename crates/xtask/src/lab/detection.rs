//! How soon faults are found, compared with an earlier revision: the test in crates/lockstep/tests/faults/detection.rs, and its table in
//! docs/faults.md.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::trials::Trials;
use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::revision::{self, Profile};
use crate::measure::{machine, section};
use crate::progress::{exit_code, result};
use crate::toolchain::venv;

const MATRIX: Matrix = Matrix {
    step: "lab-detection",
    binary: "faults",
    test: "detection::all",
    begin: "=== table of detection ===",
    limit: Duration::from_secs(3 * 60 * 60),
};

/// The revision to compare with.
#[derive(Args)]
pub(crate) struct Options {
    /// The earlier revision; built from a git worktree on the first call.
    #[arg(long, value_name = "REVISION")]
    against: String,
    #[command(flatten)]
    trials: Trials,
}

/// Runs what is not done yet. Fails if a fault is found later than by the earlier revision.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let revision = machine::revision(layout);
    let results = options.trials.file(layout, "detection", &revision)?;
    let old = revision::binary_of(layout, &options.against, Profile::Debug)?;
    let venv = venv::ensure(layout)?;
    let settings = [
        ("LOCKSTEP_DETECTION_RESULTS", results.display().to_string()),
        ("LOCKSTEP_TEST_OLD_BINARY", old.display().to_string()),
    ];
    let (table, well) = MATRIX.run(layout, &venv, &settings)?;
    result(&table);
    let command = format!("cargo xtask lab detection --against {}", options.against);
    let text = format!(
        "{}\n\nBoth programs run the same training script at the same time with two agents of two ranks each. \
         The seconds are from the fault to the alert that names it. *wrong* counts trials in which such an alert named another rank, or any alert above info fired before the fault.\n\n{table}",
        machine::origin(&command, &revision),
    );
    let heading = format!("Detection: {}", if well { "passed" } else { "failed" });
    section::keep(&layout.root.join("docs/faults.md"), "# Faults\n", &heading, &text)?;
    Ok(exit_code(well))
}
