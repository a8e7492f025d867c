//! What every server answered, how fast, and whether it was the same: the rows and the notes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use super::kind::Kind;
use crate::bench::peer::Peer;
use crate::bench::table::Row;
use crate::layout::Layout;
use crate::measure::folder;
use crate::measure::generator::number;

/// How far VictoriaMetrics' rates may be from Prometheus'. It measures from the last sample before the window and does not
/// extrapolate to the window's edges: some tenths of a per cent on noisy counters, one or two where they have just begun anew.
const RATE_TOLERANCE: f64 = 0.03;
/// A series' labels are long; its first ones say enough.
const FIRST_CHARS: usize = 200;
/// The aim of every kind, for p50 and p99.
const AIM: f64 = 0.5;

/// What one server showed in one kind of query.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    p50_ms: f64,
    p99_ms: f64,
    cpu_ms: f64,
    /// Dashboards only: all of them drawn, at the median.
    round_s: Option<f64>,
    /// Of all timed answers.
    samples: f64,
    values: f64,
    comparison: Option<Comparison>,
}

/// How the first answers differ from the first server's.
#[derive(Debug, Clone)]
struct Comparison {
    /// Values that are missing, too many or another.
    different: f64,
    worst: f64,
    first: String,
}

/// All of it.
pub(super) struct Answers {
    folder: PathBuf,
    repeats: u64,
    kinds: BTreeMap<Kind, BTreeMap<Peer, Answered>>,
    peaks: BTreeMap<Peer, f64>,
    notes: Vec<String>,
}

impl Answered {
    /// From what the generator printed.
    pub(super) fn read(outcome: &Value) -> Result<Self> {
        let cpu_s = number(outcome, "/server_cpu_s/1")? - number(outcome, "/server_cpu_s/0")?;
        Ok(Self {
            p50_ms: number(outcome, "/latency/p50_ms")?,
            p99_ms: number(outcome, "/latency/p99_ms")?,
            cpu_ms: cpu_s * 1e3 / number(outcome, "/latency/count")?,
            round_s: number(outcome, "/rounds/p50_ms").ok().map(|ms| ms / 1e3),
            samples: number(outcome, "/samples")?,
            values: number(outcome, "/values")?,
            comparison: match &outcome["comparison"] {
                Value::Null => None,
                found => Some(Comparison::read(found)?),
            },
        })
    }
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
            self.p50_ms, self.p99_ms, self.cpu_ms
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
    /// Answers are kept in a folder that is emptied first.
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

    /// What the generator is told about comparing: the first server's answers are kept, the others' are compared with them.
    pub(super) fn comparing(&self, kind: Kind, peer: Peer) -> Vec<String> {
        let file = self.folder.join(format!("{}.jsonl", kind.name()));
        let Some(first) = self.first(kind) else {
            return vec![format!("--keep={}", file.display())];
        };
        let mut args = vec![format!("--against={}", file.display())];
        if [first, peer].contains(&Peer::VictoriaMetrics) {
            args.push(format!("--rate-tolerance={RATE_TOLERANCE}"));
        }
        args
    }

    pub(super) fn add(&mut self, kind: Kind, peer: Peer, answered: Answered) {
        self.kinds.entry(kind).or_default().insert(peer, answered);
    }

    pub(super) fn peak(&mut self, peer: Peer, mib: f64) {
        self.peaks.insert(peer, mib);
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Kinds in which Lockstep did not answer what the first server answered.
    pub(super) fn different(&self) -> Vec<Kind> {
        let kinds = self.kinds.keys().copied();
        kinds
            .filter(|kind| self.difference(*kind, Peer::Lockstep).is_some())
            .collect()
    }

    /// The server whose answers all others are compared with.
    fn first(&self, kind: Kind) -> Option<Peer> {
        self.kinds.get(&kind)?.keys().next().copied()
    }

    /// How a server's answers differ from the first's, in words.
    fn difference(&self, kind: Kind, peer: Peer) -> Option<String> {
        let all = self.kinds.get(&kind)?;
        let (first, own) = (all.values().next()?, all.get(&peer)?);
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

    /// Three rows a kind, and the memory.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (kind, all) in &self.kinds {
            let differ = self.difference(*kind, Peer::Lockstep).is_some();
            let row = |what: String, figure: fn(&Answered) -> Option<f64>| {
                let found = all
                    .iter()
                    .filter_map(|(peer, answered)| Some((*peer, figure(answered)?)));
                found.fold(Row::new(what), |row, (peer, value)| row.value(peer, value))
            };
            rows.push(
                row(format!("{}: p50 ms", kind.words()), |a| Some(a.p50_ms))
                    .target(AIM)
                    .void(differ),
            );
            rows.push(
                row("… p99 ms".to_owned(), |a| Some(a.p99_ms))
                    .target(AIM)
                    .void(differ),
            );
            if *kind == Kind::Dashboards {
                rows.push(row("… until all are drawn, s".to_owned(), |a| a.round_s));
            }
            rows.push(row("… server's CPU ms an answer".to_owned(), |a| {
                Some(a.cpu_ms)
            }));
        }
        let peaks = self.peaks.iter();
        rows.push(peaks.fold(
            Row::new("peak memory during the queries, MiB"),
            |row, (peer, mib)| row.value(*peer, *mib),
        ));
        rows
    }

    /// What was noted on the way, how it was asked, and where answers differ.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.push(format!(
            "Timed are {} answers of most kinds, one at a time, after 16 that are not counted; ten times as many of rules, four times as \
             many of a month; dashboards in rounds of 20 × 8. Each is about another metric, GPU or end. One client for all: HTTP/1.1 with \
             connections kept, no compression; caches of answers are off.",
            self.repeats
        ));
        notes.push(self.agreement());
        for (kind, all) in &self.kinds {
            let differences = all
                .keys()
                .filter_map(|peer| Some((peer, self.difference(*kind, *peer)?)));
            notes.extend(
                differences.map(|(peer, found)| format!("{}, {}: {found}.", peer.name(), kind.words())),
            );
        }
        notes.push("CPU is counted in ticks of 10 ms over all timed answers of a kind.".to_owned());
        notes
    }

    fn agreement(&self) -> String {
        let answered = || self.kinds.values().flatten();
        let compared = |peer: Peer| {
            let of_peer =
                answered().filter(|(found, answered)| **found == peer && answered.comparison.is_some());
            of_peer.map(|(_, answered)| answered.values).sum::<f64>()
        };
        let rates = self
            .kinds
            .get(&Kind::Rate)
            .and_then(|all| all.get(&Peer::VictoriaMetrics));
        let worst = rates.and_then(|answered| Some(answered.comparison.as_ref()?.worst));
        let worst = worst.map_or_else(String::new, |worst| {
            format!(" (here {:.2} % at most)", worst * 100.0)
        });
        format!(
            "The first six answers of each kind are compared value by value with Prometheus': {} values of VictoriaMetrics', {} of \
             Lockstep's. They must be the same to 1e-9; VictoriaMetrics' rates to {:.0} %{worst}, because it measures from the last sample \
             before a window and does not extrapolate. No sample lies on a window's edge, where Prometheus 2 counts one more. Timed answers \
             must have as many samples. What differs is named here.",
            compared(Peer::VictoriaMetrics),
            compared(Peer::Lockstep),
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
            r#"{{"latency":{{"count":50,"p50_ms":2.0,"p99_ms":9.0}},"server_cpu_s":[1.0,1.5],"samples":{samples},"values":70,
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
        answers.add(Kind::Rate, Peer::Prometheus, outcome(100, "null"));
        answers.add(Kind::Rate, Peer::Lockstep, own);
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
        assert!(answers.comparing(Kind::Metric, Peer::VictoriaMetrics)[0].starts_with("--keep="));
        let vm = answers.comparing(Kind::Rate, Peer::VictoriaMetrics);
        assert!(vm[0].starts_with("--against=") && vm[1] == "--rate-tolerance=0.03");
        assert_eq!(answers.comparing(Kind::Rate, Peer::Lockstep).len(), 1);
        assert_eq!(outcome(1, "null").cpu_ms, 10.0);
    }
}
