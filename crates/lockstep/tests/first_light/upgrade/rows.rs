//! Real runs with programs of two releases, as a table.
//!
//! `cargo xtask lab upgrade` writes the text between [`BEGIN`] and [`END`] into docs/upgrade.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde_json::Value;

use super::pair::{Pair, old_program};
use crate::product::environment::program;

/// The lines before and after the table.
const BEGIN: &str = "=== table of upgrades ===";
const END: &str = "=== end of the table ===";
/// Steps of a run; [`STEP_MS`] is the shortest time of a step.
const STEPS: u64 = 60;
const STEP_MS: u64 = 50;
/// The same for the run during which both programs are upgraded. Each upgrade takes a few seconds.
const LONG_STEPS: u64 = 400;
const LONG_STEP_MS: u64 = 100;
/// Steps that must arrive after each upgrade before the next one.
const STEPS_BETWEEN: u64 = 20;
/// A rank with faster steps has one stored sample per second. On a busy machine it may be somewhat later.
const GAP_MS_MAX: i64 = 5_000;

#[test]
#[ignore = "needs the programs of an earlier release: cargo xtask lab upgrade"]
fn all() {
    let rows = [
        row("old agent, new collector", || {
            let pair = Pair::start(&program(), &old_program());
            whole_run(&pair)
        }),
        row("new agent, old collector", || {
            let pair = Pair::start(&old_program(), &program());
            whole_run(&pair)
        }),
        row("old shim through both upgrades, collector first", through_both),
    ];
    println!("{BEGIN}\n{}{END}", table(&rows));
    let wrong: Vec<_> = rows.iter().filter(|row| !row.problems.is_empty()).collect();
    assert!(
        wrong.is_empty(),
        "see the table above: {} rows are wrong",
        wrong.len()
    );
}

/// The result of a run.
struct Outcome {
    state: String,
    attempts: usize,
    /// Stored steps of rank 0 and rank 1, each with its time.
    steps: [Vec<(i64, u64)>; 2],
    /// Number of steps whose line is in the log of rank 0.
    logged: u64,
    expected: u64,
}

struct Row {
    name: &'static str,
    outcome: Option<Outcome>,
    problems: Vec<String>,
    seconds: f64,
}

/// Runs one row. A panic makes the row fail; the other rows still run.
fn row(name: &'static str, work: impl FnOnce() -> Outcome) -> Row {
    let began = Instant::now();
    let (outcome, problems) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => {
            let problems = outcome.problems();
            (Some(outcome), problems)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            (None, vec![text.unwrap_or_else(|| "it panicked".to_owned())])
        }
    };
    let row = Row {
        name,
        outcome,
        problems,
        seconds: began.elapsed().as_secs_f64(),
    };
    println!(
        "{name}: {}",
        if row.problems.is_empty() { "right" } else { "WRONG" }
    );
    row
}

fn whole_run(pair: &Pair) -> Outcome {
    let run = pair.submit(STEPS, STEP_MS);
    outcome(pair, &run, STEPS)
}

/// The old agent starts the ranks and their shim, which stay. The collector is replaced first, then the agent.
fn through_both() -> Outcome {
    let mut pair = Pair::start(&old_program(), &old_program());
    let run = pair.submit(LONG_STEPS, LONG_STEP_MS);
    pair.reached(&run, STEPS_BETWEEN);
    let before = pids(&pair.view(&run));
    pair.replace_collector(&program());
    pair.reached(&run, 2 * STEPS_BETWEEN + last_step(&pair, &run));
    pair.replace_agent(&program());
    pair.reached(&run, STEPS_BETWEEN + last_step(&pair, &run));
    assert_eq!(pids(&pair.view(&run)), before, "the same processes train");
    outcome(&pair, &run, LONG_STEPS)
}

fn last_step(pair: &Pair, run: &str) -> u64 {
    pair.steps(run, 0).last().map_or(0, |(_, step)| *step)
}

fn pids(view: &Value) -> Vec<Value> {
    let ranks = view["attempts"][0]["nodes"][0]["ranks"].as_array().cloned();
    ranks
        .unwrap_or_default()
        .iter()
        .map(|rank| rank["pid"].clone())
        .collect()
}

fn outcome(pair: &Pair, run: &str, expected: u64) -> Outcome {
    let view = pair.ended(run);
    // Samples and logs may arrive after the end.
    pair.reached(run, expected);
    let logged = || {
        let log = pair.log(run, 0);
        let is_there = |step: &u64| log.contains(&format!("step {step} loss"));
        (1..=expected).filter(is_there).count() as u64
    };
    pair.wait("the whole log", || (logged() == expected).then_some(()));
    Outcome {
        state: view["state"].as_str().unwrap_or_default().to_owned(),
        attempts: view["attempts"].as_array().map_or(0, Vec::len),
        steps: [0, 1].map(|rank| pair.steps(run, rank)),
        logged: logged(),
        expected,
    }
}

impl Outcome {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.state != "succeeded" {
            problems.push(format!("the run is {}", self.state));
        }
        if self.attempts != 1 {
            problems.push(format!("it took {} attempts", self.attempts));
        }
        for (rank, steps) in self.steps.iter().enumerate() {
            let (first, last) = (steps.first(), steps.last());
            let step_of = |sample: Option<&(i64, u64)>| sample.map(|(_, step)| *step);
            if (step_of(first), step_of(last)) != (Some(1), Some(self.expected)) {
                problems.push(format!("rank {rank} has samples from {first:?} to {last:?}"));
            }
            if !steps.is_sorted_by(|before, after| before.1 < after.1) {
                problems.push(format!("rank {rank} has a step twice: {steps:?}"));
            }
        }
        if self.longest_gap_ms() > GAP_MS_MAX {
            problems.push(format!("no sample of a step for {} ms", self.longest_gap_ms()));
        }
        problems
    }

    fn longest_gap_ms(&self) -> i64 {
        let gaps = self.steps.iter().flat_map(|steps| steps.windows(2));
        gaps.map(|pair| pair[1].0 - pair[0].0).max().unwrap_or(i64::MAX)
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| programs | state | attempts | samples of steps, rank 0 | rank 1 | longest gap | steps in the log | seconds | as expected |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for row in rows {
        let right = if row.problems.is_empty() { "yes" } else { "NO" };
        let cells = match &row.outcome {
            Some(outcome) => format!(
                "{} | {} | {} | {} | {:.1} s | {} of {}",
                outcome.state,
                outcome.attempts,
                outcome.steps[0].len(),
                outcome.steps[1].len(),
                outcome.longest_gap_ms() as f64 / 1_000.0,
                outcome.logged,
                outcome.expected,
            ),
            None => "– | – | – | – | – | –".to_owned(),
        };
        writeln!(text, "| {} | {cells} | {:.0} | {right} |", row.name, row.seconds).unwrap();
    }
    text.push('\n');
    for row in rows {
        for problem in &row.problems {
            writeln!(text, "- **{}**: {problem}", row.name).unwrap();
        }
    }
    text
}
