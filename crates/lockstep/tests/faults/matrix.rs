//! Repeats all faults, and prints a table of what was true afterwards.
//!
//! `LOCKSTEP_FAULTS_REPEATS` and `LOCKSTEP_FAULTS_ONLY` (names, separated by commas) control what `all` runs. `cargo xtask lab faults`
//! writes the text that it prints between [`BEGIN`] and [`END`] into docs/faults.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use crate::fault::Fault;
use crate::product::selection::selection;
use crate::training::Losses;
use crate::verdict::{self, Verdict};
use crate::{agents, checkpoints, collector, nodes, ports, ranks, undisturbed};

const ALL: [Fault; 14] = [
    undisturbed::HEALTHY,
    ranks::KILLED,
    ranks::STOPPED,
    ranks::RAISED,
    ranks::LEFT_EARLY,
    ranks::CRASHED_AGAIN,
    agents::KILLED,
    agents::UPGRADED,
    nodes::GONE,
    nodes::ALL_AT_ONCE,
    collector::KILLED,
    checkpoints::DISK_FULL,
    checkpoints::TORN,
    ports::TAKEN,
];

/// Run with every change, without root: a fault that must not disturb the run, which is also the control, and two at once: one that is not
/// a failure to the kernel, and a newest checkpoint that must not be used. `lab faults` does each alone. `first_light` tests kills of
/// everything at any moment, and `fixes` tests that a run resumes from its newest complete checkpoint.
const EVERY_CHANGE: (Fault, [Fault; 1]) = (agents::UPGRADED, [checkpoints::TORN_AND_LEFT]);

/// The lines before and after the table.
const BEGIN: &str = "=== table of faults ===";
const END: &str = "=== end of the table ===";

#[test]
fn the_faults_that_say_most() {
    let (control, faults) = EVERY_CHANGE;
    run(&control, &faults, 1);
}

#[test]
#[ignore = "takes an hour: cargo xtask lab faults"]
fn all() {
    let repeats = std::env::var("LOCKSTEP_FAULTS_REPEATS").unwrap_or_default();
    let repeats = repeats.parse().unwrap_or(1);
    let is_selected = selection("LOCKSTEP_FAULTS_ONLY", "fault", &ALL.map(|fault| fault.name));
    let mut faults = ALL.to_vec();
    faults.retain(|fault| is_selected(fault.name));
    run(&undisturbed::HEALTHY, &faults, repeats);
}

struct Row {
    fault: Fault,
    verdicts: Vec<Verdict>,
}

/// Every run must have the losses of the control, whose training is not disturbed.
fn run(control: &Fault, faults: &[Fault], repeats: usize) {
    let first = print_result(control, 1, verdict::of(control, None));
    let reference = first.losses.clone();
    let mut rows = vec![Row {
        fault: *control,
        verdicts: vec![first],
    }];
    for fault in faults {
        if fault.name == control.name {
            rows[0].verdicts.extend(repeated(fault, 2..=repeats, &reference));
        } else {
            rows.push(Row {
                fault: *fault,
                verdicts: repeated(fault, 1..=repeats, &reference),
            });
        }
    }
    println!("{BEGIN}\n{}{END}", table(&rows));
    let wrong: Vec<_> = rows
        .iter()
        .filter(|row| !row.is_right())
        .map(|row| row.fault.name)
        .collect();
    assert!(
        wrong.is_empty(),
        "not as it must be after: {}; see the table above",
        wrong.join(", ")
    );
}

fn repeated(fault: &Fault, numbers: RangeInclusive<usize>, reference: &Losses) -> Vec<Verdict> {
    numbers
        .map(|n| print_result(fault, n, verdict::of(fault, Some(reference))))
        .collect()
}

/// Prints the result at once, because the table is printed only after the last fault.
fn print_result(fault: &Fault, n: usize, verdict: Verdict) -> Verdict {
    let how = if verdict.is_right() { "right" } else { "WRONG" };
    println!("{} #{n}: {how}", fault.name);
    for problem in &verdict.problems {
        println!("  {problem}");
    }
    verdict
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| fault | repeats | right state | right cause | resumed right | charts join | orphans | s to detect | s to end |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        row.write(&mut text);
    }
    text.push('\n');
    for row in rows {
        row.write_problems(&mut text);
    }
    text
}

impl Row {
    fn is_right(&self) -> bool {
        self.verdicts.iter().all(Verdict::is_right)
    }

    fn write(&self, text: &mut String) {
        let all = &self.verdicts;
        let count = |is: fn(&Verdict) -> bool| all.iter().filter(|verdict| is(verdict)).count();
        let how = all.iter().find_map(|verdict| verdict.how);
        let how = how.map_or(String::new(), |how| format!(" ({how})"));
        let orphans: usize = all.iter().map(|verdict| verdict.orphans).sum();
        writeln!(
            text,
            "| {}{how} | {} | {} | {} | {} | {} | {orphans} | {} | {} |",
            self.fault.name,
            all.len(),
            count(|verdict| verdict.state),
            count(|verdict| verdict.cause),
            count(|verdict| verdict.resumed),
            count(|verdict| verdict.charts),
            median(all.iter().filter_map(|verdict| verdict.detect_s)),
            median(all.iter().filter_map(|verdict| verdict.end_s)),
        )
        .unwrap();
    }

    fn write_problems(&self, text: &mut String) {
        for (n, verdict) in self.verdicts.iter().enumerate() {
            for problem in &verdict.problems {
                writeln!(text, "- **{}** #{}: {problem}", self.fault.name, n + 1).unwrap();
            }
        }
    }
}

fn median(seconds: impl Iterator<Item = f64>) -> String {
    let mut seconds: Vec<f64> = seconds.collect();
    seconds.sort_by(f64::total_cmp);
    seconds
        .get(seconds.len() / 2)
        .map_or("–".to_owned(), |median| format!("{median:.1}"))
}
