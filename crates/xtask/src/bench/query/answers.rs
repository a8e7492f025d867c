//! The answers of all servers: how fast they were, and whether they were equal. Builds the rows and the notes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::ROUNDS;
use super::kind::Kind;
use crate::bench::database::Database;
use crate::bench::distribution::Distribution;
use crate::bench::table::Row;
use crate::layout::Layout;
use crate::measure::folder;
use crate::measure::generator::number;

/// Maximum difference between VictoriaMetrics' rates and Prometheus'. VictoriaMetrics measures from the last sample before the window and
/// does not extrapolate to the window's edges: some tenths of a per cent on noisy counters, one or two per cent after a counter reset.
const RATE_TOLERANCE: f64 = 0.03;
/// The labels of a series are long; the first characters are enough.
const FIRST_CHARS: usize = 200;
/// Queries not counted in a later round: the server was paused, and its connections are new.
const AGAIN_WARM: &str = "--warm-up=3";
/// The aim for the ratio of p50 and p99 of every kind.
const AIM: f64 = 0.5;

/// The results of one server for one kind of query, in all rounds so far.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    /// One latency per timed answer.
    latencies_us: Vec<u32>,
    /// Dashboards only: the time until all of them were drawn.
    drawn_us: Vec<u32>,
    /// The server's CPU time for them.
    cpu_s: f64,
    /// Number of samples in all timed answers.
    samples: f64,
    /// Number of values that were compared, in the first round.
    values: f64,
    comparison: Option<Comparison>,
    /// The query with which the next round continues.
    next: u64,
}

/// How the first answers differ from the first server's.
#[derive(Debug, Clone)]
struct Comparison {
    /// Number of values that are missing, additional or different.
    different: f64,
    worst: f64,
    first: String,
}

/// The results of all servers.
pub(super) struct Answers {
    folder: PathBuf,
    repeats: u64,
    kinds: BTreeMap<Kind, BTreeMap<Database, Answered>>,
    peaks: BTreeMap<Database, f64>,
    notes: Vec<String>,
}

impl Answered {
    /// Reads the output of the generator.
    pub(super) fn read(outcome: &Value) -> Result<Self> {
        Ok(Self {
            latencies_us: micros(outcome, "latencies_us")?,
            drawn_us: micros(outcome, "rounds_us")?,
            cpu_s: number(outcome, "/server_cpu_s/1")? - number(outcome, "/server_cpu_s/0")?,
            samples: number(outcome, "/samples")?,
            values: number(outcome, "/values")?,
            comparison: match &outcome["comparison"] {
                Value::Null => None,
                found => Some(Comparison::read(found)?),
            },
            next: number(outcome, "/next")? as u64,
        })
    }

    /// Adds a later round.
    fn add(&mut self, later: Self) {
        self.latencies_us.extend(later.latencies_us);
        self.drawn_us.extend(later.drawn_us);
        self.cpu_s += later.cpu_s;
        self.samples += later.samples;
        self.next = later.next;
    }

    fn p50_ms(&self) -> f64 {
        percentile_ms(&self.latencies_us, 0.5)
    }

    fn p99_ms(&self) -> f64 {
        percentile_ms(&self.latencies_us, 0.99)
    }

    fn cpu_ms(&self) -> f64 {
        self.cpu_s * 1e3 / self.latencies_us.len() as f64
    }
}

/// Returns the list with this name in the generator's output, which leaves out empty lists.
fn micros(outcome: &Value, name: &str) -> Result<Vec<u32>> {
    let listed = outcome
        .get(name)
        .cloned()
        .unwrap_or_else(|| Vec::<u32>::new().into());
    serde_json::from_value(listed).with_context(|| format!("what loadgen printed as {name} are no times"))
}

/// Returns the percentile by nearest rank, like the generator.
fn percentile_ms(micros: &[u32], share: f64) -> f64 {
    let micros = micros.iter().copied().map(f64::from).collect();
    Distribution::new(micros).quantile(share) / 1e3
}

impl Comparison {
    fn read(found: &Value) -> Result<Self> {
        let different = ["/missing", "/extra", "/differing"].map(|pointer| number(found, pointer));
        Ok(Self {
            different: different.into_iter().sum::<Result<f64>>()?,
            worst: number(found, "/worst")?,
            first: found["first"]
                .as_str()
                .unwrap_or_default()
                .chars()
                .take(FIRST_CHARS)
                .collect(),
        })
    }
}

impl fmt::Display for Answered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "p50 {:.2} ms, p99 {:.2} ms, {:.2} ms CPU each",
            self.p50_ms(),
            self.p99_ms(),
            self.cpu_ms()
        )?;
        match &self.comparison {
            Some(found) if found.different > 0.0 => {
                write!(out, "; {} values differ: {}", found.different, found.first)
            }
            _ => Ok(()),
        }
    }
}

impl Answers {
    /// Creates an empty folder for the answers.
    pub(super) fn new(layout: &Layout, repeats: u64) -> Result<Self> {
        let folder = layout.target().join("bench/answers");
        folder::empty(&folder)?;
        Ok(Self {
            folder,
            repeats,
            kinds: BTreeMap::new(),
            peaks: BTreeMap::new(),
            notes: Vec::new(),
        })
    }

    /// Returns the generator's arguments for earlier answers: in the first round the first server's answers are stored and the others' are
    /// compared with them; later rounds continue after them.
    pub(super) fn round(&self, kind: Kind, database: Database) -> Vec<String> {
        if let Some(answered) = self.kinds.get(&kind).and_then(|all| all.get(&database)) {
            let first = format!("--first={}", answered.next);
            return vec![first, "--verify=0".to_owned(), AGAIN_WARM.to_owned()];
        }
        let file = self.folder.join(format!("{}.jsonl", kind.name()));
        let Some(first) = self.first(kind) else {
            return vec![format!("--keep={}", file.display())];
        };
        let mut args = vec![format!("--against={}", file.display())];
        if [first, database].contains(&Database::VictoriaMetrics) {
            args.push(format!("--rate-tolerance={RATE_TOLERANCE}"));
        }
        args
    }

    /// Adds a round.
    pub(super) fn add(&mut self, kind: Kind, database: Database, answered: Answered) {
        let all = self.kinds.entry(kind).or_default();
        match all.get_mut(&database) {
            Some(before) => before.add(answered),
            None => {
                all.insert(database, answered);
            }
        }
    }

    /// Removes the rounds of a server that failed a later one, because they contain fewer answers than the others'.
    pub(super) fn forget(&mut self, kind: Kind, database: Database) {
        if let Some(all) = self.kinds.get_mut(&kind) {
            all.remove(&database);
        }
    }

    pub(super) fn peak(&mut self, database: Database, mib: f64) {
        self.peaks.insert(database, mib);
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Returns the kinds in which Lockstep's answers differ from the first server's.
    pub(super) fn different(&self) -> Vec<Kind> {
        let kinds = self.kinds.keys().copied();
        kinds
            .filter(|kind| self.difference(*kind, Database::Lockstep).is_some())
            .collect()
    }

    /// Returns the server with which all others are compared.
    fn first(&self, kind: Kind) -> Option<Database> {
        self.kinds.get(&kind)?.keys().next().copied()
    }

    /// Describes how a server's answers differ from the first server's.
    fn difference(&self, kind: Kind, database: Database) -> Option<String> {
        let all = self.kinds.get(&kind)?;
        let (first, own) = (all.values().next()?, all.get(&database)?);
        match &own.comparison {
            Some(found) if found.different > 0.0 => Some(format!(
                "{} of {} values compared differ; the first: {}",
                found.different, own.values, found.first
            )),
            _ if own.samples != first.samples => Some(format!(
                "the timed answers have {} samples, the first server's {}",
                own.samples, first.samples
            )),
            _ => None,
        }
    }

    /// Returns three rows per kind, and the memory.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (kind, all) in &self.kinds {
            let differ = self.difference(*kind, Database::Lockstep).is_some();
            let row = |what: String, figure: fn(&Answered) -> Option<f64>| {
                let found = all
                    .iter()
                    .filter_map(|(database, answered)| Some((*database, figure(answered)?)));
                found.fold(Row::new(what), |row, (database, value)| {
                    row.value(database, value)
                })
            };
            rows.push(
                row(format!("{}: p50 ms", kind.words()), |a| Some(a.p50_ms()))
                    .target(AIM)
                    .void(differ),
            );
            rows.push(
                row("… p99 ms".to_owned(), |a| Some(a.p99_ms()))
                    .target(AIM)
                    .void(differ),
            );
            if *kind == Kind::Dashboards {
                rows.push(row("… until all are drawn, s".to_owned(), |a| {
                    Some(percentile_ms(&a.drawn_us, 0.5) / 1e3)
                }));
            }
            rows.push(row("… server's CPU ms per answer".to_owned(), |a| {
                Some(a.cpu_ms())
            }));
        }
        let peaks = self.peaks.iter();
        rows.push(peaks.fold(
            Row::new("peak memory during the queries, MiB"),
            |row, (database, mib)| row.value(*database, *mib),
        ));
        rows
    }

    /// Returns the notes: events during the run, how the queries were sent, and differences of answers.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.push(format!(
            "Most kinds have {} timed answers, one at a time, in {ROUNDS} rounds in which the servers take turns. Rules have ten times as \
             many, the kinds of a month four times as many, and dashboards 20 × 8 at once. 16 answers before the first round and 3 before \
             each other round are not counted. Each query is about another metric, GPU or end. All servers have the same client: HTTP/1.1 \
             with persistent connections, without compression. Caches of answers are off.",
            self.repeats
        ));
        notes.push(self.agreement());
        for (kind, all) in &self.kinds {
            let differences = all
                .keys()
                .filter_map(|database| Some((database, self.difference(*kind, *database)?)));
            notes.extend(
                differences
                    .map(|(database, found)| format!("{}, {}: {found}.", database.name(), kind.words())),
            );
        }
        notes.push("CPU is counted in ticks of 10 ms over the timed answers of a round.".to_owned());
        notes
    }

    fn agreement(&self) -> String {
        let answered = || self.kinds.values().flatten();
        let compared = |database: Database| {
            let of_peer =
                answered().filter(|(found, answered)| **found == database && answered.comparison.is_some());
            of_peer.map(|(_, answered)| answered.values).sum::<f64>()
        };
        let rates = self
            .kinds
            .get(&Kind::Rate)
            .and_then(|all| all.get(&Database::VictoriaMetrics));
        let worst = rates.and_then(|answered| Some(answered.comparison.as_ref()?.worst));
        let worst = worst.map_or_else(String::new, |worst| {
            format!(" (here {:.2} % at most)", worst * 100.0)
        });
        format!(
            "The first six answers of each kind are compared value by value with Prometheus': {} values of VictoriaMetrics', {} of \
             Lockstep's. They must be the same to 1e-9; VictoriaMetrics' rates to {:.0} %{worst}, because it measures from the last sample \
             before a window and does not extrapolate. No sample lies on a window's edge, where Prometheus 2 counts one more. Timed answers \
             must have the same number of samples. Differences are listed here.",
            compared(Database::VictoriaMetrics),
            compared(Database::Lockstep),
            RATE_TOLERANCE * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn outcome(samples: u64, comparison: &str) -> Answered {
        let text = format!(
            r#"{{"latencies_us":[1000,3000,2000,9000],"server_cpu_s":[1.0,1.5],"samples":{samples},"values":70,"next":20,
                "comparison":{comparison}}}"#
        );
        Answered::read(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn answers(own: Answered) -> Answers {
        let mut answers = Answers {
            folder: PathBuf::new(),
            repeats: 50,
            kinds: BTreeMap::new(),
            peaks: BTreeMap::new(),
            notes: Vec::new(),
        };
        answers.add(Kind::Rate, Database::Prometheus, outcome(100, "null"));
        answers.add(Kind::Rate, Database::Lockstep, own);
        answers
    }

    #[test]
    fn other_answers_are_no_faster_answers() {
        const SAME: &str = r#"{"missing":0,"extra":0,"differing":0,"worst":0.0,"first":null}"#;
        const OTHER: &str = r#"{"missing":1,"extra":0,"differing":2,"worst":0.5,"first":"x"}"#;
        for (own, differs) in [
            (outcome(100, SAME), false),
            (outcome(99, SAME), true),
            (outcome(100, OTHER), true),
        ] {
            let answers = answers(own);
            assert_eq!(!answers.different().is_empty(), differs);
            let noted = answers
                .notes()
                .iter()
                .any(|note| note.starts_with("lockstep, rate"));
            assert_eq!(noted, differs);
        }
    }

    #[test]
    fn the_first_server_is_the_measure() {
        let answers = answers(outcome(100, "null"));
        assert!(answers.round(Kind::Metric, Database::VictoriaMetrics)[0].starts_with("--keep="));
        let vm = answers.round(Kind::Rate, Database::VictoriaMetrics);
        assert!(vm[0].starts_with("--against=") && vm[1] == "--rate-tolerance=0.03");
        let own = answers.round(Kind::Rate, Database::Lockstep);
        assert_eq!(own[..2], ["--first=20", "--verify=0"], "a later round");
    }

    #[test]
    fn rounds_add_up() {
        let mut answers = answers(outcome(100, "null"));
        answers.add(Kind::Rate, Database::Lockstep, outcome(50, "null"));
        let all = &answers.kinds[&Kind::Rate][&Database::Lockstep];
        assert_eq!((all.samples, all.values, all.next), (150.0, 70.0, 20));
        assert_eq!((all.p50_ms(), all.p99_ms(), all.cpu_ms()), (2.0, 9.0, 125.0));
        assert!(percentile_ms(&[], 0.5).is_nan());
    }
}
