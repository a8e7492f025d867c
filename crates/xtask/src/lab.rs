//! `cargo xtask lab`: real training on this machine, with injected faults, with other PyTorch releases or across an upgrade, and tables of
//! the results.

mod detection;
mod diagnosis;
mod faults;
mod golden;
mod hang;
pub(crate) mod hardware;
mod knobs;
mod recipes;
mod simulated;
mod trials;
mod upgrade;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::child::Child;
use crate::layout::Layout;
use crate::web;

/// The line that ends the table in the output of a test.
const END: &str = "=== end of the table ===";

/// What to do.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Degrades a training in several ways under this program and an earlier revision at the same time. Records how soon each finds the
    /// fault. Continues after an interruption.
    Detection(detection::Options),
    /// Makes runs go wrong in more than 60 ways, with culprit, moment and magnitude drawn from a seed. Records whom the alerts name, and when.
    ///
    /// Each trial is stored when it ends, in target/xtask/diagnosis-REVISION.jsonl. The same command at the same revision continues with the
    /// trials that are missing. Ctrl-C, SIGTERM and --minutes end it early; the tables then contain all trials that are stored.
    Diagnosis(diagnosis::Options),
    /// Kills, stops, disconnects and starves real torchrun runs of two nodes, and checks the state after each fault.
    Faults(faults::Options),
    /// Records data folders, run folders and a backup that an earlier revision writes.
    Golden(golden::Options),
    /// Makes one rank of four hang in several ways, and records which ranks the alerts name. Continues after an interruption.
    Hang(trials::Trials),
    /// Builds the folder that checks Lockstep on a machine with NVIDIA GPUs, or stores the results from such a machine.
    Hardware(hardware::Options),
    /// Changes five knobs in the scripts of examples/ during training, and records the verdicts.
    Knobs(knobs::Options),
    /// Trains every recipe on two nodes of two ranks, with the PyTorch of the tests or another release.
    Recipes(recipes::Options),
    /// Plays runs that go wrong on a simulated cluster, many at the same time, and hours of healthy runs. Scores them like the real ones.
    /// Continues after an interruption.
    Simulated(simulated::Options),
    /// Runs training with an old agent and a new collector, with a new agent and an old collector, and through both upgrades. Writes the
    /// table to docs/upgrade.md.
    Upgrade(upgrade::Options),
}

/// Runs the command. Fails if a check failed.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    match &options.what {
        What::Detection(options) => detection::run(layout, options),
        What::Diagnosis(options) => diagnosis::run(layout, options),
        What::Faults(options) => faults::run(layout, options),
        What::Golden(options) => golden::run(layout, options),
        What::Hang(options) => hang::run(layout, options),
        What::Hardware(options) => hardware::run(layout, options),
        What::Knobs(options) => knobs::run(layout, options),
        What::Recipes(options) => recipes::run(layout, options),
        What::Simulated(options) => simulated::run(layout, options),
        What::Upgrade(options) => upgrade::run(layout, options),
    }
}

/// A test of crates/lockstep that prints a table.
pub(crate) struct Matrix {
    /// The name of its log.
    pub(crate) step: &'static str,
    pub(crate) binary: &'static str,
    pub(crate) test: &'static str,
    /// The line before the table.
    pub(crate) begin: &'static str,
    pub(crate) limit: Duration,
}

impl Matrix {
    /// Runs the test. Returns the table, and whether all checks passed.
    pub(crate) fn run(
        &self,
        layout: &Layout,
        venv: &Path,
        settings: &[(&str, String)],
    ) -> Result<(String, bool)> {
        let test = (self.binary, self.test);
        let child = ignored_test(layout, self.step, test, self.limit, venv)?;
        self.end(child, settings)
    }

    /// Like `run`, but after SIGINT or SIGTERM, the test ends early with the table of what is done, because it watches `stop_file`.
    pub(crate) fn run_stoppable(
        &self,
        layout: &Layout,
        venv: &Path,
        settings: &[(&str, String)],
        stop_file: &Path,
    ) -> Result<(String, bool)> {
        let test = (self.binary, self.test);
        let child = ignored_test(layout, self.step, test, self.limit, venv)?;
        self.end(child.stopped_by(stop_file), settings)
    }

    /// Runs the test in a release build. It does not need PyTorch.
    pub(crate) fn run_optimised(
        &self,
        layout: &Layout,
        settings: &[(&str, String)],
    ) -> Result<(String, bool)> {
        let child = test_command(
            layout,
            self.step,
            (self.binary, self.test),
            self.limit,
            &["--release"],
        )?;
        self.end(child, settings)
    }

    fn end(&self, mut child: Child, settings: &[(&str, String)]) -> Result<(String, bool)> {
        for (name, value) in settings {
            child = child.env(name, value);
        }
        let ended = child.end()?;
        let printed = ended.printed()?;
        let table = framed(&printed, self.begin).with_context(|| {
            format!(
                "{} printed no table; its output is in {}",
                self.test,
                ended.log.display()
            )
        })?;
        Ok((table.to_owned(), ended.status.success()))
    }
}

/// Runs an ignored test of crates/lockstep: the name of its test target, and its own name.
fn ignored_test(
    layout: &Layout,
    step: &str,
    (binary, test): (&str, &str),
    limit: Duration,
    venv: &Path,
) -> Result<Child> {
    Ok(test_command(layout, step, (binary, test), limit, &[])?.env("LOCKSTEP_TEST_VENV", venv))
}

/// Like `ignored_test`, with more arguments for cargo and without PyTorch.
fn test_command(
    layout: &Layout,
    step: &str,
    (binary, test): (&str, &str),
    limit: Duration,
    more: &[&str],
) -> Result<Child> {
    web::ensure_folder(layout)?;
    Ok(Child::new(layout, step, "cargo", limit)
        .args(["test", "--locked", "--package", "lockstep"])
        .args(more)
        .args(["--test", binary, "--", "--exact", test])
        .args(["--ignored", "--nocapture"]))
}

fn framed<'a>(printed: &'a str, begin: &str) -> Option<&'a str> {
    let (_, after) = printed.split_once(begin)?;
    let (table, _) = after.split_once(END)?;
    Some(table.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_text_between_its_marks() {
        let begin = "=== table of faults ===";
        let printed =
            format!("rank-sigkill #1: right\n{begin}\n| a |\n|---|\n\n{END}\ntest matrix::all ... ok\n");
        assert_eq!(framed(&printed, begin), Some("| a |\n|---|"));
        assert_eq!(framed("it could not be compiled", begin), None);
    }
}
