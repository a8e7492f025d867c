//! The crash tests of the store with more rounds than tests of a change can run.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::report::PartReport;
use crate::child::Child;
use crate::layout::Layout;

/// Hours, for a hundred thousand rounds.
const LIMIT: Duration = Duration::from_secs(12 * 60 * 60);

/// How often to kill.
#[derive(Args)]
pub(crate) struct KillOptions {
    /// Number of kills.
    #[arg(long, default_value_t = 500)]
    rounds: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How often to lose power.
#[derive(Args)]
pub(crate) struct PowerOptions {
    /// Number of power losses.
    #[arg(long, default_value_t = 400)]
    rounds: u64,
    /// Number of series of steps on a disk that fails.
    #[arg(long, default_value_t = 400)]
    cases: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// kill -9 at random points.
pub(crate) fn kill(layout: &Layout, options: &KillOptions) -> Result<PartReport> {
    let mut report = PartReport::new(
        "kill",
        format!("kill --rounds {} --seed {}", options.rounds, options.seed),
    );
    let test = Test {
        name: "crash::kill_nine_loses_nothing_that_was_acknowledged_and_doubles_nothing",
        variables: [
            ("LOCKSTEP_SOAK_KILL_ROUNDS", options.rounds),
            ("LOCKSTEP_SOAK_SEED", options.seed),
        ],
    };
    let printed = test.run(layout, "soak-kill", &mut report)?;
    if let Some([kills, appends]) = figures(&printed, "kills") {
        report.note(format!(
            "{kills} kills at random points; {appends} appends acknowledged. After every kill, all of them are stored, once and unchanged."
        ));
    }
    Ok(report)
}

/// Power losses, the proof that the model can fail, and disks that fail.
pub(crate) fn lose_power(layout: &Layout, options: &PowerOptions) -> Result<PartReport> {
    let PowerOptions { rounds, cases, seed } = options;
    let mut report = PartReport::new(
        "power",
        format!("power --rounds {rounds} --cases {cases} --seed {seed}"),
    );
    let losses = Test {
        name: "power::a_power_loss_loses_nothing_that_was_acknowledged",
        variables: [
            ("LOCKSTEP_SOAK_POWER_ROUNDS", *rounds),
            ("LOCKSTEP_SOAK_SEED", *seed),
        ],
    };
    let printed = losses.run(layout, "soak-power", &mut report)?;
    if let Some([losses, appends]) = figures(&printed, "power") {
        report.note(format!(
            "{losses} power losses at random calls; {appends} appends acknowledged. After every loss, all of them are stored, once and unchanged."
        ));
    }
    let teeth = Test {
        name: "power::without_full_synchronisation_a_power_loss_loses_acknowledged_samples",
        variables: [("LOCKSTEP_SOAK_SEED", *seed)],
    };
    teeth.run(layout, "soak-power-normal", &mut report)?;
    report.note("With journals that are not synchronised (`synchronous=NORMAL`) the same rounds lose samples, as expected.");
    let faults = Test {
        name: "faults::a_failing_disk_loses_nothing_that_was_acknowledged",
        variables: [("LOCKSTEP_SOAK_FAULT_CASES", *cases)],
    };
    faults.run(layout, "soak-faults", &mut report)?;
    report.note(format!(
        "{cases} random series of appends, seals, restarts and faults (EIO, ENOSPC, short writes, fsyncs that lose pages)."
    ));
    Ok(report)
}

struct Test<const N: usize> {
    name: &'static str,
    variables: [(&'static str, u64); N],
}

impl<const N: usize> Test<N> {
    /// Runs one test of the store. Returns its output.
    fn run(&self, layout: &Layout, step: &str, report: &mut PartReport) -> Result<String> {
        let mut child = Child::new(layout, step, "cargo", LIMIT)
            .args(["test", "--locked", "--package", "store", "--test", "store", "--"])
            .args(["--exact", self.name, "--nocapture"]);
        for (name, value) in &self.variables {
            child = child.env(name, value.to_string());
        }
        let ended = child.end()?;
        let printed = ended.printed()?;
        let ran = printed.contains("1 passed");
        report.check(
            ended.status.success() && ran,
            if ran {
                format!("`{}` passed.", self.name)
            } else {
                format!("`{}` did not pass; it printed {}", self.name, ended.log.display())
            },
        );
        Ok(printed)
    }
}

/// Returns the two numbers of the line that starts with `begin`.
fn figures(printed: &str, begin: &str) -> Option<[u64; 2]> {
    let line = printed.lines().find(|line| line.starts_with(begin))?;
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_off_the_line_of_a_test() {
        let printed = "running 1 test\nkills 24 appends acknowledged 1947\ntest x ... ok\n";
        assert_eq!(figures(printed, "kills"), Some([24, 1947]));
        assert_eq!(figures(printed, "power"), None);
    }
}
