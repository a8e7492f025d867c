//! Which rank, node or run is named when something goes wrong: the test in crates/lockstep/tests/faults/diagnosis, and its tables in
//! docs/lab.md. Finished trials are stored per revision, so that an interrupted command continues. A command that ends early writes the tables
//! too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::trials::Trials;
use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{exit_code, result, say};
use crate::soak::quiet;
use crate::toolchain::venv;

const INTRODUCTION: &str = "# Accuracy of diagnoses

This page shows how often and how soon Lockstep names what went wrong in a run. It is for people who decide whether to trust a diagnosis.

`cargo xtask lab diagnosis` writes this page. It runs real torchrun jobs on Gloo, watched by a collector and two agents. In each job, one thing goes wrong: a rank hangs or
is slow, the run or one rank learns wrongly, gets wrong data, cannot save its checkpoints, or ends. The strategy (DDP, FSDP2 or HSDP), the number of ranks (2 to 8), the
culprit, the time and the magnitude of the fault are drawn from a seed. The files in crates/lockstep/tests/faults/diagnosis/faults describe each kind of fault. The script needs no
change to be watched.

- *detected*: an alert of severity warning or above, of a rule that fits the kind of fault, fired after the fault, or a wrong rank was named.
- *culprit right*: such an alert names the culprit (each culprit, if there are two), and no alert names another rank or node. If all ranks have the fault, or a rule cannot know
  which rank has it, the run is the culprit: such an alert is about the run, and no alert names a rank without the fault. If an agent or a node is lost, the node is the culprit.
- *wrong rank named*: any alert names another rank or node of the run, or any rank before the fault.
- *unknown*: detected, but not every culprit is named. This counts as a miss.
- *p50*, *p95*: seconds from the fault until the culprit was named, by the clock of the machine. A trial in which it was not named counts as infinite. Some rules
  wait on purpose: `LearningRateZero` for five minutes, but for three in these trials, whose rate is 0 from the first step; `ThroughputDropped` for
  two and a half if the throughput is between 50 and 70 % of the best; `DataUneven` and `LossRises` for one, `ReplicasDiffer` for three checks
  of 256 steps each. `before-rendezvous` and `before-model` begin when all other ranks wait for the culprit.
- *named by `run why`*: `lockstep run why RUN` names the culprit at the end of the trial.
- *TraceML*: TraceML on the same script with the same seed, for stragglers; three lines of the script are enabled for it. It is right if its summary at the end of the run
  names exactly the culprits as stragglers. Only the trials in which TraceML ran too are compared.
- *alerts besides*: other rules of severity warning or above whose alerts were sent in any of the trials. Each such alert is a false alarm, although it may be true.
- *targets*: at p95, hangs are named within 12 s or 3 steps and 3 s, stragglers within 20 s or 20 steps, whichever is longer. They are met only with 120 trials, or all
  if fewer are planned, and if no trial is listed as *not carried out*, for example because its run ended before the fault.

Rules that need ten minutes or more have no trials: `LossPlateau`, `HostMemoryGrows`, `CheckpointOverdue` and `RunStuckQueued`.

`cargo xtask lab simulated` writes the sections about simulated runs. Its definitions are the same. Simulated trials are never added to real ones.

Thresholds are tuned with seeds below 1000. This page contains only seeds from 1000 on. No threshold may be changed because of these results.
";
/// Seeds below this are for setting thresholds.
pub(super) const SCORING_SEEDS_FROM: u64 = 1000;
const HEALTHY_MINUTES_DEFAULT: u32 = 120;
const MATRIX: Matrix = Matrix {
    step: "lab-diagnosis",
    binary: "faults",
    test: "diagnosis::all",
    begin: "=== table of diagnoses ===",
    limit: Duration::from_secs(12 * 60 * 60),
};

/// Which trials to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these kinds of faults; the table is then only printed, and docs/lab.md stays unchanged.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    only: Vec<String>,
    /// Trials of each kind.
    #[arg(long = "trials", value_name = "N", default_value_t = 5)]
    count: u32,
    /// The seed of the trials; below 1000 for setting thresholds, from 1000 on for scoring.
    #[arg(long, default_value_t = 1001)]
    seed: u64,
    /// Number of trials at the same time. Trials with a busy neighbour run alone.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    jobs: u32,
    /// Runs another program on the same straggler faults.
    #[arg(long, value_enum)]
    beside: Option<Beside>,
    /// Starts no trial, and no healthy work, later than N minutes after the start of this command. With 0, only writes the tables of the
    /// stored trials.
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
    /// Minutes of healthy but noisy work, in which no alert above info may fire. Default: 120, or none with `--only`.
    #[arg(long, value_name = "N")]
    healthy_minutes: Option<u32>,
    #[command(flatten)]
    trials: Trials,
}

#[derive(Clone, Copy, ValueEnum)]
enum Beside {
    /// TraceML 0.5, in its own environment.
    Traceml,
}

/// Runs what is not done yet. Fails if a target is missed.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let began_ms = machine::now_ms();
    let revision = machine::revision(layout);
    let results = options.trials.file(layout, "diagnosis", &revision)?;
    let healthy = options.trials.file(layout, "diagnosis-healthy", &revision)?;
    let venv = venv::ensure(layout)?;
    let stop_file = layout.logs().join("diagnosis.stop");
    let until_ms = options
        .minutes
        .map(|minutes| began_ms + i64::from(minutes) * 60_000);
    let (mut well, mut is_over) = (true, false);
    if options.count > 0 {
        say(
            MATRIX.step,
            &format!("each trial is stored in {} when it ends", results.display()),
        );
        let mut settings = options.settings(layout, &venv)?;
        settings.extend([
            ("LOCKSTEP_DIAGNOSIS_RESULTS", results.display().to_string()),
            ("LOCKSTEP_DIAGNOSIS_STOP_FILE", stop_file.display().to_string()),
        ]);
        settings.extend(until_ms.map(|until_ms| ("LOCKSTEP_DIAGNOSIS_UNTIL_MS", until_ms.to_string())));
        well &= scored(layout, options, &revision, &venv, &settings, &stop_file)?;
        is_over = stop_file.exists();
    }
    is_over |= until_ms.is_some_and(|until_ms| machine::now_ms() >= until_ms);
    if options.healthy_minutes() > 0 && !is_over {
        well &= is_quiet(layout, options, &revision, &healthy, &venv)?;
    }
    Ok(exit_code(well))
}

impl Options {
    fn healthy_minutes(&self) -> u32 {
        let default = if self.only.is_empty() {
            HEALTHY_MINUTES_DEFAULT
        } else {
            0
        };
        self.healthy_minutes.unwrap_or(default)
    }

    /// Returns the settings of the test that do not depend on the revision or the time.
    fn settings(&self, layout: &Layout, venv: &Path) -> Result<Vec<(&'static str, String)>> {
        let traceml = match self.beside {
            Some(Beside::Traceml) => traceml(layout, venv)?.display().to_string(),
            None => String::new(),
        };
        Ok(vec![
            ("LOCKSTEP_DIAGNOSIS_ONLY", self.only.join(",")),
            ("LOCKSTEP_DIAGNOSIS_TRIALS", self.count.to_string()),
            ("LOCKSTEP_DIAGNOSIS_SEED", self.seed.to_string()),
            ("LOCKSTEP_DIAGNOSIS_JOBS", self.jobs.to_string()),
            ("LOCKSTEP_DIAGNOSIS_OWNER", std::process::id().to_string()),
            ("LOCKSTEP_DIAGNOSIS_TRACEML", traceml),
        ])
    }

    fn command(&self) -> String {
        let beside = self.beside.map_or("", |Beside::Traceml| " --beside traceml");
        format!(
            "cargo xtask lab diagnosis --trials {} --seed {} --jobs {}{beside}",
            self.count, self.seed, self.jobs
        )
    }
}

fn scored(
    layout: &Layout,
    options: &Options,
    revision: &str,
    venv: &Path,
    settings: &[(&str, String)],
    stop_file: &Path,
) -> Result<bool> {
    let (table, well) = MATRIX.run_stoppable(layout, venv, settings, stop_file)?;
    result(&table);
    if !options.only.is_empty() || options.seed < SCORING_SEEDS_FROM {
        say(
            MATRIX.step,
            "only all kinds with a seed for scoring are kept in docs/lab.md",
        );
        return Ok(well);
    }
    let text = format!("{}\n\n{table}", machine::origin(&options.command(), revision));
    keep(layout, "Faults", well, &text)?;
    Ok(well)
}

/// The same healthy work as in the soak. It runs once per revision.
fn is_quiet(layout: &Layout, options: &Options, revision: &str, done: &Path, venv: &Path) -> Result<bool> {
    let minutes = options.healthy_minutes();
    let known = fs::read_to_string(done).ok();
    let known: Option<Value> = known.and_then(|text| serde_json::from_str(&text).ok());
    let known = known.filter(|known| known["minutes"] == minutes);
    let (table, well) = match known {
        Some(known) => (
            known["table"].as_str().unwrap_or_default().to_owned(),
            known["well"] == true,
        ),
        None => quiet::table(layout, venv, minutes)?,
    };
    let text = json!({ "minutes": minutes, "table": table, "well": well }).to_string();
    fs::write(done, text).with_context(|| format!("cannot write {}", done.display()))?;
    result(&table);
    let command = format!("cargo xtask lab diagnosis --healthy-minutes {minutes}");
    let text = format!(
        "{}\n\nTwo runs at a time, with upgrades of an agent; no alert above info \
         may fire.\n\n{table}",
        machine::origin(&command, revision),
    );
    keep(layout, "Healthy but noisy work", well, &text)?;
    Ok(well)
}

pub(super) fn keep(layout: &Layout, name: &str, well: bool, text: &str) -> Result<()> {
    let heading = format!("{name}: {}", if well { "passed" } else { "failed" });
    section::keep(&layout.root.join("docs/lab.md"), INTRODUCTION, &heading, text)
}

/// The program of TraceML. It uses the PyTorch of the tests: a second copy would need another 5 GB, and may be another release.
fn traceml(layout: &Layout, torch: &Path) -> Result<PathBuf> {
    let program = venv::tool(layout, &venv::TRACEML)?;
    let home = program
        .ancestors()
        .nth(2)
        .context("a program lies in an environment")?;
    let packages = |home: &Path| -> Result<PathBuf> {
        let entries =
            fs::read_dir(home.join("lib")).with_context(|| format!("{} has no lib", home.display()))?;
        let python = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.join("site-packages").is_dir());
        let python = python.with_context(|| format!("{} has no packages", home.display()))?;
        Ok(python.join("site-packages"))
    };
    let link = packages(home)?.join("torch-of-the-tests.pth");
    fs::write(&link, format!("{}\n", packages(torch)?.display()))
        .with_context(|| format!("cannot write {}", link.display()))?;
    Ok(program)
}
