//! `cargo xtask soak`: what takes too long for every change. Kills, power losses, failing disks, fuzzing, twenty minutes' load, a
//! month's store, a full disk, an agent's hour.
//!
//! Every part can fail, and says in docs/soak.md what it saw, with date, revision, command and machine. A part that fails is
//! named, and the others go on.

mod agent;
mod disk;
mod fuzz;
pub(crate) mod quiet;
mod start;
mod store;
mod sustained;

mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::layout::Layout;
use crate::measure::machine;
use crate::progress::{block, result, say};
use report::Seen;

/// What to run; all of it when nothing is said.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// kill -9 at random points of a store that opens, appends, seals, compacts and drops.
    Kill(store::KillOptions),
    /// Simulated power losses at random calls, and disks that fail.
    Power(store::PowerOptions),
    /// libFuzzer on every door for bytes from outside.
    Fuzz(fuzz::Options),
    /// A thousand nodes at 1 Hz for ten minutes; then the same with the collector killed twice.
    Sustained(sustained::Options),
    /// How long a collector takes to be ready on 30 days of 8,000 series.
    Start(start::Options),
    /// A data folder that fills up: ingest stops, queries go on, and all comes back with the space.
    Disk(disk::Options),
    /// An agent on eight simulated GPUs for an hour, with its burst: it must not grow.
    Agent(agent::Options),
    /// Healthy but noisy training for two hours, two runs at a time: no alert above info may fire.
    Quiet(quiet::Options),
    /// All of the above, as they are by default.
    All,
}

/// What names the log of a part's collector, and the logs of what is run against it.
const COLLECTOR: &str = "soak-collector";

/// Runs the parts; fails when one did.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let well = match options.part.as_ref().unwrap_or(&Part::All) {
        Part::All => all(layout),
        part => one(layout, part),
    };
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn all(layout: &Layout) -> bool {
    let parts = [
        Part::Kill(store::KillOptions::default()),
        Part::Power(store::PowerOptions::default()),
        Part::Disk(disk::Options::default()),
        Part::Start(start::Options::default()),
        Part::Sustained(sustained::Options::default()),
        Part::Agent(agent::Options::default()),
        Part::Quiet(quiet::Options::default()),
        Part::Fuzz(fuzz::Options::default()),
    ];
    // Not `all`: the ones after a failure run too.
    parts.iter().filter(|part| !one(layout, part)).count() == 0
}

fn one(layout: &Layout, part: &Part) -> bool {
    let name = part.name();
    // Now, and not at the end: the checkout may go on meanwhile.
    let revision = machine::revision(layout);
    say(name, "begins");
    let seen = match part.run(layout) {
        Ok(seen) => seen,
        Err(error) => {
            block(&format!("{name} failed"), &format!("{error:#}"));
            Seen::failed(name, &format!("{error:#}"))
        }
    };
    result(&seen.in_words());
    if let Err(error) = report::keep(layout, &seen, &revision) {
        say(name, &format!("{error:#}"));
        return false;
    }
    seen.well
}

/// Where a part keeps what it makes.
fn folder_of(layout: &Layout, part: &str) -> PathBuf {
    layout.target().join("soak").join(part)
}

impl Part {
    fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Power(_) => "power",
            Self::Fuzz(_) => "fuzz",
            Self::Sustained(_) => "sustained",
            Self::Start(_) => "start",
            Self::Disk(_) => "disk",
            Self::Agent(_) => "agent",
            Self::Quiet(_) => "quiet",
            Self::All => "all",
        }
    }

    fn run(&self, layout: &Layout) -> Result<Seen> {
        match self {
            Self::Kill(options) => store::kill(layout, options),
            Self::Power(options) => store::lose_power(layout, options),
            Self::Fuzz(options) => fuzz::run(layout, options),
            Self::Sustained(options) => sustained::run(layout, options),
            Self::Start(options) => start::run(layout, options),
            Self::Disk(options) => disk::run(layout, options),
            Self::Agent(options) => agent::run(layout, options),
            Self::Quiet(options) => quiet::run(layout, options),
            Self::All => anyhow::bail!("all parts are run one by one"),
        }
    }
}
