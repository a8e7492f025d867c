//! Runs of four ranks in which one rank stops taking part. Records which rank the alerts name.
//!
//! `LOCKSTEP_HANG_RESULTS` is a file to which each trial is added when it ends; trials in this file are not repeated. The table that `all`
//! prints is what `cargo xtask lab hang` writes into docs/faults.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fleet::{Fleet, wait};
use crate::product::process::signal;
use crate::trials;

const REPEATS: u32 = 3;
const RANKS: [u32; 2] = [0, 2];
/// Four ranks import PyTorch at the same time.
const TRAINS_WITHIN: Duration = Duration::from_secs(300);
/// The rank must be named within this time.
const STOPPED_NAMED_WITHIN: Duration = Duration::from_secs(10);
const HANG_TOLD_WITHIN: Duration = Duration::from_secs(90);
/// For this long after the first alert, no other rank may be named.
const WATCHED_FOR: Duration = Duration::from_secs(12);
const STEPS_BEFORE: f64 = 20.0;
const BEGIN: &str = "=== table of hangs ===";
const END: &str = "=== end of the table ===";

/// How a rank stops taking part.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Stopped(&'static str),
    Script(&'static str),
}

const TRIALS: [How; 5] = [
    How::Stopped("ddp"),
    How::Stopped("fsdp"),
    How::Stopped("rpc-parameter-server"),
    How::Script("spinning"),
    How::Script("desynchronised"),
];

/// One trial.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Trial {
    what: String,
    rank: u32,
    repeat: u32,
    /// Seconds from the hang to the first alert about it; `None` if no alert came in time.
    seconds: Option<f64>,
    /// Ranks that any alert has named.
    named: BTreeSet<u32>,
    limit_s: u64,
    /// True if naming no rank is right too.
    unknown_is_right: bool,
}

impl Trial {
    fn is_right(&self) -> bool {
        let in_time = self.seconds.is_some_and(|seconds| seconds <= self.limit_s as f64);
        let alone = self.named == BTreeSet::from([self.rank]);
        in_time && (alone || self.unknown_is_right && self.named.is_empty())
    }
}

impl How {
    fn name(self) -> String {
        match self {
            Self::Stopped(recipe) => format!("{recipe}, stopped"),
            Self::Script(how) => format!("ddp, {how}"),
        }
    }

    fn limit(self) -> Duration {
        match self {
            Self::Stopped(_) => STOPPED_NAMED_WITHIN,
            Self::Script(_) => HANG_TOLD_WITHIN,
        }
    }

    fn spec(self, rank: u32) -> Value {
        match self {
            Self::Stopped("rpc-parameter-server") => {
                json!({ "recipe": "rpc-parameter-server", "nodes": 2, "nproc_per_node": 2, "set": { "gradients": "1000000" } })
            }
            Self::Stopped(recipe) => {
                json!({ "recipe": recipe, "nodes": 2, "nproc_per_node": 2, "set": { "steps": "1000000" } })
            }
            Self::Script(how) => {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/hang.py");
                json!({ "script": script, "args": ["--how", how, "--rank", rank.to_string()], "nodes": 2, "nproc_per_node": 2 })
            }
        }
    }
}

#[test]
#[ignore = "takes half an hour: cargo xtask lab hang"]
fn all() {
    let results = std::env::var_os("LOCKSTEP_HANG_RESULTS").map(PathBuf::from);
    let mut done: Vec<Trial> = results.as_deref().map(trials::read).unwrap_or_default();
    for how in TRIALS {
        for (rank, repeat) in RANKS
            .iter()
            .flat_map(|rank| (1..=REPEATS).map(move |repeat| (*rank, repeat)))
        {
            let is_this =
                |trial: &Trial| (trial.what == how.name()) && (trial.rank, trial.repeat) == (rank, repeat);
            if done.iter().any(is_this) {
                continue;
            }
            let trial = run_trial(how, rank, repeat)
                .unwrap_or_else(|error| panic!("{}, rank {rank}: {error:#}", how.name()));
            println!("{trial:?}: {}", if trial.is_right() { "right" } else { "WRONG" });
            results.iter().for_each(|file| trials::add(file, &trial));
            done.push(trial);
        }
    }
    println!("{BEGIN}\n{}{END}", table(&done));
    assert!(done.iter().all(Trial::is_right), "see the table above");
}

fn run_trial(how: How, rank: u32, repeat: u32) -> Result<Trial> {
    let fleet = Fleet::start(false)?;
    let submitted = fleet.api.post("/api/runs", &how.spec(rank));
    let run = submitted["id"]
        .as_str()
        .with_context(|| format!("not submitted: {submitted}"))?;
    wait("the ranks to train", TRAINS_WITHIN, || {
        steps(&fleet, run) >= STEPS_BEFORE
    })?;
    match how {
        How::Stopped(_) => {
            let pid = fleet.api.pid_of(run, rank).context("the rank has no process")?;
            signal(pid, "STOP");
        }
        How::Script(_) => {
            wait("the rank to hang", TRAINS_WITHIN, || has_left(&fleet, run, rank))?;
        }
    }
    let (hung, mut named, mut seconds) = (Instant::now(), BTreeSet::new(), None);
    let deadline = how.limit() + WATCHED_FOR;
    while hung.elapsed() < deadline {
        let about = alerts(&fleet, run);
        if !about.is_empty() {
            seconds.get_or_insert(hung.elapsed().as_secs_f64());
        }
        named.extend(
            about
                .iter()
                .filter_map(|labels| labels["rank"].as_str()?.parse::<u32>().ok()),
        );
        if seconds.is_some_and(|at| hung.elapsed().as_secs_f64() > at + WATCHED_FOR.as_secs_f64()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(Trial {
        what: how.name(),
        rank,
        repeat,
        seconds: seconds.map(|seconds| (seconds * 10.0).round() / 10.0),
        named,
        limit_s: how.limit().as_secs(),
        unknown_is_right: matches!(how, How::Script(_)),
    })
}

/// Returns the labels of alerts that fire about the run, without symptoms and without severity info: those that wake a person.
fn alerts(fleet: &Fleet, run: &str) -> Vec<Value> {
    let all = fleet.api.get("/api/diagnoses");
    let all = all.as_array().cloned().unwrap_or_default();
    let mut about: Vec<Value> = all
        .into_iter()
        .filter(|alert| alert["labels"]["run"] == run && alert["severity"] != "info")
        .collect();
    about.iter_mut().map(|alert| alert["labels"].take()).collect()
}

fn steps(fleet: &Fleet, run: &str) -> f64 {
    let found = fleet.api.query(&format!("max(train_step{{run={run:?}}})"));
    let value = found
        .first()
        .and_then(|series| series["value"][1].as_str()?.parse().ok());
    value.unwrap_or_default()
}

fn has_left(fleet: &Fleet, run: &str, rank: u32) -> bool {
    let log = fleet
        .api
        .get(&format!("/api/runs/{run}/logs?rank={rank}&stream=stdout"));
    log["text"]
        .as_str()
        .is_some_and(|text| text.contains("does not take part"))
}

fn table(trials: &[Trial]) -> String {
    let mut text = String::from(
        "| what | rank | trials | named alone | unknown | another named | none in time | s to the alert |\n|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for how in TRIALS {
        for rank in RANKS {
            let of: Vec<&Trial> = trials
                .iter()
                .filter(|trial| trial.what == how.name() && trial.rank == rank)
                .collect();
            let count = |is: &dyn Fn(&Trial) -> bool| of.iter().filter(|trial| is(trial)).count();
            let seconds: Vec<String> = of
                .iter()
                .filter_map(|trial| Some(format!("{:.1}", trial.seconds?)))
                .collect();
            let alone = count(&|trial| trial.named == BTreeSet::from([rank]));
            let unknown = count(&|trial| trial.named.is_empty() && trial.seconds.is_some());
            let others = count(&|trial| trial.named.iter().any(|named| *named != rank));
            let late = count(&|trial| trial.seconds.is_none_or(|seconds| seconds > trial.limit_s as f64));
            let _infallible = writeln!(
                text,
                "| {} | {rank} | {} | {alone} | {unknown} | {others} | {late} | {} |",
                how.name(),
                of.len(),
                seconds.join(", ")
            );
        }
    }
    text
}

#[test]
fn a_trial_is_right_when_the_rank_alone_is_named_in_time() {
    let trial = |named: &[u32], seconds: Option<f64>, unknown_is_right: bool| Trial {
        what: String::new(),
        rank: 2,
        repeat: 1,
        seconds,
        named: named.iter().copied().collect(),
        limit_s: 10,
        unknown_is_right,
    };
    assert!(trial(&[2], Some(4.0), false).is_right());
    assert!(trial(&[], Some(4.0), true).is_right());
    for wrong in [
        trial(&[2], Some(11.0), false),
        trial(&[2], None, false),
        trial(&[0, 2], Some(4.0), false),
        trial(&[0], Some(4.0), true),
        trial(&[], Some(4.0), false),
    ] {
        assert!(!wrong.is_right(), "{wrong:?}");
    }
}
