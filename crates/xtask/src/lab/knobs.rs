//! Five knobs on unmodified scripts: the test in crates/lockstep/tests/first_light/knobs_unmodified.rs, and its table in docs/knobs.md.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{exit_code, result};
use crate::toolchain::venv;

/// The document is written by hand, except for this section.
const HEADING: &str = "What was measured";
const MATRIX: Matrix = Matrix {
    step: "lab-knobs",
    binary: "first_light",
    test: "knobs_unmodified::all",
    begin: "=== table of knobs ===",
    limit: Duration::from_secs(60 * 60),
};

/// There are no options: each knob needs the steps before and after it.
#[derive(Args)]
pub(crate) struct Options {}

/// Changes all knobs.
pub(crate) fn run(layout: &Layout, Options {}: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the run.
    let revision = machine::revision(layout);
    let venv = venv::ensure(layout)?;
    let (table, well) = MATRIX.run(layout, &venv, &[])?;
    result(&table);
    let text = format!(
        "Written by {}. Each change is requested with `lockstep run apply RUN CHANGE --wait` \
         while two ranks train the unchanged script of `examples/`, and gets a verdict. In train_loop.py, each change is made in addition to the earlier ones, and all are \
         reverted one by one with `lockstep run revert RUN` at the end. In train_trainer.py, each change is reverted at once. Values are before → after. Losses are compared \
         at the steps that both sides have; a change in place has no such steps.\n\n{table}",
        machine::origin("cargo xtask lab knobs", &revision),
    );
    section::keep(&layout.root.join("docs/knobs.md"), "", HEADING, &text)?;
    Ok(exit_code(well))
}
