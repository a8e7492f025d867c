//! `cargo xtask bench agent`: the cost of monitoring a node of eight GPUs, compared with all-smi and nvitop-exporter.
//!
//! ```text
//! for each, alone:   start ─▶ it answers ─▶ settle ─▶ a minute at 1 Hz: CPU, memory ─▶ some seconds under strace ─▶ end
//! ```
//! All read the same simulated library once per second, and are scraped as by Prometheus. Lockstep is measured twice: alone, like the
//! others, and with a collector. With a collector it also keeps every sample on disk until it is acknowledged.

mod calls;
mod cost;
mod figures;
mod watcher;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use self::cost::Cost;
use self::watcher::Watcher;
use super::chosen;
use super::report::Report;
use crate::layout::Layout;
use crate::measure::{build, machine};
use crate::progress::{block, result, say};
use crate::toolchain::{all_smi, apt, venv};

const EXAMPLES: &str = "Examples:
  cargo xtask bench agent                                     all, about six minutes; writes docs/benchmarks.md
  cargo xtask bench agent --quick --dry                       two minutes, only prints
  cargo xtask bench agent --only lockstep --no-build --dry    the release build that is there";

/// What to measure, and for how long.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Measures twenty seconds each instead of a minute. The results have their own section.
    #[arg(long)]
    quick: bool,
    /// Measures only these, and only prints.
    #[arg(long, value_enum, value_name = "PROGRAM")]
    only: Vec<Watcher>,
    /// What the library simulates.
    #[arg(long, value_name = "SPEC", default_value = "h100x8:healthy")]
    simulate: String,
    /// Measures the existing release build, whatever it was built from.
    #[arg(long)]
    no_build: bool,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// Durations of a measurement.
#[derive(Debug, Clone, Copy)]
struct Scale {
    settle: Duration,
    measured: Duration,
    traced: Duration,
}

/// Builds, measures, prints, and writes the document.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "sim-nvml"])?;
    }
    let (scale, wanted) = (options.scale(), chosen(&options.only));
    fetch(layout, &wanted)?;
    let (mut costs, mut failed) = (Vec::new(), Vec::new());
    for watcher in wanted {
        say("bench", &format!("{} begins", watcher.name()));
        match measure(layout, options, &scale, watcher) {
            Ok(cost) => costs.push((watcher, cost)),
            Err(error) => {
                block(&format!("{} failed", watcher.name()), &format!("{error:#}"));
                failed.push(watcher.name());
            }
        }
        result(&figures::table(&costs));
    }
    let report = Report {
        heading: options.heading(),
        revision,
        about: scale.about(&options.simulate),
    };
    let keep = options.only.is_empty() && !options.dry && failed.is_empty();
    report.finish_table(layout, &figures::table(&costs), &figures::notes(&costs), keep)?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches the programs. Missing ones are reported before minutes of measuring, not after.
fn fetch(layout: &Layout, wanted: &[Watcher]) -> Result<()> {
    apt::installed(layout, &apt::STRACE)?;
    for watcher in wanted {
        match watcher {
            Watcher::AllSmi => drop(all_smi::ensure(layout)?),
            Watcher::NvitopExporter => drop(venv::tool(layout, &venv::NVITOP_EXPORTER)?),
            Watcher::Lockstep | Watcher::LockstepWithCollector => {}
        }
    }
    Ok(())
}

fn measure(layout: &Layout, options: &Options, scale: &Scale, watcher: Watcher) -> Result<Cost> {
    let mut running = watcher.start(layout, &options.simulate)?;
    let cost = Cost::measure(&mut running.server, scale.settle, scale.measured)?;
    let calls = calls::per_second(layout, running.server.pid()?, scale.traced)?;
    running.server.check()?;
    Ok(Cost { calls, ..cost })
}

impl Options {
    fn scale(&self) -> Scale {
        let (measured, traced) = if self.quick { (20, 5) } else { (60, 20) };
        Scale {
            // Twice Lockstep's slow tier: all series exist, and the work at the start has ended.
            settle: Duration::from_secs(22),
            measured: Duration::from_secs(measured),
            traced: Duration::from_secs(traced),
        }
    }

    fn heading(&self) -> &'static str {
        if self.quick { "Agent, quick run" } else { "Agent" }
    }
}

impl Scale {
    fn about(&self, simulated: &str) -> String {
        format!(
            "Each program reads the same simulated library ({simulated}) once per second for {} s, one program after the other, and is scraped every {} s.",
            self.measured.as_secs(),
            cost::SCRAPE_EVERY.as_secs(),
        )
    }
}
