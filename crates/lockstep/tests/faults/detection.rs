//! How fast a fault is found, by this program and by an earlier one.
//!
//! Both watch the same training at the same time on this machine, each with its own collector and two agents. `LOCKSTEP_TEST_OLD_BINARY` is
//! the earlier program. `LOCKSTEP_DETECTION_RESULTS` is a file to which each trial is added when it ends; trials in this file are not
//! repeated. The table that `all` prints is what `cargo xtask lab detection` writes into docs/faults.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::disk::SmallDisk;
use crate::fleet::{Fleet, wait};
use crate::product::environment::program;
use crate::trials;

const REPEATS: u32 = 3;
/// The rank that is slow, or whose loss is NaN.
const RANK: u32 = 2;
/// Eight ranks import PyTorch at the same time.
const TRAINS_WITHIN: Duration = Duration::from_secs(300);
/// A fault that is not found within this time counts as not found.
const FOUND_WITHIN: Duration = Duration::from_secs(240);
/// Samples arrive and rules are evaluated once per second, in no fixed order.
const EQUAL_WITHIN_S: f64 = 1.5;
const BEGIN: &str = "=== table of detection ===";
const END: &str = "=== end of the table ===";

/// A fault that degrades the training.
struct Fault {
    /// Name of the fault in `degrade.py`.
    name: &'static str,
    /// Rules that find the fault.
    rules: &'static [&'static str],
    /// The step at which the fault starts. A step takes about 70 ms.
    at_step: u32,
    /// True if one rank is the culprit and must be named.
    of_one_rank: bool,
}

const SLOW_RANK: &[&str] = &["StragglerRank", "LateToCollectives"];
const FAULTS: [Fault; 7] = [
    fault("slow-forward", SLOW_RANK, 400, true),
    fault("large-batch", SLOW_RANK, 400, true),
    fault("slow-data", &["DataLoadingSlow"], 400, false),
    fault("full-disk", &["CheckpointSaveFailed"], 400, false),
    fault(
        "learning-rate",
        &["GradientExplosion", "LossNotFinite"],
        400,
        false,
    ),
    fault("nan", &["LossNotFinite"], 400, false),
    fault("slow-step", &["ThroughputDropped"], 1200, false),
];

const fn fault(name: &'static str, rules: &'static [&'static str], at_step: u32, of_one_rank: bool) -> Fault {
    Fault {
        name,
        rules,
        at_step,
        of_one_rank,
    }
}

/// One trial: seconds from the fault to the alert, by the clocks of the script and of the collector.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Trial {
    fault: String,
    repeat: u32,
    before: Found,
    now: Found,
}

/// What one program found.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Found {
    seconds: Option<f64>,
    /// True if an alert of these rules named another rank, or if any rule above severity info fired before the fault.
    wrong: bool,
}

#[test]
#[ignore = "takes an hour: cargo xtask lab detection"]
fn all() {
    let old: PathBuf = std::env::var_os("LOCKSTEP_TEST_OLD_BINARY")
        .expect("`cargo xtask lab detection` names the earlier program")
        .into();
    let results = std::env::var_os("LOCKSTEP_DETECTION_RESULTS").map(PathBuf::from);
    let mut done: Vec<Trial> = results.as_deref().map(trials::read).unwrap_or_default();
    for (fault, repeat) in FAULTS
        .iter()
        .flat_map(|fault| (1..=REPEATS).map(move |repeat| (fault, repeat)))
    {
        if done
            .iter()
            .any(|trial| (trial.fault.as_str(), trial.repeat) == (fault.name, repeat))
        {
            continue;
        }
        let trial =
            run_trial(fault, repeat, &old).unwrap_or_else(|error| panic!("{}: {error:#}", fault.name));
        println!("{trial:?}");
        results.iter().for_each(|file| trials::add(file, &trial));
        done.push(trial);
    }
    println!("{BEGIN}\n{}{END}", table(&done));
    assert!(
        FAULTS.iter().all(|fault| is_as_soon(&of(&done, fault))),
        "see the table above"
    );
}

fn run_trial(fault: &Fault, repeat: u32, old: &Path) -> Result<Trial> {
    let (before, now) = std::thread::scope(|scope| {
        let before = scope.spawn(|| found(fault, old.to_owned()));
        let now = found(fault, program());
        let before = before
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (before, now)
    });
    Ok(Trial {
        fault: fault.name.to_owned(),
        repeat,
        before: before.context("the earlier program")?,
        now: now.context("this program")?,
    })
}

fn found(fault: &Fault, program: PathBuf) -> Result<Found> {
    let fleet = Fleet::start_program(program, false)?;
    let checkpoints = fleet.folder().join("checkpoints");
    std::fs::create_dir_all(&checkpoints)?;
    let disk = SmallDisk::mount(&fleet.folder().join("full"))?;
    disk.fill()?;
    let submitted = fleet.api.post("/api/runs", &spec(fault, &fleet, &checkpoints));
    let run = submitted["id"]
        .as_str()
        .with_context(|| format!("not submitted: {submitted}"))?;
    let mut degraded_ms = None;
    wait("the training to degrade", TRAINS_WITHIN, || {
        degraded_ms = said_ms(&fleet, run);
        degraded_ms.is_some()
    })?;
    let degraded_ms = degraded_ms.context("the script says when")?;
    let (since, mut found) = (
        Instant::now(),
        Found {
            seconds: None,
            wrong: false,
        },
    );
    while since.elapsed() < FOUND_WITHIN && found.seconds.is_none() {
        for alert in alerts(&fleet, run) {
            let after_s = (alert["fired_ms"].as_f64().context("when it fired")? - degraded_ms) / 1_000.0;
            let finds = alert["rule"]
                .as_str()
                .is_some_and(|rule| fault.rules.contains(&rule));
            let rank = alert["labels"]["rank"]
                .as_str()
                .and_then(|rank| rank.parse().ok());
            if after_s < 0.0 || finds && fault.of_one_rank && rank != Some(RANK) {
                found.wrong = true;
            } else if finds {
                found.seconds = Some((after_s * 10.0).round() / 10.0);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(found)
}

fn spec(fault: &Fault, fleet: &Fleet, checkpoints: &Path) -> Value {
    let (rank, at_step) = (RANK.to_string(), fault.at_step.to_string());
    let (checkpoints, full) = (checkpoints.to_string_lossy(), fleet.folder().join("full"));
    let arguments = [
        ["--how", fault.name],
        ["--rank", &rank],
        ["--at-step", &at_step],
        ["--checkpoints", &checkpoints],
        ["--full-disk", &full.to_string_lossy()],
    ];
    json!({
        "script": concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/degrade.py"),
        "args": arguments.concat(),
        "nodes": 2,
        "nproc_per_node": 2,
    })
}

/// Returns the time at which the script reports the fault.
fn said_ms(fleet: &Fleet, run: &str) -> Option<f64> {
    let log = fleet
        .api
        .get(&format!("/api/runs/{run}/logs?rank=0&stream=stdout"));
    let (_, after) = log["text"].as_str()?.split_once("degraded at ")?;
    let seconds: f64 = after.split_whitespace().next()?.parse().ok()?;
    Some(seconds * 1_000.0)
}

/// Returns the alerts about the run, without those of severity info.
fn alerts(fleet: &Fleet, run: &str) -> Vec<Value> {
    let all = fleet.api.get("/api/diagnoses");
    let all = all.as_array().cloned().unwrap_or_default();
    let about = |alert: &Value| alert["labels"]["run"] == run && alert["severity"] != "info";
    all.into_iter().filter(about).collect()
}

fn of<'a>(trials: &'a [Trial], fault: &Fault) -> Vec<&'a Trial> {
    trials.iter().filter(|trial| trial.fault == fault.name).collect()
}

/// Returns true if this program found the fault no later in each trial, and named nothing wrong.
fn is_as_soon(trials: &[&Trial]) -> bool {
    trials.iter().all(|trial| {
        let as_soon = match (trial.before.seconds, trial.now.seconds) {
            (Some(before), Some(now)) => now <= before + EQUAL_WITHIN_S,
            (None, _) => true,
            (Some(_), None) => false,
        };
        as_soon && !trial.now.wrong
    })
}

fn table(trials: &[Trial]) -> String {
    let mut text =
        String::from("| fault | before, s | now, s | wrong before | wrong now |\n|---|---|---|---:|---:|\n");
    for fault in &FAULTS {
        let of = of(trials, fault);
        let seconds = |which: fn(&Trial) -> &Found| {
            let each = of.iter().map(|trial| match which(trial).seconds {
                Some(seconds) => format!("{seconds:.1}"),
                None => "not found".to_owned(),
            });
            each.collect::<Vec<_>>().join(", ")
        };
        let wrong = |which: fn(&Trial) -> &Found| of.iter().filter(|trial| which(trial).wrong).count();
        let _infallible = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            fault.name,
            seconds(|trial| &trial.before),
            seconds(|trial| &trial.now),
            wrong(|trial| &trial.before),
            wrong(|trial| &trial.now),
        );
    }
    text
}

#[test]
fn what_is_found_later_or_wrongly_is_told() {
    let trial = |before: Option<f64>, now: Option<f64>, wrong: bool| Trial {
        fault: String::new(),
        repeat: 1,
        before: Found {
            seconds: before,
            wrong: true,
        },
        now: Found { seconds: now, wrong },
    };
    assert!(is_as_soon(&[&trial(Some(20.0), Some(21.0), false)]));
    assert!(is_as_soon(&[&trial(None, None, false)]));
    for late in [
        trial(Some(20.0), Some(22.0), false),
        trial(Some(20.0), None, false),
        trial(Some(20.0), Some(10.0), true),
    ] {
        assert!(!is_as_soon(&[&late]), "{late:?}");
    }
}
