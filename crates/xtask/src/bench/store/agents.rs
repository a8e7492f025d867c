//! Agents with Lockstep's own protocol, against VictoriaMetrics that gets the same samples by remote write.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::Scale;
use crate::bench::database::{Database, Retention, RunningDatabase};
use crate::bench::report::Measured;
use crate::bench::table::Row;
use crate::layout::Layout;
use crate::measure::generator::{self, CONNECTIONS, Fleet, REQUEST, damaged, number, start_ms};
use crate::measure::process;
use crate::progress::say;

/// Joining, the longest run, and draining.
const LIMIT: Duration = Duration::from_secs(3_600 + 600);
/// Number of nodes whose samples are all read back afterwards.
const NODES_VERIFIED: u64 = 10;
const VERIFY_LIMIT: Duration = Duration::from_secs(600);

/// The cost of a run for its server.
pub(crate) struct Cost {
    pub(crate) cpu_s_a_million: f64,
    pub(crate) peak_mib: f64,
    /// The output of the generator.
    pub(crate) outcome: Value,
}

pub(super) fn live(layout: &Layout, scale: &Scale) -> Result<Measured> {
    let ticks = scale.live_ticks;
    let victoria_metrics = remote_write(
        layout,
        scale,
        &[format!("--ticks={ticks}"), "--rate=1".to_owned()],
    )?;
    let args = [format!("--ticks={ticks}"), "--mode=live".to_owned()];
    let server = Database::Lockstep.start(layout, Retention::Default)?;
    let (own, whole) = by_agents(layout, scale.cluster, server, &args, ticks)?;
    let size = format!("{} series at 1 Hz for {ticks} s", scale.cluster.series());
    let ack = |pointer| number(&own.outcome, pointer);
    let rows = vec![
        cost(
            format!("live agents, {size}: CPU-s per million"),
            &victoria_metrics,
            &own,
        )
        .target(0.2),
        memory(&victoria_metrics, &own),
        Row::new("… acknowledged after, p50 ms").value(Database::Lockstep, ack("/ack/p50_ms")?),
        Row::new("… acknowledged after, p99 ms").value(Database::Lockstep, ack("/ack/p99_ms")?),
    ];
    Ok(Measured {
        rows,
        notes: vec![whole],
    })
}

/// An agent that backfills sends what its spool contains: batches of one second. Batches of one minute show the benefit of merging them.
pub(super) fn backfill(layout: &Layout, scale: &Scale) -> Result<Measured> {
    let ticks = scale.backfill_ticks;
    let victoria_metrics = remote_write(layout, scale, &[format!("--ticks={ticks}")])?;
    let mut measured = Measured::default();
    for (batch, words) in [(60, "one-minute"), (1, "one-second")] {
        let args = [
            format!("--ticks={ticks}"),
            "--mode=backfill".to_owned(),
            format!("--batch-ticks={batch}"),
        ];
        let server = Database::Lockstep.start(layout, Retention::Default)?;
        let (own, whole) = by_agents(layout, scale.cluster, server, &args, ticks)?;
        let speed = number(&own.outcome, "/samples")? / number(&own.outcome, "/seconds")? / 1e6;
        let victoria_metrics_speed = number(&victoria_metrics.outcome, "/samples")?
            / number(&victoria_metrics.outcome, "/seconds")?
            / 1e6;
        let size = format!("{:.1} M samples", (scale.cluster.series() * ticks) as f64 / 1e6);
        measured.rows.extend([
            cost(
                format!("backfill, {words} batches, {size}: CPU-s per million"),
                &victoria_metrics,
                &own,
            )
            .target(0.12),
            memory(&victoria_metrics, &own),
            Row::new("… million samples per second")
                .value(Database::VictoriaMetrics, victoria_metrics_speed)
                .value(Database::Lockstep, speed),
        ]);
        measured.notes.push(whole);
    }
    Ok(measured)
}

fn cost(what: String, victoria_metrics: &Cost, own: &Cost) -> Row {
    Row::new(what)
        .value(Database::VictoriaMetrics, victoria_metrics.cpu_s_a_million)
        .value(Database::Lockstep, own.cpu_s_a_million)
}

fn memory(victoria_metrics: &Cost, own: &Cost) -> Row {
    Row::new("… peak memory, MiB")
        .value(Database::VictoriaMetrics, victoria_metrics.peak_mib)
        .value(Database::Lockstep, own.peak_mib)
        .target(1.0)
}

/// One tick before the measurement contains every name, as the agents' definitions, which Lockstep also gets before the measurement.
fn remote_write(layout: &Layout, scale: &Scale, args: &[String]) -> Result<Cost> {
    let mut server = Database::VictoriaMetrics.start(layout, Retention::Default)?;
    say(server.name(), "sending the names of all series");
    let names = ["--ticks=1", CONNECTIONS, REQUEST].map(str::to_owned);
    generator::run(
        layout,
        &mut server.server,
        scale.cluster,
        "remote-write",
        &names,
        LIMIT,
    )?;
    process::quiet(server.server.pid()?, server.name())?;
    let args: Vec<String> = args
        .iter()
        .cloned()
        .chain([CONNECTIONS, REQUEST].map(str::to_owned))
        .collect();
    run(layout, scale.cluster, &mut server, "remote-write", &args)
}

/// Measures the cost of agents for a collector that has just started. Also reads some nodes back, because a server that loses samples is
/// not cheap; the returned sentence describes this.
pub(crate) fn by_agents(
    layout: &Layout,
    cluster: Fleet,
    mut server: RunningDatabase,
    args: &[String],
    ticks: u64,
) -> Result<(Cost, String)> {
    let cost = run(layout, cluster, &mut server, "agents", args)?;
    let missing = number(&cost.outcome, "/unacknowledged")?;
    if missing > 0.0 {
        bail!(
            "{missing} batches were not acknowledged; the last message: {}",
            cost.outcome["last_words"]
        );
    }
    let every = (cluster.nodes / NODES_VERIFIED).max(1);
    let args = [
        format!("--start-ms={}", start_ms(&cost.outcome)?),
        format!("--ticks={ticks}"),
        format!("--every={every}"),
    ];
    let found = generator::run(layout, &mut server.server, cluster, "verify", &args, VERIFY_LIMIT)?;
    let (expected, damaged) = (number(&found, "/expected")?, damaged(&found)?);
    let whole = format!(
        "lockstep, {}: of {expected} samples read back, {damaged} were lost, changed, duplicated or unknown.",
        args_in_words(&cost)
    );
    say(server.name(), &whole);
    if damaged > 0.0 {
        bail!("{whole} The first: {}", found["first"]);
    }
    Ok((cost, whole))
}

fn args_in_words(cost: &Cost) -> String {
    format!(
        "{} batches in {:.0} s",
        cost.outcome["batches"],
        cost.outcome["seconds"].as_f64().unwrap_or_default()
    )
}

fn run(
    layout: &Layout,
    cluster: Fleet,
    server: &mut RunningDatabase,
    command: &str,
    args: &[String],
) -> Result<Cost> {
    let pid = server.server.pid()?;
    say(
        server.name(),
        &format!("{command} of {} series: {}", cluster.series(), args.join(" ")),
    );
    let args: Vec<String> = args
        .iter()
        .cloned()
        .chain([format!("--server-pid={pid}")])
        .collect();
    let outcome = generator::run(layout, &mut server.server, cluster, command, &args, LIMIT)?;
    let refused = number(&outcome, "/refused")?;
    if refused > 0.0 {
        bail!("{} refused {refused} requests: {outcome}", server.name());
    }
    let quiet_cpu_s = process::quiet(pid, server.name())?;
    let millions = number(&outcome, "/samples")? / 1e6;
    let cost = Cost {
        cpu_s_a_million: (quiet_cpu_s - number(&outcome, "/server_cpu_s/0")?) / millions,
        peak_mib: process::peak_mib(pid)?,
        outcome,
    };
    say(
        server.name(),
        &format!(
            "{:.3} CPU-s per million ({:.3} of the generator), {:.0} MiB",
            cost.cpu_s_a_million,
            number(&cost.outcome, "/cpu_s")? / millions,
            cost.peak_mib
        ),
    );
    Ok(cost)
}
