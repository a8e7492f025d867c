//! `cargo xtask bench store`: the cost of the series store, compared with Prometheus and VictoriaMetrics.
//!
//! ```text
//! for each server:   remote write ─▶ quiet ─▶ merge ─▶ quiet ─▶ disk ─▶ reads (same shapes, answers compared first)
//! live, backfill:    VictoriaMetrics by remote write, Lockstep by its agents' protocol, the same samples
//! restart:           the last five minutes of samples, kill -9, seconds until a query returns every series again
//! ```
//! Costs are CPU seconds of the server's process, read from /proc from the first request until the server is quiet again. They are valid on
//! a busy machine, on which latencies are not.

pub(super) mod agents;
mod ingest;
mod restart;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::chosen;
use super::report::{Measured, Report};
use super::table;
use crate::layout::Layout;
use crate::measure::generator::Fleet;
use crate::measure::{build, machine};
use crate::progress::{block, result, say};
use crate::toolchain::apt;

/// The collector accepts samples that are up to 70 minutes late, so it would refuse a longer history.
const TICKS_MAX: u64 = 4_100;

/// What to measure, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Takes a few minutes: less data, shorter runs. The results have their own section.
    #[arg(long)]
    quick: bool,
    /// Measures only these parts, and only prints.
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Ticks (seconds of data) of the remote-write part; a full run has 3,600, which is 27.6 M samples.
    #[arg(long, value_parser = clap::value_parser!(u64).range(90..=TICKS_MAX))]
    ticks: Option<u64>,
    /// Seconds of the live part; a full run has 120.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=3_600))]
    duration: Option<u64>,
    /// Nodes of 8 GPUs × 30 metrics in the live and backfill parts.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    nodes: u64,
    /// Measures the existing release build, whatever it was built from; the table says so.
    #[arg(long)]
    no_build: bool,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// One part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// CPU, memory and disk by remote write, for all three servers.
    RemoteWrite,
    /// Query latencies by shape, on the data of remote write (implies it).
    Reads,
    /// Agents with one batch per second.
    Live,
    /// Agents that backfill.
    Backfill,
    /// Start-up after kill -9.
    Restart,
}

/// The sizes of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Remote write, reads and restart.
    pub(crate) fleet: Fleet,
    pub(crate) ticks: u64,
    pub(crate) repeats: u64,
    /// Live and backfill.
    pub(crate) cluster: Fleet,
    pub(crate) live_ticks: u64,
    pub(crate) backfill_ticks: u64,
    pub(crate) restart_ticks: u64,
}

/// Builds, measures, prints, and writes the document.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let scale = options.scale();
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    }
    // Missing programs are reported before an hour of measuring, not after.
    apt::unpacked(layout, &apt::PROMETHEUS)?;
    apt::unpacked(layout, &apt::VICTORIA_METRICS)?;
    let (mut all, mut failed) = (Measured::default(), Vec::new());
    for part in options.parts() {
        say("bench", &format!("{part:?} begins"));
        match measure(layout, &scale, part) {
            Ok(measured) => {
                result(&table::render(&measured.rows));
                all.add(measured);
            }
            Err(error) => {
                block(&format!("{part:?} failed"), &format!("{error:#}"));
                all.notes.push(format!("{part:?} failed: {error:#}"));
                failed.push(part);
            }
        }
    }
    let report = Report {
        heading: options.heading(),
        revision,
        about: about(&scale),
    };
    report.finish(layout, &all, options.only.is_empty() && !options.dry)?;
    if !failed.is_empty() {
        bail!("failed: {failed:?}");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(layout: &Layout, scale: &Scale, part: Part) -> Result<Measured> {
    match part {
        Part::RemoteWrite => ingest::measure(layout, scale, false),
        Part::Reads => ingest::measure(layout, scale, true),
        Part::Live => agents::live(layout, scale),
        Part::Backfill => agents::backfill(layout, scale),
        Part::Restart => restart::measure(layout, scale),
    }
}

impl Options {
    /// Returns the parts to run. Reads are measured on the data of remote write, so both are one part unless only remote write was
    /// requested.
    fn parts(&self) -> Vec<Part> {
        let mut parts = chosen(&self.only);
        if parts.contains(&Part::Reads) {
            parts.retain(|part| *part != Part::RemoteWrite);
        }
        parts
    }

    fn scale(&self) -> Scale {
        let (ticks, live_ticks, backfill_ticks, repeats) = if self.quick {
            (900, 60, 120, 50)
        } else {
            (3_600, 120, 600, 100)
        };
        Scale {
            fleet: Fleet::of_nodes(32).with_exporter_names(),
            ticks: self.ticks.unwrap_or(ticks),
            repeats,
            cluster: Fleet::of_nodes(self.nodes).with_exporter_names(),
            live_ticks: self.duration.unwrap_or(live_ticks),
            backfill_ticks,
            restart_ticks: 300,
        }
    }

    fn heading(&self) -> &'static str {
        if self.quick {
            "Series store, quick run"
        } else {
            "Series store"
        }
    }
}

fn about(scale: &Scale) -> String {
    format!(
        "Remote write: {} series × {} ticks of 1 s. Agents: {} nodes × {} series, live for {} s, backfill of {} s. Each server runs \
         alone with the generator.",
        scale.fleet.series(),
        scale.ticks,
        scale.cluster.nodes,
        scale.cluster.gpus * scale.cluster.metrics,
        scale.live_ticks,
        scale.backfill_ticks,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[Part]) -> Options {
        Options {
            quick: true,
            only: only.to_vec(),
            ticks: None,
            duration: None,
            nodes: 1_000,
            no_build: false,
            dry: false,
        }
    }

    #[test]
    fn reads_bring_their_own_remote_write() {
        assert_eq!(
            options(&[]).parts(),
            [Part::Reads, Part::Live, Part::Backfill, Part::Restart]
        );
        assert_eq!(options(&[Part::RemoteWrite]).parts(), [Part::RemoteWrite]);
        assert_eq!(options(&[Part::Reads, Part::RemoteWrite]).parts(), [Part::Reads]);
    }
}
