//! One trial, from the start of the collector to the last alert.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::draw::Draw;
use super::kind::{Culprit, Kind};
use super::outside::OutsideFault;
use super::peer::Verdict;
use super::score::{Outcome, outcome};
use super::stop;
use super::watch::Watch;
use crate::fleet::Fleet;
use crate::product::api::Api;
use crate::product::environment::program;

/// Eight ranks import PyTorch at the same time, and then train evenly for up to a minute and a half.
const FAULT_WITHIN: Duration = Duration::from_secs(360);
/// For this long after the culprit was named, no other rank may be named.
pub(super) const WATCHED_AFTER: Duration = Duration::from_secs(12);
const POLL: Duration = Duration::from_millis(250);

/// The observations of a trial. They are stored unchanged, so that trials can be scored again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) kind: String,
    pub(super) seed: u64,
    pub(super) number: u32,
    pub(super) draw: Draw,
    /// The node of each culprit.
    pub(super) nodes: Vec<String>,
    /// Alerts of severity warning or above, in order of time.
    pub(super) alerts: Vec<Alert>,
    /// Output of `lockstep run why` at the end.
    pub(super) why: String,
    /// TraceML's report, if it ran too.
    #[serde(default)]
    pub(super) traceml: Option<Verdict>,
}

/// An alert that was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Alert {
    pub(super) rule: String,
    pub(super) rank: Option<u32>,
    pub(super) node: Option<String>,
    /// True if the alert is about the run and not about a node.
    pub(super) of_run: bool,
    /// State of the rank according to the alert: `late` or `stuck`.
    pub(super) rank_state: Option<String>,
    /// Seconds since the fault; negative before it.
    pub(super) after_s: f64,
}

impl Trial {
    pub(super) fn outcome(&self, kind: &Kind) -> Outcome {
        outcome(kind, &self.draw.culprits, &self.nodes, &self.alerts)
    }

    pub(super) fn in_words(&self, kind: &Kind) -> String {
        let alerts: Vec<String> = self.alerts.iter().map(ToString::to_string).collect();
        let alerts = if alerts.is_empty() {
            "none".to_owned()
        } else {
            alerts.join(", ")
        };
        let traceml = self.traceml.as_ref();
        let traceml = traceml.map_or_else(String::new, |said| format!("; TraceML: {said}"));
        let outcome = self.outcome(kind);
        format!(
            "{} #{}, {}: {outcome:?}; alerts: {alerts}{traceml}",
            self.kind, self.number, self.draw
        )
    }

    /// Returns true if `lockstep run why` names each culprit. If the run must be named: if it shows a diagnosis of the run. If either is right,
    /// one of them is enough.
    pub(super) fn why_names_it(&self, kind: &Kind) -> bool {
        let named: Vec<Vec<&str>> = self
            .why
            .lines()
            .filter_map(|line| line.strip_prefix("  culprit "))
            .map(|culprit| culprit.split(',').map(str::trim).collect())
            .collect();
        let names = |part: String| named.iter().any(|parts| parts.contains(&part.as_str()));
        let names_rank = |rank: &u32| names(format!("rank {rank}"));
        let mut runs = named
            .iter()
            .filter(|parts| parts.len() == 1 && !parts[0].starts_with("on "));
        let mut culprits = self.draw.culprits.iter();
        match kind.culprit {
            Culprit::Ranks(_) => culprits.all(names_rank),
            Culprit::RankOrRun => runs.next().is_some() || culprits.any(names_rank),
            Culprit::Run => runs.next().is_some(),
            Culprit::Node => self.nodes.iter().all(|node| names(format!("on {node}"))),
        }
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self
            .rank
            .map_or_else(String::new, |rank| format!(" of rank {rank}"));
        write!(f, "{}{rank} after {:.1} s", self.rule, self.after_s)
    }
}

/// Carries out a trial. The caller sets its seed and number. The trial goes on for `watched_after` when the culprit was named.
pub(super) fn run_trial(kind: &Kind, draw: &Draw, watched_after: Duration) -> Result<Trial> {
    let mut fleet = Fleet::start(false)?;
    let folder = fleet.folder().join("faulty");
    std::fs::create_dir_all(&folder)?;
    let mut fault = OutsideFault::prepare(kind, draw, &folder)?;
    let submitted = fleet.api.post("/api/runs", &spec(kind, draw, &folder));
    let run = submitted["id"]
        .as_str()
        .with_context(|| format!("not submitted: {submitted}"))?;
    let mut watch = Watch::new(run);
    let noted_ms = until_fault(&mut watch, &fleet.api, &folder)?;
    let nodes: Vec<String> = draw
        .culprits
        .iter()
        .filter_map(|rank| node_of(&fleet.api, run, *rank))
        .collect();
    let fault_ms = fault.cause(&mut fleet, run, &nodes, noted_ms)?;
    let mut trial = Trial {
        kind: kind.name.to_owned(),
        seed: 0,
        number: 0,
        draw: draw.clone(),
        nodes,
        alerts: Vec::new(),
        why: String::new(),
        traceml: None,
    };
    let (began, mut named) = (Instant::now(), None);
    while began.elapsed() < kind.watched && named.is_none_or(|at: Instant| at.elapsed() < watched_after) {
        end_early()?;
        look(&mut watch, &fleet.api);
        trial.alerts = watch.alerts(fault_ms);
        if let Outcome::Right { .. } = trial.outcome(kind) {
            named.get_or_insert_with(Instant::now);
        }
        std::thread::sleep(POLL);
    }
    trial.why = why(&fleet.api, &fleet.folder().join("collector"), run)?;
    Ok(trial)
}

fn spec(kind: &Kind, draw: &Draw, folder: &Path) -> Value {
    json!({
        "script": script(),
        "args": draw.arguments(kind, folder),
        "nodes": draw.nodes,
        "nproc_per_node": draw.ranks_per_node,
        "max_restarts": kind.restarts,
    })
}

pub(super) fn script() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/diagnosis/faulty.py").into()
}

/// Watches until the script has recorded its fault. Returns that time in milliseconds.
fn until_fault(watch: &mut Watch, api: &Api, folder: &Path) -> Result<i64> {
    let began = Instant::now();
    loop {
        end_early()?;
        look(watch, api);
        if let Some(noted) = noted_ms(folder) {
            return Ok(noted);
        }
        let view = api.get(&format!("/api/runs/{}", watch.run()));
        let ended = ["failed", "stopped", "succeeded"].contains(&view["state"].as_str().unwrap_or_default());
        if ended || began.elapsed() > FAULT_WITHIN {
            bail!("no fault came; the run is {}: {}", view["state"], view["outcome"]);
        }
        std::thread::sleep(POLL);
    }
}

/// Gives the trial up if the lab must end.
pub(super) fn end_early() -> Result<()> {
    ensure!(!stop::must_end(), "the lab ends early");
    Ok(())
}

/// Takes all alerts: the collector has no other run.
fn look(watch: &mut Watch, api: &Api) {
    watch.take(&api.get("/api/diagnoses"), |_| true);
}

fn noted_ms(folder: &Path) -> Option<i64> {
    let seconds: f64 = std::fs::read_to_string(folder.join("fault")).ok()?.parse().ok()?;
    Some((seconds * 1_000.0) as i64)
}

pub(super) fn node_of(api: &Api, run: &str, rank: u32) -> Option<String> {
    let view = api.get(&format!("/api/runs/{run}"));
    let nodes = view["attempts"].as_array()?.last()?["nodes"].as_array()?.clone();
    let holds = |node: &&Value| {
        let ranks = node["ranks"].as_array();
        ranks.is_some_and(|ranks| ranks.iter().any(|known| known["rank"] == rank))
    };
    Some(nodes.iter().find(holds)?["node"].as_str()?.to_owned())
}

/// Returns the output of `lockstep run why` with the collector whose data folder is `data`.
pub(super) fn why(api: &Api, data: &Path, run: &str) -> Result<String> {
    let said = Command::new(program())
        .args(["run", "why", run])
        .env("LOCKSTEP_URL", &api.url)
        .env("LOCKSTEP_DATA", data)
        .env_remove("LOCKSTEP_TOKEN")
        .output()?;
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::kinds::named;
    use super::*;

    #[test]
    fn why_must_name_the_culprit_of_the_kind() {
        let check = |kind: &str, culprit: &str, expected: bool| {
            let kind = named(kind);
            let trial = Trial {
                kind: kind.name.to_owned(),
                seed: 1,
                number: 1,
                draw: Draw {
                    culprits: vec![2],
                    ..Draw::new(kind, 1, 1)
                },
                nodes: vec!["b".to_owned()],
                alerts: Vec::new(),
                why: format!("RunStalled\n  culprit   {culprit}\n"),
                traceml: None,
            };
            assert_eq!(trial.why_names_it(kind), expected, "{} {culprit}", kind.name);
        };
        for (culprit, of_rank, of_either, of_run, of_node) in [
            ("r-1, rank 2, on b", true, true, false, true),
            ("r-1, rank 3, on b", false, false, false, true),
            ("r-1", false, true, true, false),
            ("on b", false, false, false, true),
        ] {
            check("spin", culprit, of_rank);
            check("inf-gradient", culprit, of_either);
            check("learning-rate-jump", culprit, of_run);
            check("node-lost", culprit, of_node);
        }
    }
}
