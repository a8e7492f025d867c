//! Healthy but noisy work, for minutes or hours, during which no alert above severity info may fire.
//!
//! Two runs are active at any time, one per node. `LOCKSTEP_QUIET_MINUTES` sets the duration. The table that `hours` prints is what `cargo
//! xtask soak quiet` writes into docs/soak.md.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::fleet::{Fleet, NODES};

const BEGIN: &str = "=== table of quiet work ===";
const END: &str = "=== end of the table ===";
const MINUTES_DEFAULT: u64 = 120;
/// Work that takes longer is stopped, as a user would stop it.
const STOPPED_AFTER: Duration = Duration::from_secs(4 * 60);
/// How long a run is watched after its end.
const LOOKED_AT_AFTER: Duration = Duration::from_secs(75);

/// Makes the specification to submit.
type Spec = fn(&Fleet) -> Value;

/// Recipes, which compute all the time. At most one of them runs at a time: two would take the cores from each other, and an alert on the
/// lower throughput would be right.
const COMPUTING: [(&str, Spec); 5] = [
    ("ddp", |_| recipe("ddp", &[("steps", "1500")])),
    ("fsdp", |_| recipe("fsdp", &[("steps", "600")])),
    ("pipeline of unequal stages", |_| {
        recipe("model-parallel", &[("steps", "400")])
    }),
    ("rpc-parameter-server", |_| {
        recipe("rpc-parameter-server", &[("gradients", "2000")])
    }),
    ("resume", |fleet| {
        let folder = fleet.folder().join("quiet-resume");
        let mut spec = recipe("resume", &[("steps", "1500")]);
        spec["checkpoint_dir"] = json!(folder);
        spec
    }),
];

/// Scripts that mostly wait, with other noise each.
const WAITING: [(&str, Spec); 10] = [
    ("evaluations of 8 to 60 s", |_| {
        noisy(&["--steps", "2000", "--evaluate-every", "300"])
    }),
    ("uneven batches", |_| noisy(&["--steps", "3000", "--uneven"])),
    ("checkpoint pauses", |fleet| {
        let folder = fleet.folder().join("quiet-checkpoints");
        let folder = folder.to_str().unwrap_or_default();
        noisy(&["--steps", "2500", "--save-every", "400", "--checkpoints", folder])
    }),
    ("a data loader with workers that start anew each epoch", |_| {
        noisy(&["--steps", "2000", "--workers", "2"])
    }),
    (
        "gradients that overflow now and then and are skipped by the scaler",
        |_| noisy(&["--steps", "2500", "--overflow-every", "150"]),
    ),
    ("a negative loss", |_| {
        noisy(&["--steps", "2500", "--target", "negative", "--uneven"])
    }),
    ("a loss that converges to nearly nothing", |_| {
        noisy(&["--steps", "3000", "--target", "line"])
    }),
    ("a rank that logs for 2 s every 25 s", |_| {
        noisy(&["--steps", "2500", "--log-every-s", "25"])
    }),
    ("epoch ends of 5 s", |_| {
        noisy(&["--steps", "2000", "--epoch-s", "5"])
    }),
    ("one rank", |_| {
        let mut spec = noisy(&["--steps", "2500", "--uneven"]);
        spec["nproc_per_node"] = json!(1);
        spec
    }),
];

/// Two ranks on one node.
fn recipe(name: &str, set: &[(&str, &str)]) -> Value {
    let set: BTreeMap<_, _> = set.iter().copied().collect();
    json!({ "recipe": name, "set": set, "nodes": 1, "nproc_per_node": 2 })
}

fn noisy(arguments: &[&str]) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/noisy.py");
    json!({ "script": script, "args": arguments, "nodes": 1, "nproc_per_node": 2 })
}

/// A run that is active or has ended recently.
struct Work {
    name: &'static str,
    run: String,
    began: Instant,
    ended: Option<Instant>,
    stopped: bool,
}

impl Work {
    fn computes(&self) -> bool {
        COMPUTING.iter().any(|(name, _)| *name == self.name)
    }
}

#[derive(Default)]
struct Row {
    runs: u32,
    minutes: f64,
    stopped: u32,
    alerts: BTreeSet<String>,
}

#[test]
#[ignore = "takes two hours: cargo xtask soak quiet"]
fn hours() {
    let minutes = std::env::var("LOCKSTEP_QUIET_MINUTES")
        .ok()
        .and_then(|text| text.parse().ok());
    let rows = watched(Duration::from_secs(60 * minutes.unwrap_or(MINUTES_DEFAULT))).unwrap();
    println!("{BEGIN}\n{}{END}", table(&rows));
    assert!(
        rows.values().all(|row| row.alerts.is_empty()),
        "see the table above"
    );
    assert!(rows.values().any(|row| row.runs > 0));
}

fn watched(time: Duration) -> Result<BTreeMap<&'static str, Row>> {
    let mut fleet = Fleet::start(false)?;
    let began = Instant::now();
    let (mut computing, mut waiting) = (COMPUTING.iter().cycle(), WAITING.iter().cycle());
    let (mut works, mut rows) = (Vec::<Work>::new(), BTreeMap::<&'static str, Row>::new());
    let mut restarted = Instant::now();
    while began.elapsed() < time || works.iter().any(|work| work.ended.is_none()) {
        while began.elapsed() < time && works.iter().filter(|work| work.ended.is_none()).count() < NODES.len()
        {
            let is_computing = works.iter().any(|work| work.ended.is_none() && work.computes());
            let kinds = if is_computing {
                &mut waiting
            } else {
                &mut computing
            };
            let (name, spec) = kinds.next().context("a cycle has no end")?;
            works.push(begin(&fleet, name, &spec(&fleet))?);
        }
        // Upgrade one agent regularly, while the runs of its node are active.
        if restarted.elapsed() > Duration::from_secs(7 * 60) {
            fleet.agent(NODES[1])?.end()?;
            fleet.start_agent(NODES[1])?;
            restarted = Instant::now();
        }
        look(&fleet, &mut works, &mut rows)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    let since = Instant::now();
    while since.elapsed() < LOOKED_AT_AFTER {
        look(&fleet, &mut works, &mut rows)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(rows)
}

fn begin(fleet: &Fleet, name: &'static str, spec: &Value) -> Result<Work> {
    let submitted = fleet.api.post("/api/runs", spec);
    let run = submitted["id"]
        .as_str()
        .with_context(|| format!("{name} was not submitted: {submitted}"))?;
    Ok(Work {
        name,
        run: run.to_owned(),
        began: Instant::now(),
        ended: None,
        stopped: false,
    })
}

/// Records alerts, stops work that takes too long, and drops runs that ended some time ago.
fn look(fleet: &Fleet, works: &mut Vec<Work>, rows: &mut BTreeMap<&'static str, Row>) -> Result<()> {
    let alerts = fleet.api.get("/api/diagnoses");
    for alert in alerts
        .as_array()
        .context("diagnoses")?
        .iter()
        .filter(|alert| alert["severity"] != "info")
    {
        let about = works
            .iter()
            .find(|work| alert["labels"]["run"] == work.run.as_str());
        let row = rows
            .entry(about.map_or("the nodes", |work| work.name))
            .or_default();
        if row.alerts.insert(format!(
            "{}: {}",
            alert["rule"].as_str().unwrap_or_default(),
            alert["summary"].as_str().unwrap_or_default()
        )) {
            println!("ALERT {alert}");
        }
    }
    for work in works.iter_mut().filter(|work| work.ended.is_none()) {
        let view = fleet.api.get(&format!("/api/runs/{}", work.run));
        let state = view["state"].as_str().unwrap_or_default();
        if ["succeeded", "failed", "stopped"].contains(&state) {
            work.ended = Some(Instant::now());
            let row = rows.entry(work.name).or_default();
            (row.runs, row.minutes) = (
                row.runs + 1,
                row.minutes + work.began.elapsed().as_secs_f64() / 60.0,
            );
            row.stopped += u32::from(work.stopped);
            anyhow::ensure!(state != "failed", "{} failed: {}", work.name, view["outcome"]);
        } else if work.began.elapsed() > STOPPED_AFTER && !work.stopped {
            fleet.api.post(
                &format!("/api/runs/{}/stop", work.run),
                &json!({ "grace_ms": 10_000 }),
            );
            work.stopped = true;
        }
    }
    works.retain(|work| work.ended.is_none_or(|ended| ended.elapsed() < LOOKED_AT_AFTER));
    Ok(())
}

fn table(rows: &BTreeMap<&'static str, Row>) -> String {
    let mut text = String::from(
        "| work | runs | minutes | stopped by a person | alerts above info |\n|---|---:|---:|---:|---|\n",
    );
    for (name, row) in rows {
        let alerts: Vec<&str> = row.alerts.iter().map(String::as_str).collect();
        let alerts = if alerts.is_empty() {
            "none".to_owned()
        } else {
            format!("**{}**", alerts.join("; "))
        };
        let _infallible = writeln!(
            text,
            "| {name} | {} | {:.1} | {} | {alerts} |",
            row.runs, row.minutes, row.stopped
        );
    }
    text
}
