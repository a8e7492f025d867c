//! The fault matrix: the tests in crates/lockstep/tests/faults, all of them and several times, and their table in docs/faults.md.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::child::Child;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{result, say};
use crate::toolchain::venv;
use crate::web;

const INTRODUCTION: &str = "# Faults

Written by `cargo xtask lab faults`: each fault is done to a real torchrun run of two agents with two ranks each, on Gloo, and a
run that nobody disturbs is the control. What each fault does is said beside its code in crates/lockstep/tests/faults.

- *right state*: the run ended as it must, after as many attempts as it must; where the training had to go on undisturbed, by the
  same processes.
- *right cause*: the first attempt's end is put down to the right cause and names the right node and rank, not a rank that only
  followed.
- *resumed right*: the second attempt went on from the right checkpoint, at the step behind it, and every rank's loss at every step
  of every attempt is that of the undisturbed run, to the last bit.
- *charts join*: the stored curves of steps and losses have every step of the run once over all attempts, with the true loss.
- *orphans*: processes of a run that were left after its end, wherever they came from.
- Seconds are medians: from the fault until the run was seen to be anything but running, and until nothing of the attempt was left.
";
/// Matrices of many repeats take hours.
const LIMIT: Duration = Duration::from_secs(12 * 60 * 60);
/// What frames the table in what the test prints.
const BEGIN: &str = "=== table of faults ===";
const END: &str = "=== end of the table ===";

/// How much of it.
#[derive(Args)]
pub(crate) struct Options {
    /// How often each fault is done.
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// Only these faults; the table is shown then, and docs/faults.md stays as it is.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the matrix.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Now, and not at the end: the checkout may go on meanwhile.
    let revision = machine::revision(layout);
    web::ensure_folder(layout)?;
    let venv = venv::ensure(layout)?;
    let ended = Child::new(layout, "lab-faults", "cargo", LIMIT)
        .args([
            "test",
            "--locked",
            "--package",
            "lockstep",
            "--test",
            "faults",
            "--",
        ])
        .args(["--exact", "matrix::all", "--ignored", "--nocapture"])
        .env("LOCKSTEP_TEST_VENV", venv)
        .env("LOCKSTEP_FAULTS_REPEATS", options.repeats.to_string())
        .env("LOCKSTEP_FAULTS_ONLY", options.only.join(","))
        .end()?;
    let printed =
        fs::read_to_string(&ended.log).with_context(|| format!("cannot read {}", ended.log.display()))?;
    let table = table(&printed).with_context(|| {
        format!(
            "the matrix came to no table; what it printed is in {}",
            ended.log.display()
        )
    })?;
    result(table);
    let well = ended.status.success();
    if options.only.is_empty() {
        keep(layout, options, &revision, table, well)?;
    } else {
        say("faults", "only a whole matrix is kept in docs/faults.md");
    }
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn keep(layout: &Layout, options: &Options, revision: &str, table: &str, well: bool) -> Result<()> {
    let text = format!(
        "`cargo xtask lab faults --repeats {}` at {revision} on {}, {}\n\n{table}",
        options.repeats,
        machine::today(),
        machine::describe(),
    );
    let heading = format!("Matrix: {}", if well { "passed" } else { "failed" });
    section::keep(&layout.root.join("docs/faults.md"), INTRODUCTION, &heading, &text)
}

fn table(printed: &str) -> Option<&str> {
    let (_, after) = printed.split_once(BEGIN)?;
    let (table, _) = after.split_once(END)?;
    Some(table.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_stands_between_its_marks() {
        let printed =
            format!("rank-sigkill #1: right\n{BEGIN}\n| a |\n|---|\n\n{END}\ntest matrix::all ... ok\n");
        assert_eq!(table(&printed), Some("| a |\n|---|"));
        assert_eq!(table("it could not be compiled"), None);
    }
}
