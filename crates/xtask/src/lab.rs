//! `cargo xtask lab`: faults done on purpose to real training on this machine, and a table of what Lockstep made of them.

mod faults;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::layout::Layout;

/// What to do.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Kills, stops, cuts off and starves real torchrun runs of two nodes; what must be true afterwards is checked each time.
    Faults(faults::Options),
}

/// Runs it; fails when something was not as it must be.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    match &options.what {
        What::Faults(options) => faults::run(layout, options),
    }
}
