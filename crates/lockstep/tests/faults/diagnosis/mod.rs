//! The lab of diagnoses: real runs in which something goes wrong. It records which rank, node or run the alerts name.
//!
//! ```text
//! faulty.py     the training
//! faults/       all faults that its script can have, by group; each file describes its faults
//! kind.rs       what a kind of fault is
//! kinds.rs      the kinds of faults
//! draw.rs       what a trial draws from its seed: strategy, ranks, culprit, time, magnitude
//! lab.rs        all trials; continues after an interruption
//! stop.rs       the end of the lab before all trials are done
//! trial.rs      one trial, from the start of the collector to the last alert
//! watch.rs      the alerts of one run
//! outside.rs    faults that the test causes: signals, a full disk, a node that is gone
//! score.rs      whether only the culprit was named, and when
//! table.rs      all trials as tables, with intervals, and which targets are met
//! peer.rs       TraceML with the same script and the same draw
//! simulated/    trials on a simulated cluster
//! ```
//! `LOCKSTEP_DIAGNOSIS_ONLY` (names, separated by commas), `LOCKSTEP_DIAGNOSIS_TRIALS` (per kind), `LOCKSTEP_DIAGNOSIS_SEED` and
//! `LOCKSTEP_DIAGNOSIS_JOBS` (trials at the same time) control what `all` runs. `LOCKSTEP_DIAGNOSIS_RESULTS` is a file to which each trial
//! is added when it ends; trials in this file are not repeated. `LOCKSTEP_DIAGNOSIS_TRACEML` is TraceML's program, if it should run too.
//!
//! The lab ends early, with the tables of the trials that are done, when the file `LOCKSTEP_DIAGNOSIS_STOP_FILE` exists or the process
//! `LOCKSTEP_DIAGNOSIS_OWNER` is gone. From `LOCKSTEP_DIAGNOSIS_UNTIL_MS` on (Unix time), no trial starts.
//!
//! The tables that `all` prints are what `cargo xtask lab diagnosis` writes into docs/lab.md.
//!
//! To add a kind of fault: add an entry to kinds.rs and, if the script causes it, a function to the package `faults`.

#![allow(clippy::print_stdout, reason = "the table is the result")]

mod draw;
mod kind;
mod kinds;
mod lab;
mod outside;
mod peer;
mod score;
mod simulated;
mod stop;
mod table;
mod trial;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use draw::Draw;
use kind::Kind;
use kinds::KINDS;
use lab::Lab;
use peer::TraceMl;
use score::Outcome;

const TRIALS_DEFAULT: u32 = 5;
/// Seeds below 1,000 are for setting thresholds.
const SEED_DEFAULT: u64 = 1001;
/// How long a trial of every change goes on after the culprit was named: several rounds of the rules. The trials of the lab go on for longer.
const WATCHED_BRIEFLY: Duration = Duration::from_secs(5);
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
    // Without a table, the page keeps its earlier one.
    assert!(!done.trials.is_empty(), "no trial is done");
    let rows = table::rows(&lab.kinds, &done.trials);
    let text = table::text(&rows, done.is_enough());
    println!("{BEGIN}\n{}\n\n{text}{END}", done.in_words());
    assert!(
        done.is_enough(),
        "{} The same command does the missing ones.",
        done.in_words()
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

/// Three trials of the lab that run with every change, in addition to the stopped rank of `first_light`.
///
/// `lost-scale` is not among them: a test of torch-probe counts the skipped steps of a real gradient scaler (`test_torchrun.py`), a text
/// case of `LossScaleLost` fires and stays silent (`learning.test.yaml`), and `cargo xtask lab diagnosis` does real trials.
#[test]
fn a_rank_that_skips_a_collective_is_named_alone() {
    let name = "skipped-collective";
    let draw = Draw {
        at_step: 60,
        step_s: 0.1,
        ..Draw::new(kinds::named(name), 1, 2)
    };
    is_named(name, &draw);
}

#[test]
fn a_rank_that_is_slow_under_fsdp2_is_named_alone() {
    let name = "fsdp2-slow-forward";
    let draw = Draw {
        at_step: 100,
        // On two cores, four ranks wait for a processor for about half as long as a step. Less would be within that.
        magnitude: 0.8,
        nodes: 2,
        ranks_per_node: 2,
        culprits: vec![2],
        ..Draw::new(kinds::named(name), 1, 1)
    };
    is_named(name, &draw);
}

#[test]
fn a_rank_whose_loss_is_nan_first_is_named_alone() {
    let name = "nan-labels";
    let draw = Draw {
        at_step: 40,
        step_s: 0.1,
        nodes: 2,
        ranks_per_node: 2,
        culprits: vec![2],
        ..Draw::new(kinds::named(name), 1, 1)
    };
    is_named(name, &draw);
}

fn is_named(name: &str, draw: &Draw) {
    let kind = kinds::named(name);
    let trial = trial::run_trial(kind, draw, WATCHED_BRIEFLY).unwrap();
    assert!(
        matches!(trial.outcome(kind), Outcome::Right { .. }),
        "{}",
        trial.in_words(kind)
    );
}
