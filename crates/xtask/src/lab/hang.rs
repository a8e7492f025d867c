//! Hangs: the test in crates/lockstep/tests/faults/hang.rs, and its table in docs/faults.md. Finished trials are stored per revision, so
//! that an interrupted command continues.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::trials::Trials;
use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{exit_code, result};
use crate::toolchain::venv;

const MATRIX: Matrix = Matrix {
    step: "lab-hang",
    binary: "faults",
    test: "hang::all",
    begin: "=== table of hangs ===",
    limit: Duration::from_secs(3 * 60 * 60),
};

/// Runs what is not done yet.
pub(crate) fn run(layout: &Layout, trials: &Trials) -> Result<ExitCode> {
    let revision = machine::revision(layout);
    let results = trials.file(layout, "hang", &revision)?;
    let venv = venv::ensure(layout)?;
    let settings = [("LOCKSTEP_HANG_RESULTS", results.display().to_string())];
    let (table, well) = MATRIX.run(layout, &venv, &settings)?;
    result(&table);
    let text = format!(
        "{}\n\nTwo agents with two ranks each. One rank is stopped (SIGSTOP), computes forever, or waits for a message that no rank \
         sends. The table counts the ranks that any alert above info names, from the hang until 12 s after the first alert.\n\n{table}",
        machine::origin("cargo xtask lab hang", &revision),
    );
    let heading = format!("Hangs: {}", if well { "passed" } else { "failed" });
    section::keep(&layout.root.join("docs/faults.md"), "# Faults\n", &heading, &text)?;
    Ok(exit_code(well))
}
