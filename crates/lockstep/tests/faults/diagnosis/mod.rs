//! The lab of diagnoses: real runs in which a rank hangs or is slow, and which rank the alerts name.
//!
//! ```text
//! faulty.py     the training, and every fault that a script can have
//! kind.rs       the kinds of faults
//! draw.rs       what a trial draws from its seed: strategy, ranks, culprit, moment, magnitude
//! trial.rs      one trial, from the start of the collector to the last alert
//! score.rs      whether the culprit alone was named, and when
//! table.rs      all trials as a table, with intervals, and which targets are met
//! peer.rs       TraceML on the same script and the same draw
//! ```
//! `LOCKSTEP_DIAGNOSIS_ONLY` (names, divided by commas), `LOCKSTEP_DIAGNOSIS_TRIALS` (per kind) and `LOCKSTEP_DIAGNOSIS_SEED` say what `all` runs.
//! `LOCKSTEP_DIAGNOSIS_RESULTS` is a file to which each trial is added when it is over; trials that are in it are not done again.
//! `LOCKSTEP_DIAGNOSIS_TRACEML` is TraceML's program, when it is to run beside. The table that `all` prints is what `cargo xtask lab diagnosis`
//! puts into docs/lab.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

mod draw;
mod kind;
mod peer;
mod score;
mod table;
mod trial;

use std::path::{Path, PathBuf};

use draw::Draw;
use kind::{Family, KINDS, Kind};
use peer::TraceMl;
use score::Outcome;
use trial::Trial;

use crate::trials;

const TRIALS_DEFAULT: u32 = 5;
/// Seeds below 1,000 are for setting thresholds.
const SEED_DEFAULT: u64 = 1001;
const BEGIN: &str = "=== table of diagnoses ===";
const END: &str = "=== end of the table ===";

#[test]
#[ignore = "takes hours: cargo xtask lab diagnosis"]
fn all() {
    let only = setting("ONLY").unwrap_or_default();
    let kinds = chosen(&only);
    let count = setting("TRIALS").map_or(TRIALS_DEFAULT, |text| text.parse().unwrap());
    let seed = setting("SEED").map_or(SEED_DEFAULT, |text| text.parse().unwrap());
    let results = setting("RESULTS").map(PathBuf::from);
    let traceml = setting("TRACEML").map(|program| TraceMl::new(Path::new(&program)));
    let mut done: Vec<Trial> = newest(results.as_deref().map(trials::read).unwrap_or_default());
    let mut failed = 0;
    // All kinds once, then all again: what is there when it is cut off holds all kinds.
    for (number, kind) in (1..=count).flat_map(|number| kinds.iter().map(move |kind| (number, *kind))) {
        let known = done.iter().position(|trial| trial.is(kind, seed, number));
        let needs_peer = traceml.is_some() && kind.family == Family::Straggler;
        if known.is_some_and(|at| !needs_peer || done[at].traceml.is_some()) {
            continue;
        }
        println!(
            "{} #{number} of {count} begins: {}",
            kind.name,
            Draw::new(kind, seed, number)
        );
        match carried_out(
            kind,
            seed,
            number,
            known.map(|at| done[at].clone()),
            traceml.as_ref().filter(|_| needs_peer),
        ) {
            Ok(trial) => {
                println!("{}", in_words(&trial, kind));
                results.iter().for_each(|file| trials::add(file, &trial));
                known.map(|at| done.swap_remove(at));
                done.push(trial);
            }
            Err(error) => {
                println!("{} #{number}: not carried out: {error:#}", kind.name);
                failed += 1;
            }
        }
    }
    done.retain(|trial| trial.seed == seed && trial.number <= count);
    let rows = table::rows(&kinds, &done);
    println!("{BEGIN}\n{}{END}", table::text(&rows));
    assert_eq!(
        failed, 0,
        "trials could not be carried out; run the same command again"
    );
    assert!(table::unmet(&rows).is_empty(), "see the table above");
}

/// A trial beside which TraceML ran later is in the file twice: the last one counts.
fn newest(trials: Vec<Trial>) -> Vec<Trial> {
    let mut newest: Vec<Trial> = Vec::new();
    for trial in trials {
        newest.retain(|known| {
            (&known.kind, known.seed, known.number) != (&trial.kind, trial.seed, trial.number)
        });
        newest.push(trial);
    }
    newest
}

/// Does what is still missing of a trial.
fn carried_out(
    kind: &'static Kind,
    seed: u64,
    number: u32,
    known: Option<Trial>,
    traceml: Option<&TraceMl>,
) -> anyhow::Result<Trial> {
    let draw = Draw::new(kind, seed, number);
    let mut trial = match known {
        Some(trial) => trial,
        None => Trial {
            seed,
            number,
            ..trial::tried(kind, &draw)?
        },
    };
    if let Some(traceml) = traceml {
        trial.traceml = Some(traceml.tried(kind, &draw)?);
    }
    Ok(trial)
}

fn in_words(trial: &Trial, kind: &Kind) -> String {
    let alerts: Vec<String> = trial.alerts.iter().map(ToString::to_string).collect();
    let traceml = trial
        .traceml
        .as_ref()
        .map_or_else(String::new, |peer| format!("; TraceML: {peer}"));
    format!(
        "{} #{}, {}: {:?}; alerts: {}{traceml}",
        trial.kind,
        trial.number,
        trial.draw,
        trial.outcome(kind.family),
        if alerts.is_empty() {
            "none".to_owned()
        } else {
            alerts.join(", ")
        },
    )
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

/// A trial of the lab with every change: the rules of today name a stopped rank.
#[test]
fn a_stopped_rank_is_named_alone() {
    is_named(
        "stopped",
        &Draw {
            at_step: 60,
            ..Draw::new(kind::named("stopped"), 1, 1)
        },
    );
}

/// A rank that takes half as long again as a step, in its forward pass: so slow that the rules of today name it.
#[test]
fn a_rank_with_a_slow_forward_pass_is_named_alone() {
    let draw = Draw {
        at_step: 100,
        extra: 1.5,
        nodes: 2,
        ranks_per_node: 2,
        culprits: vec![1],
        ..Draw::new(kind::named("slow-forward"), 1, 1)
    };
    is_named("slow-forward", &draw);
}

fn is_named(name: &str, draw: &Draw) {
    let kind = kind::named(name);
    let trial = trial::tried(kind, draw).unwrap();
    assert!(
        matches!(trial.outcome(kind.family), Outcome::Right { .. }),
        "{}",
        in_words(&trial, kind)
    );
}
