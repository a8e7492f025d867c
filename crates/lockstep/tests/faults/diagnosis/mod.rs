//! The lab of diagnoses: real runs in which a rank hangs or is slow. It records which rank the alerts name.
//!
//! ```text
//! faulty.py     the training, and every fault that a script can have
//! kind.rs       the kinds of faults
//! draw.rs       what a trial draws from its seed: strategy, ranks, culprit, time, magnitude
//! lab.rs        all trials; continues after an interruption
//! trial.rs      one trial, from the start of the collector to the last alert
//! score.rs      whether only the culprit was named, and when
//! table.rs      all trials as a table, with intervals, and which targets are met
//! peer.rs       TraceML with the same script and the same draw
//! ```
//! `LOCKSTEP_DIAGNOSIS_ONLY` (names, separated by commas), `LOCKSTEP_DIAGNOSIS_TRIALS` (per kind), `LOCKSTEP_DIAGNOSIS_SEED` and
//! `LOCKSTEP_DIAGNOSIS_JOBS` (trials at the same time) control what `all` runs. `LOCKSTEP_DIAGNOSIS_RESULTS` is a file to which each trial
//! is added when it ends; trials in this file are not repeated. `LOCKSTEP_DIAGNOSIS_TRACEML` is TraceML's program, if it should run too.
//! The table that `all` prints is what `cargo xtask lab diagnosis` writes into docs/lab.md.
//!
//! To add a kind of fault: add a line to kind.rs and, if the script causes it, a branch to faulty.py.

#![allow(clippy::print_stdout, reason = "the table is the result")]

mod draw;
mod kind;
mod lab;
mod peer;
mod score;
mod table;
mod trial;

use std::path::{Path, PathBuf};

use draw::Draw;
use kind::{KINDS, Kind};
use lab::Lab;
use peer::TraceMl;
use score::Outcome;

const TRIALS_DEFAULT: u32 = 5;
/// Seeds below 1,000 are for setting thresholds.
const SEED_DEFAULT: u64 = 1001;
const BEGIN: &str = "=== table of diagnoses ===";
const END: &str = "=== end of the table ===";

#[test]
#[ignore = "takes hours: cargo xtask lab diagnosis"]
fn all() {
    let lab = Lab {
        kinds: selected_kinds(&setting("ONLY").unwrap_or_default()),
        count: setting("TRIALS").map_or(TRIALS_DEFAULT, |text| text.parse().unwrap()),
        seed: setting("SEED").map_or(SEED_DEFAULT, |text| text.parse().unwrap()),
        jobs: setting("JOBS").map_or(1, |text| text.parse().unwrap()),
        results: setting("RESULTS").map(PathBuf::from),
        traceml: setting("TRACEML").map(|program| TraceMl::new(Path::new(&program))),
    };
    let done = lab.run();
    let rows = table::rows(&lab.kinds, &done.trials);
    println!("{BEGIN}\n{}{END}", table::text(&rows));
    assert_eq!(
        done.failed, 0,
        "trials could not be carried out; the same command does them again"
    );
    assert!(table::unmet(&rows).is_empty(), "see the table above");
}

/// Returns the kinds with these names; all kinds if no name is given.
fn selected_kinds(names: &str) -> Vec<&'static Kind> {
    let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    for name in &names {
        assert!(
            KINDS.iter().any(|kind| kind.name == *name),
            "there is no kind `{name}`"
        );
    }
    KINDS
        .iter()
        .filter(|kind| names.is_empty() || names.contains(&kind.name))
        .collect()
}

fn setting(name: &str) -> Option<String> {
    std::env::var(format!("LOCKSTEP_DIAGNOSIS_{name}"))
        .ok()
        .filter(|text| !text.is_empty())
}

/// Two trials of the lab that run with every change, in addition to the stopped rank of `first_light`.
#[test]
fn a_rank_that_skips_a_collective_is_named_alone() {
    let draw = Draw {
        at_step: 60,
        ..Draw::new(kind::named("skipped-collective"), 1, 2)
    };
    is_named("skipped-collective", &draw);
}

#[test]
fn a_rank_that_is_slow_under_fsdp2_is_named_alone() {
    let draw = Draw {
        at_step: 100,
        extra: 0.4,
        nodes: 2,
        ranks_per_node: 2,
        culprits: vec![2],
        ..Draw::new(kind::named("fsdp2-slow-forward"), 1, 1)
    };
    is_named("fsdp2-slow-forward", &draw);
}

fn is_named(name: &str, draw: &Draw) {
    let kind = kind::named(name);
    let trial = trial::run_trial(kind, draw).unwrap();
    assert!(
        matches!(trial.outcome(kind), Outcome::Right { .. }),
        "{}",
        trial.in_words(kind)
    );
}
