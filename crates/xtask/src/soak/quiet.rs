//! Healthy but noisy training: the test in crates/lockstep/tests/faults/quiet.rs, in which no alert above info may fire.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::report::PartReport;
use crate::lab::Matrix;
use crate::layout::Layout;
use crate::toolchain::venv;

const MATRIX: Matrix = Matrix {
    step: "soak-quiet",
    binary: "faults",
    test: "quiet::hours",
    begin: "=== table of quiet work ===",
    limit: Duration::from_secs(13 * 60 * 60),
};

/// How long to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Minutes in which new runs start.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=720))]
    minutes: u32,
}

/// Runs the test.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let venv = venv::ensure(layout)?;
    let (table, passed) = table(layout, &venv, options.minutes)?;
    let mut report = PartReport::new("quiet", format!("quiet --minutes {}", options.minutes));
    report.check(
        passed,
        format!(
            "two runs at a time for {} minutes, with upgrades of an agent; alerts above info: see the table",
            options.minutes
        ),
    );
    report.note(format!("by work:\n\n{table}\n"));
    Ok(report)
}

/// Returns which alerts fired by kind of work, and whether none fired.
pub(crate) fn table(layout: &Layout, venv: &Path, minutes: u32) -> Result<(String, bool)> {
    let settings = [("LOCKSTEP_QUIET_MINUTES", minutes.to_string())];
    MATRIX.run(layout, venv, &settings)
}
