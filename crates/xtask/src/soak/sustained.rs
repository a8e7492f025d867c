//! A thousand nodes × 8 GPUs × 30 metrics at 1 Hz for ten minutes, with the generator on the same machine; then the same with the collector
//! killed twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde_json::Value;

use super::report::PartReport;
use super::{COLLECTOR, folder_of};
use crate::layout::Layout;
use crate::measure::generator::{self, Fleet, Generator, damaged, number, start_ms};
use crate::measure::server::{Plan, Server};
use crate::measure::{build, folder, machine, process};
use crate::progress::say;

/// Maximum of the 99th percentile of the time until a batch is acknowledged.
const ACK_P99_MS_MAX: f64 = 1_000.0;
/// Maximum change of memory from the third of ten measurements on.
const RESIDENT_SPREAD_MAX: f64 = 1.10;
/// Number of memory measurements per run: one per minute in the long run.
const MEMORY_SAMPLES: u32 = 10;
/// After a restart all agents are back within this time, although they have the same address.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Joining, sending and draining, besides the ticks themselves.
const SEND_SLACK: Duration = Duration::from_secs(10 * 60);
/// Reading 144 million samples back as JSON.
const VERIFY_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// The size and length of the runs.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    fleet: Fleet,
    /// Seconds at 1 Hz.
    #[arg(long, default_value_t = 600)]
    ticks: u64,
    /// Reads back one of N nodes.
    #[arg(long, default_value_t = 1)]
    every: u64,
}

/// Runs both runs.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let Options { fleet, ticks, every } = options;
    let command = format!(
        "sustained {} --ticks {ticks} --every {every}",
        fleet.to_arguments()
    );
    let mut report = PartReport::new("sustained", command);
    build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    for kills in [0, 2] {
        send_and_verify(layout, options, kills, &mut report)?;
    }
    Ok(report)
}

fn send_and_verify(layout: &Layout, options: &Options, kills: u32, report: &mut PartReport) -> Result<()> {
    let Options { fleet, ticks, every } = options;
    let data = folder_of(layout, "sustained");
    folder::empty(&data)?;
    let mut collector = Server::start(layout, Plan::collector(layout, COLLECTOR, &data, &[])?)?;
    say(
        "sustained",
        &format!("{} series for {ticks} s, {kills} kills", fleet.series()),
    );
    let (outcome, watched) = send(layout, options, &mut collector, kills)?;
    collector.check()?;
    note_sent(report, options, kills, &outcome, &watched)?;
    let args = [
        format!("--start-ms={}", start_ms(&outcome)?),
        format!("--ticks={ticks}"),
        format!("--every={every}"),
    ];
    let found = generator::run(layout, &mut collector, *fleet, "verify", &args, VERIFY_LIMIT)?;
    let (expected, damaged) = (number(&found, "/expected")?, damaged(&found)?);
    let verdict = format!("{expected} samples read back: {damaged} lost, changed, duplicated or unknown.");
    report.check(expected > 0.0 && damaged == 0.0, verdict);
    if damaged > 0.0 {
        report.note(format!("The first: {}", found["first"]));
    }
    drop(collector);
    std::fs::remove_dir_all(data).ok();
    Ok(())
}

/// The results while the generator ran.
#[derive(Default)]
struct Watched {
    resident_mib: Vec<f64>,
    restarts: Vec<Duration>,
    /// Times from a start of the collector until all agents were connected again.
    returns: Vec<Duration>,
}

fn send(layout: &Layout, options: &Options, collector: &mut Server, kills: u32) -> Result<(Value, Watched)> {
    let args = [format!("--ticks={}", options.ticks), "--mode=live".to_owned()];
    let lasts = Duration::from_secs(options.ticks);
    let generator = Generator::new(
        layout,
        collector,
        options.fleet,
        "agents",
        &args,
        lasts + SEND_SLACK,
    )?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let outcome = generator.run();
            ended.store(true, Ordering::Release);
            outcome
        });
        let watched = watch(collector, options, kills, &ended);
        let outcome = sending
            .join()
            .map_err(|_| anyhow!("the generator's thread panicked"))??;
        Ok((outcome, watched?))
    })
}

/// Measures the collector's memory ten times, and kills it at equal intervals.
fn watch(collector: &mut Server, options: &Options, kills: u32, ended: &AtomicBool) -> Result<Watched> {
    let lasts = Duration::from_secs(options.ticks);
    let mut watched = Watched::default();
    let began = Instant::now();
    let mut samples = 0;
    let mut killed = 0;
    while !ended.load(Ordering::Acquire) {
        collector.check()?;
        if samples < MEMORY_SAMPLES && began.elapsed() >= lasts * (samples + 1) / MEMORY_SAMPLES {
            samples += 1;
            let resident = process::resident_mib(collector.pid()?)?;
            watched.resident_mib.push(resident);
            say("sustained", &format!("{resident:.0} MiB resident"));
        }
        if killed < kills && began.elapsed() >= lasts * (killed + 1) / (kills + 1) {
            killed += 1;
            collector.kill();
            let killed_ms = machine::now_ms();
            let ready = collector.start_again()?;
            watched.restarts.push(ready);
            let back = wait_reconnected(collector, options.fleet.nodes, killed_ms, ended)?;
            watched.returns.push(ready + back);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(watched)
}

/// Waits until all agents have connected since a time, up to a limit slightly above the accepted time.
fn wait_reconnected(
    collector: &mut Server,
    nodes: u64,
    since_ms: i64,
    ended: &AtomicBool,
) -> Result<Duration> {
    let began = Instant::now();
    while began.elapsed() < 2 * BACK_WITHIN && !ended.load(Ordering::Acquire) {
        collector.check()?;
        if connected_since(collector, since_ms)? == nodes {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(began.elapsed())
}

/// Returns the number of nodes that have sent something since a time.
fn connected_since(collector: &Server, since_ms: i64) -> Result<u64> {
    let path = "/api/nodes";
    let page = collector.address().get(path)?.success(path)?;
    let nodes: Vec<Value> = serde_json::from_str(&page).context("the response is not a list of nodes")?;
    let has_sent = |node: &&Value| node["seen_ms"].as_i64().is_some_and(|seen_ms| seen_ms > since_ms);
    Ok(nodes.iter().filter(has_sent).count() as u64)
}

fn note_sent(
    report: &mut PartReport,
    options: &Options,
    kills: u32,
    outcome: &Value,
    watched: &Watched,
) -> Result<()> {
    let what = |pointer| number(outcome, pointer);
    let (refused, unacknowledged) = (what("/refused")?, what("/unacknowledged")?);
    let times = if kills == 0 {
        String::new()
    } else {
        format!(" with {kills} kills of the collector")
    };
    report.check(
        refused + unacknowledged == 0.0,
        format!(
            "{} series at 1 Hz for {} s{times}: {} samples acknowledged, {refused} batches refused, {unacknowledged} not acknowledged, {} reconnects.",
            options.fleet.series(),
            options.ticks,
            what("/samples")?,
            what("/reconnects")?
        ),
    );
    let latencies = format!(
        "Acknowledgement p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; generator {:.0} CPU seconds.",
        what("/ack/p50_ms")?,
        what("/ack/p99_ms")?,
        what("/ack/max_ms")?,
        what("/cpu_s")?
    );
    let mib: Vec<_> = watched
        .resident_mib
        .iter()
        .map(|mib| format!("{mib:.0}"))
        .collect();
    let resident = format!("Resident MiB at each tenth of the time: {}.", mib.join(", "));
    if kills > 0 {
        let took: Vec<_> = watched
            .restarts
            .iter()
            .map(|took| format!("{:.2} s", took.as_secs_f64()))
            .collect();
        report.check(
            watched.restarts.len() == kills as usize,
            format!("Ready again after {}.", took.join(" and ")),
        );
        let back: Vec<_> = watched
            .returns
            .iter()
            .map(|took| format!("{:.1} s", took.as_secs_f64()))
            .collect();
        report.check(
            watched.returns.iter().all(|took| *took <= BACK_WITHIN),
            format!(
                "All agents, behind one address, are connected again {} after the start; the collector told them {} times to retry later.",
                back.join(" and "),
                what("/busy")?
            ),
        );
        report.note(latencies);
        report.note(resident);
        return Ok(());
    }
    report.check(what("/ack/p99_ms")? <= ACK_P99_MS_MAX, latencies);
    report.check(is_steady(&watched.resident_mib), resident);
    Ok(())
}

/// Returns true if memory stays within a tenth from the third measurement on.
fn is_steady(resident_mib: &[f64]) -> bool {
    let steady = resident_mib.get(2..).unwrap_or_default();
    let (least, most) = steady
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), mib| {
            (least.min(*mib), most.max(*mib))
        });
    !steady.is_empty() && most <= least * RESIDENT_SPREAD_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_steady_when_it_changes_by_a_tenth_at_most() {
        assert!(is_steady(&[10.0, 300.0, 500.0, 549.0, 520.0]));
        assert!(!is_steady(&[10.0, 300.0, 500.0, 551.0]));
        assert!(!is_steady(&[10.0, 300.0]), "too few samples to tell");
    }
}
