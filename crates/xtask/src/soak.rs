//! `cargo xtask soak`: tests that take too long for every change. Kills, power losses, failing disks, fuzzing, twenty minutes of load, a
//! month's store, a full disk, an agent for one hour.
//!
//! Every part can fail, and writes its results into docs/soak.md with date, revision, command and machine. If a part fails, it is named,
//! and the others continue.

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
use clap::{Args, FromArgMatches, Subcommand};

use crate::layout::Layout;
use crate::measure::machine;
use crate::progress::{block, exit_code, result, say};
use report::PartReport;

/// What to run. Default: all parts.
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
    /// libFuzzer on every parser of bytes from outside.
    Fuzz(fuzz::Options),
    /// A thousand nodes at 1 Hz for ten minutes; then the same with the collector killed twice.
    Sustained(sustained::Options),
    /// The time until a collector is ready on 30 days of 8,000 series.
    Start(start::Options),
    /// A data folder that fills up: ingest stops, queries continue, and ingest resumes when there is space.
    Disk(disk::Options),
    /// An agent on eight simulated GPUs for one hour, with its burst: it must not grow.
    Agent(agent::Options),
    /// Healthy but noisy training for two hours, two runs at a time: no alert above info may fire.
    Quiet(quiet::Options),
    /// All of the above, with their defaults.
    All,
}

/// Names the log of a part's collector, and the logs of programs that run against it.
const COLLECTOR: &str = "soak-collector";

/// Runs the parts. Fails if one failed.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let passed = match options.part.as_ref().unwrap_or(&Part::All) {
        Part::All => all(layout)?,
        part => one(layout, part),
    };
    Ok(exit_code(passed))
}

fn all(layout: &Layout) -> Result<bool> {
    // Not `all`: parts after a failure run too.
    Ok(all_parts()?.iter().filter(|part| !one(layout, part)).count() == 0)
}

fn all_parts() -> Result<[Part; 8]> {
    Ok([
        Part::Kill(defaults()?),
        Part::Power(defaults()?),
        Part::Disk(defaults()?),
        Part::Start(defaults()?),
        Part::Sustained(defaults()?),
        Part::Agent(defaults()?),
        Part::Quiet(defaults()?),
        Part::Fuzz(defaults()?),
    ])
}

/// Returns the options of a part as if its command line had none.
fn defaults<T: Args>() -> Result<T> {
    let part = T::augment_args(clap::Command::new("part"));
    let nothing = part.try_get_matches_from(["part"])?;
    Ok(FromArgMatches::from_arg_matches(&nothing)?)
}

fn one(layout: &Layout, part: &Part) -> bool {
    let name = part.name();
    // Read now, because the checkout may change during the run.
    let revision = machine::revision(layout);
    say(name, "begins");
    let report = match part.run(layout) {
        Ok(report) => report,
        Err(error) => {
            block(&format!("{name} failed"), &format!("{error:#}"));
            PartReport::failed(name, &format!("{error:#}"))
        }
    };
    result(&report.to_text());
    if let Err(error) = report::keep(layout, &report, &revision) {
        say(name, &format!("{error:#}"));
        return false;
    }
    report.passed
}

/// Returns the folder in which a part writes its files.
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

    fn run(&self, layout: &Layout) -> Result<PartReport> {
        match self {
            Self::Kill(options) => store::kill(layout, options),
            Self::Power(options) => store::lose_power(layout, options),
            Self::Fuzz(options) => fuzz::run(layout, options),
            Self::Sustained(options) => sustained::run(layout, options),
            Self::Start(options) => start::run(layout, options),
            Self::Disk(options) => disk::run(layout, options),
            Self::Agent(options) => agent::run(layout, options),
            Self::Quiet(options) => quiet::run(layout, options),
            Self::All => anyhow::bail!("all parts are run separately"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_without_options() {
        let parts = all_parts().expect("every option has a default");
        let names = parts.iter().map(Part::name).collect::<Vec<_>>().join(" ");
        assert_eq!(names, "kill power disk start sustained agent quiet fuzz");
    }
}
