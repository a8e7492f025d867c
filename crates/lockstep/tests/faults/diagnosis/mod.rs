//! The lab of diagnoses: real runs in which a rank hangs or is slow, and which rank the alerts name.
//!
//! ```text
//! faulty.py     the training, and every fault that a script can have
//! kind.rs       the kinds of faults
//! draw.rs       what a trial draws from its seed: strategy, ranks, culprit, moment, magnitude
//! lab.rs        all trials, resumed where they were cut off
//! trial.rs      one trial, from the start of the collector to the last alert
//! score.rs      whether the culprit alone was named, and when
//! table.rs      all trials as a table, with intervals, and which targets are met
//! peer.rs       TraceML on the same script and the same draw
//! ```
//! `LOCKSTEP_DIAGNOSIS_ONLY` (names, divided by commas), `LOCKSTEP_DIAGNOSIS_TRIALS` (per kind), `LOCKSTEP_DIAGNOSIS_SEED` and `LOCKSTEP_DIAGNOSIS_JOBS` (trials at a time) say what `all` runs.
//! `LOCKSTEP_DIAGNOSIS_RESULTS` is a file to which each trial is added when it is over; trials that are in it are not done again.
//! `LOCKSTEP_DIAGNOSIS_TRACEML` is TraceML's program, when it is to run beside. The table that `all` prints is what `cargo xtask lab diagnosis`
//! puts into docs/lab.md.
//!
//! To add a kind of fault: a line in kind.rs and, when the script does it, a branch in faulty.py.

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
        kinds: chosen(&setting("ONLY").unwrap_or_default()),
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

/// Kinds by name; all when no name is given.
fn chosen(names: &str) -> Vec<&'static Kind> {
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

/// Two trials of the lab run with every change, beside the stopped rank of `first_light`.
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
    let trial = trial::tried(kind, draw).unwrap();
    assert!(
        matches!(trial.outcome(kind), Outcome::Right { .. }),
        "{}",
        trial.in_words(kind)
    );
}
