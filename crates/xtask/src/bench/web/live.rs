//! The age of a value when the page shows it, with 240,000 series live and 20 clients of the event stream.
//!
//! ```text
//! rank ─▶ probe ─▶ agent ─▶ collector ─┬▶ one Chromium: the cell "Step" of the run changes, and the frame with it is drawn
//!         the time of the sample       └▶ 19 clients that watch the same and read everything
//! ```
//! The run makes one step per second, and each step is a sample, so the number on the page tells which sample it shows.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::api;
use super::browser::{Browser, Script, number};
use super::figures::{Figure, Measured};
use super::fleet;
use super::node::{ManagedRun, NAME, Node};
use crate::bench::database::{Database, Retention};
use crate::bench::distribution::Distribution;
use crate::layout::Layout;
use crate::measure::generator::Fleet;
use crate::measure::process;
use crate::progress::say;

const STEP: &str = "bench-web-live";
const FLEET: Fleet = Fleet::of_nodes(1_000);
const CLIENTS: u64 = 19;
/// One sample per second: with 300 of them the 99th percentile is the third from the end.
const WATCHED_S: u64 = 300;
/// How long the CPU without clients is measured.
const ALONE: Duration = Duration::from_secs(60);
/// A step of at least one second is a sample of its own.
const STEP_MS: u64 = 1_000;
/// Two interpreters load PyTorch on busy cores.
const TRAIN_WITHIN: Duration = Duration::from_secs(180);
const LIMIT: Duration = Duration::from_secs(WATCHED_S + 180);
const PIXEL_MS_MAX: f64 = 1_500.0;

/// A step on the page or in the store, and its time in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StepTime {
    step: f64,
    at_ms: f64,
}

pub(super) fn measure(layout: &Layout, browser: &Browser) -> Result<Measured> {
    let mut collector = Database::Lockstep.start_program(layout, Retention::Default, "web-live", None)?;
    let mut fleet = fleet::start(layout, &mut collector.server, FLEET)?;
    let address = collector.server.address().clone();
    let _node = Node::start(layout, &collector.server, &format!("{STEP}-agent"))?;
    let run = ManagedRun::submit(&address, &spec())?;
    let steps = format!("train_step{{run=\"{}\",node=\"{NAME}\"}}", run.id);
    api::wait_for_value(&mut collector.server, &address, &steps, 1.0, TRAIN_WITHIN)?;

    let pid = collector.server.pid()?;
    let alone = cores_alone(pid)?;
    say(
        STEP,
        &format!("{alone:.2} cores of the collector without clients"),
    );
    let settings = json!({
        "run": run.id,
        "clients": CLIENTS,
        "seconds": WATCHED_S,
        "server_pid": pid,
    });
    let step = format!("{STEP}-browser");
    let outcome = browser.run(Script::Live, &step, &address, settings, LIMIT)?;
    fleet.check()?;
    collector.server.check()?;
    let query = format!("{steps}[{}s]", WATCHED_S + LIMIT.as_secs());
    let stored = stored(&api::query(&address, &query)?)?;
    let delays_ms = Distribution::new(delays_ms(&shown(&outcome)?, &stored));
    measured(&outcome, &delays_ms, alone)
}

fn measured(outcome: &Value, delays_ms: &Distribution, alone: f64) -> Result<Measured> {
    let seconds = number(outcome, "/seconds")?;
    let with_clients = number(outcome, "/server_cpu_s")? / seconds;
    let what = format!(
        "{} series live, {CLIENTS} stream clients and a browser: sample to pixel, p50 ms",
        FLEET.series()
    );
    Ok(Measured {
        figures: vec![
            Figure::new(what, delays_ms.median()),
            Figure::new("… p99 ms", delays_ms.quantile(0.99)).at_most(PIXEL_MS_MAX),
            Figure::new("… longest, ms", delays_ms.max()),
            Figure::new("… the collector's CPU without clients, cores", alone),
            Figure::new("… with them, cores", with_clients),
            Figure::new("… for them, cores", with_clients - alone),
        ],
        notes: vec![format!(
            "Live: {} samples of a run with one step per second, from the time of the sample until the frame that showed it or a later one \
             was drawn. The clients watch what the overview watches and read {:.1} MB per second together.",
            delays_ms.count(),
            number(outcome, "/bytes")? / seconds / 1e6
        )],
    })
}

fn spec() -> Value {
    json!({
        "name": "clock",
        "recipe": "ddp",
        "nodes": 1,
        "nproc_per_node": 1,
        "backend": "gloo",
        "stall_timeout_s": 0,
        "set": {"steps": "1000000", "step-delay-ms": STEP_MS.to_string()},
    })
}

fn cores_alone(pid: u32) -> Result<f64> {
    let before = process::cpu_s(pid)?;
    thread::sleep(ALONE);
    Ok((process::cpu_s(pid)? - before) / ALONE.as_secs_f64())
}

/// Returns when the page showed which step, in order.
fn shown(outcome: &Value) -> Result<Vec<StepTime>> {
    let all = outcome["shown"].as_array();
    let all = all.context("the browser reported no steps")?;
    let one = |pair: &Value| {
        Some(StepTime {
            step: pair[0].as_f64()?,
            at_ms: pair[1].as_f64()?,
        })
    };
    let steps: Option<Vec<StepTime>> = all.iter().map(one).collect();
    steps.context("the page showed a step that is no number")
}

/// Returns the samples of a series, in order.
fn stored(answer: &Value) -> Result<Vec<StepTime>> {
    let samples = answer.pointer("/data/result/0/values").and_then(Value::as_array);
    let samples = samples.context("the collector has no steps of the run")?;
    let one = |sample: &Value| {
        Some(StepTime {
            step: sample[1].as_str()?.parse().ok()?,
            at_ms: sample[0].as_f64()? * 1e3,
        })
    };
    let steps: Option<Vec<StepTime>> = samples.iter().map(one).collect();
    steps.context("a sample of the run is no number")
}

/// Returns the time from each sample to the first frame with its step or a later one. Samples before the first shown step and after the
/// last one are left out: the page was not watched when they were due.
fn delays_ms(shown: &[StepTime], stored: &[StepTime]) -> Vec<f64> {
    let Some(first) = shown.first() else {
        return Vec::new();
    };
    let delay = |sample: &StepTime| {
        let frame = shown.iter().find(|frame| frame.step >= sample.step)?;
        Some(frame.at_ms - sample.at_ms)
    };
    let watched = stored.iter().filter(|sample| sample.step >= first.step);
    watched.filter_map(delay).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_sample_that_was_skipped_waits_for_the_next() {
        let outcome = json!({"shown": [[7, 10_900], [8, 11_700], [10, 14_100]]});
        let sample = |step: u32| json!([f64::from(step) + 3.25, step.to_string()]);
        let samples: Vec<Value> = (5..=11).map(sample).collect();
        let answer = json!({"data": {"resultType": "matrix", "result": [{"metric": {}, "values": samples}]}});
        let delays = delays_ms(&shown(&outcome).unwrap(), &stored(&answer).unwrap());
        // Steps 7 to 10 were taken at 10,250 to 13,250 ms; step 9 was never shown.
        assert_eq!(delays, [650.0, 450.0, 1_850.0, 850.0]);
    }

    #[test]
    fn a_page_that_showed_nothing_has_no_delay() {
        let stored = [StepTime {
            step: 1.0,
            at_ms: 1.0,
        }];
        assert_eq!(delays_ms(&[], &stored), [0.0_f64; 0]);
        assert!(shown(&json!({"shown": [["–", 1]]})).is_err() && shown(&json!({})).is_err());
        assert!(super::stored(&json!({"data": {"result": []}})).is_err());
    }
}
