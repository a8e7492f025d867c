//! Simulated trials: an ordinary collector process, fed by the simulated cluster of `lockstep demo` over the agents' protocol, with many runs at
//! the same time. What is scored, and how, is the same as for real trials (`score.rs`, `table.rs`).
//!
//! ```text
//! kinds.rs     the kinds of faults, and which scenario of the simulated cluster plays each
//! session.rs   one collector with its simulated nodes
//! batch.rs     several trials at the same time
//! lab.rs       all trials; continues after an interruption
//! healthy.rs   run-hours without faults, in which no alert may be sent
//! poisson.rs   the interval of a number of false alarms
//! ```
//! `LOCKSTEP_SIMULATED_ONLY`, `_TRIALS` (per kind), `_LARGE` (trials with 1,024 ranks), `_SEED`, `_RUNS` (at the same time), `_NODES` (of a
//! batch), `_HOURS` and `_RESULTS` (a file to which each trial is added when it ends) control what runs. No PyTorch is needed.

mod batch;
mod healthy;
mod kinds;
mod lab;
mod poisson;
mod session;

use std::path::PathBuf;

use super::WATCHED_BRIEFLY;
use super::draw::Draw;
use super::score::Outcome;
use super::table;
use super::trial::Trial;
use batch::Planned;
use healthy::Healthy;
use kinds::Group;
use lab::Lab;

/// Seeds below 1,000 are for setting thresholds.
const SEED_DEFAULT: u64 = 1001;
const RUNS_DEFAULT: u32 = 20;
const NODES_DEFAULT: u32 = 64;
const BEGIN: &str = "=== table of simulated diagnoses ===";
const END: &str = "=== end of the table ===";

#[test]
#[ignore = "takes an hour: cargo xtask lab simulated"]
fn trials() {
    table_of(Group::Simulated);
}

#[test]
#[ignore = "takes several minutes: cargo xtask lab simulated"]
fn replay() {
    table_of(Group::Replayed);
}

fn table_of(group: Group) {
    let lab = Lab {
        group,
        only: setting("ONLY")
            .unwrap_or_default()
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
        count: number("TRIALS", 1),
        large: number("LARGE", 0),
        seed: number("SEED", SEED_DEFAULT),
        runs: number("RUNS", RUNS_DEFAULT) as usize,
        nodes: number("NODES", NODES_DEFAULT),
        results: setting("RESULTS").map(PathBuf::from),
    };
    let done = lab.run().unwrap();
    let kinds = lab.kinds();
    let rows = table::rows(&kinds, &done.trials);
    println!(
        "{BEGIN}\n{}{}{END}",
        table::text(&rows, true),
        lab::of_large(&kinds, &done.trials)
    );
    assert!(
        done.failed.is_empty(),
        "not carried out, the same command does them again: {:?}",
        done.failed
    );
    assert!(table::unmet(&rows).is_empty(), "see the table above");
}

#[test]
#[ignore = "takes an hour: cargo xtask lab simulated"]
fn hours() {
    let healthy = Healthy {
        seed: number("SEED", SEED_DEFAULT),
        hours: number("HOURS", 1.0),
        runs: number("RUNS", 50),
        results: setting("RESULTS").map(PathBuf::from),
    };
    let runs = healthy.run().unwrap();
    println!("{BEGIN}\n{}{END}", healthy::table(&runs));
    assert_eq!(healthy::false_alarms(&runs), 0, "see the table above");
}

fn setting(name: &str) -> Option<String> {
    std::env::var(format!("LOCKSTEP_SIMULATED_{name}"))
        .ok()
        .filter(|text| !text.is_empty())
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T
where
    T::Err: std::fmt::Debug,
{
    setting(name).map_or(default, |text| text.parse().unwrap())
}

/// Six trials that run with every change, beside two healthy runs.
#[test]
fn the_culprits_of_simulated_runs_are_named_alone_and_healthy_runs_are_silent() {
    let planned: Vec<Planned> = [
        ("stopped", 0.2),
        ("spin", 0.5),
        ("slow-forward", 0.6),
        ("slow-data", 0.6),
        ("nan-labels", 0.5),
        ("killed", 0.5),
    ]
    .into_iter()
    .map(|(name, magnitude)| {
        let all = Group::Simulated.kinds();
        let kind = *all.iter().find(|kind| kind.name == name).unwrap();
        Planned {
            draw: Draw {
                strategy: "fsdp2".to_owned(),
                nodes: 2,
                ranks_per_node: 4,
                culprits: vec![5],
                step_s: 0.2,
                at_step: 70,
                magnitude,
                ..Draw::new(&kind, 1, 1)
            },
            kind,
            watched_after: WATCHED_BRIEFLY,
            number: 1,
        }
    })
    .collect();
    // Uneven batches, and batches that are late now and then.
    let healthy = [4, 5].map(|number| healthy::short(1, number));
    let mut done: Vec<(Planned, Trial)> = Vec::new();
    let ended = batch::run((Group::Simulated, 1), &planned, &healthy, |planned, trial| {
        done.push((planned.clone(), trial));
    });
    let ended = ended.unwrap();
    assert_eq!(ended.failed, Vec::<String>::new());
    assert_eq!(ended.false_alarms, Vec::<String>::new());
    for (planned, trial) in &done {
        let is_right = matches!(trial.outcome(&planned.kind), Outcome::Right { .. });
        assert!(is_right, "{}", trial.in_words(&planned.kind));
    }
    assert_eq!(done.len(), planned.len());
}
