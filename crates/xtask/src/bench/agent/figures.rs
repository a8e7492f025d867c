//! The table: one row per quantity, one column per program, Lockstep's ratio to the others, and the aim.

use super::cost::Cost;
use super::watcher::Watcher;
use crate::bench::table::{figure, grid};

/// The aim for peak resident memory, in MiB.
const RESIDENT_MIB_MAX: f64 = 16.0;
/// The aim for CPU time per value, as a ratio to all-smi.
const CPU_RATIO_MAX: f64 = 0.3;
/// A machine is quiet if others use less than this share of all cores.
const QUIET_SHARE: f64 = 0.05;

const HEAD: [&str; 8] = [
    "",
    "nvitop-exporter",
    "all-smi",
    "Lockstep",
    "with a collector",
    "÷ nvitop-exporter",
    "÷ all-smi",
    "aim: alone; with a collector",
];

type Measured = (Watcher, Cost);

/// Returns the table of the results so far.
pub(super) fn table(costs: &[Measured]) -> String {
    type Value = fn(&Cost) -> f64;
    let plain: [(&str, Value); 3] = [
        ("values on the page", |cost| cost.values),
        ("… about GPUs", |cost| cost.gpu_values),
        ("values read per second", |cost| cost.read),
    ];
    let rest: [(&str, Value); 4] = [
        ("… of it allocated, MiB", |cost| cost.own_mib),
        ("system calls per second", |cost| cost.calls),
        ("… per value read", |cost| cost.calls / cost.read),
        ("threads", |cost| cost.threads),
    ];
    let mut rows: Vec<_> = plain
        .iter()
        .map(|(what, value)| row(costs, what, value, |_| None, ""))
        .collect();
    let others = of(costs, Watcher::AllSmi).map(Cost::cpu_us_a_value_read);
    rows.push(row(
        costs,
        "CPU µs per value read",
        Cost::cpu_us_a_value_read,
        |cost| Some(cost.cpu_us_a_value_read() / others? <= CPU_RATIO_MAX),
        "≤ 0.3 × all-smi",
    ));
    rows.push(row(
        costs,
        "… per value on the page",
        |cost| cost.cpu * 1e6 / cost.values,
        |_| None,
        "",
    ));
    rows.push(row(
        costs,
        "CPU ms per second",
        |cost| cost.cpu * 1e3,
        |_| None,
        "",
    ));
    rows.push(row(
        costs,
        "resident memory, MiB",
        |cost| cost.resident_mib,
        |cost| Some(cost.resident_mib <= RESIDENT_MIB_MAX),
        "≤ 16 MiB",
    ));
    rows.extend(
        rest.iter()
            .map(|(what, value)| row(costs, what, value, |_| None, "")),
    );
    grid(&HEAD, &rows)
}

/// Returns notes for readers of the table.
pub(super) fn notes(costs: &[Measured]) -> Vec<String> {
    let mut notes = vec![
        "CPU is user and system time of all threads and of ended children, from /proc. Values read: Lockstep reads values that change \
         slowly every ten seconds and eight of each GPU ten times per second, and counts each reading. It is unknown which values of \
         the other programs' pages are read each second, so all of them count."
            .to_owned(),
        "Resident memory is the maximum of that time, including the pages of program and libraries. strace counts the system calls \
         after that time."
            .to_owned(),
    ];
    let busy = costs.iter().filter_map(|(watcher, cost)| {
        let share = cost.background_share.filter(|share| *share > QUIET_SHARE)?;
        Some(format!(
            "{}: during its measurement, other processes used {:.0} % of the machine.",
            watcher.name(),
            share * 100.0
        ))
    });
    notes.extend(busy);
    notes
}

fn of(costs: &[Measured], wanted: Watcher) -> Option<&Cost> {
    costs
        .iter()
        .find(|(watcher, _)| *watcher == wanted)
        .map(|(_, cost)| cost)
}

fn row(
    costs: &[Measured],
    what: &str,
    value: impl Fn(&Cost) -> f64,
    is_met: impl Fn(&Cost) -> Option<bool>,
    aim: &str,
) -> Vec<String> {
    let value = |watcher| of(costs, watcher).map(&value);
    let text = |value: Option<f64>| value.map_or("–".to_owned(), figure);
    let ratio = |other| Some(value(Watcher::Lockstep)? / value(other).filter(|other| *other > 0.0)?);
    let met = |watcher| match of(costs, watcher).and_then(&is_met) {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "not measured",
    };
    let verdict = format!(
        "{aim}: {}; {}",
        met(Watcher::Lockstep),
        met(Watcher::LockstepWithCollector)
    );
    vec![
        what.to_owned(),
        text(value(Watcher::NvitopExporter)),
        text(value(Watcher::AllSmi)),
        text(value(Watcher::Lockstep)),
        text(value(Watcher::LockstepWithCollector)),
        text(ratio(Watcher::NvitopExporter)),
        text(ratio(Watcher::AllSmi)),
        if aim.is_empty() { String::new() } else { verdict },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads a hundred values per second; a page contains half of them.
    fn cost(cpu: f64, resident_mib: f64) -> Cost {
        Cost {
            values: 50.0,
            read: 100.0,
            cpu,
            resident_mib,
            ..Cost::default()
        }
    }

    #[test]
    fn each_aim_is_judged_by_its_own_figure() {
        let costs = [
            (
                Watcher::AllSmi,
                Cost {
                    values: 100.0,
                    ..cost(0.01, 11.0)
                },
            ),
            (Watcher::Lockstep, cost(0.003, 15.9)),
            (Watcher::LockstepWithCollector, cost(0.004, 16.1)),
        ];
        let table = table(&costs);
        let line = |what: &str| {
            table
                .lines()
                .find(|line| line.contains(what))
                .unwrap_or_default()
                .to_owned()
        };
        assert!(line("CPU µs").contains("all-smi: yes; NO"), "{table}");
        assert!(line("per value on the page").contains("0.600"), "{table}");
        assert!(line("resident").contains("16 MiB: yes; NO"), "{table}");
        assert!(line("resident").contains("–"), "{table}");
    }

    #[test]
    fn an_aim_without_the_other_is_not_judged() {
        let table = table(&[(Watcher::Lockstep, cost(0.003, 15.9))]);
        assert!(table.contains("all-smi: not measured; not measured"), "{table}");
    }
}
