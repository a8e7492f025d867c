//! The time from the start of a collector until it is ready, on 30 days of 8,000 series at 15 s.
//!
//! An example program of the `store` crate creates the store with the store's own API. 1.4 billion samples take some minutes, so the folder
//! is reused unless `--fresh` is given.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use super::report::PartReport;
use super::{COLLECTOR, folder_of};
use crate::child::Child;
use crate::fingerprint;
use crate::layout::Layout;
use crate::measure::server::{Plan, Server};
use crate::measure::{build, folder};
use crate::progress::say;

/// The longest accepted start.
const READY_MAX: Duration = Duration::from_secs(2);
/// Number of timed starts; at the first one no file of the folder is in memory.
const STARTS: usize = 5;
/// Creating the store on slow cores.
const FILL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// Longer than the age of the data, so that no start drops any.
const RETENTION: &str = "--retention=400d";

/// The size of the store.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of series.
    #[arg(long, default_value_t = 8_000)]
    series: u64,
    /// Number of days.
    #[arg(long, default_value_t = 30)]
    days: u64,
    /// Seconds between two samples of a series.
    #[arg(long, default_value_t = 15)]
    step_s: u64,
    /// Creates the store again instead of using the last one.
    #[arg(long)]
    fresh: bool,
}

/// Creates the store if needed, and times starts.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let Options {
        series, days, step_s, ..
    } = options;
    let mut report = PartReport::new(
        "start",
        format!("start --series {series} --days {days} --step-s {step_s}"),
    );
    // Both packages, although one is enough: alone it would be built with other features than for all other measurements.
    build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    let data = filled(layout, options)?;
    let bytes = folder::bytes(&data, |_| true)?;
    let samples = series * (days * 86_400 / step_s);
    report.note(format!(
        "{series} series, {days} days at {step_s} s: {samples} samples in {:.2} GiB, {:.2} bytes per sample with all other files.",
        bytes as f64 / f64::from(1 << 30),
        bytes as f64 / samples as f64
    ));
    let took = starts(layout, &data)?;
    let words: Vec<_> = took
        .iter()
        .map(|took| format!("{:.2} s", took.as_secs_f64()))
        .collect();
    let longest = took.iter().max().copied().unwrap_or(Duration::MAX);
    report.check(
        longest <= READY_MAX,
        format!(
            "From start to ready, at the first start without cached pages of the folder: {}.",
            words.join(", ")
        ),
    );
    Ok(report)
}

/// Returns the folder of an earlier run with the same options, else a new one.
fn filled(layout: &Layout, options: &Options) -> Result<PathBuf> {
    let name = format!("start-{}-{}-{}", options.series, options.days, options.step_s);
    let marker = folder_of(layout, &format!("{name}.made"));
    let data = folder_of(layout, &name);
    if marker.exists() && data.exists() && !options.fresh {
        say("start", &format!("using {} of an earlier run", data.display()));
        return Ok(data);
    }
    build::release(layout, &["--package", "store", "--example", "fill"])?;
    folder::empty(&data)?;
    fs::remove_file(&marker).ok();
    say("start", "creating the store");
    Child::new(
        layout,
        "soak-fill",
        build::program(layout, "examples/fill"),
        FILL_LIMIT,
    )
    .args([data.as_os_str()])
    .args([options.series, options.days, options.step_s].map(|n| n.to_string()))
    .succeed()?;
    fs::write(&marker, "").context("cannot mark the store as complete")?;
    Ok(data)
}

fn starts(layout: &Layout, data: &Path) -> Result<Vec<Duration>> {
    // The first collector creates its own files beside the store.
    drop(collector(layout, data)?);
    forget(data)?;
    let mut took = Vec::new();
    for _ in 0..STARTS {
        let mut collector = collector(layout, data)?;
        took.push(collector.first_start());
        say(
            "start",
            &format!("ready after {:.2} s", collector.first_start().as_secs_f64()),
        );
        collector.check()?;
    }
    Ok(took)
}

fn collector(layout: &Layout, data: &Path) -> Result<Server> {
    Server::start(layout, Plan::collector(layout, COLLECTOR, data, &[RETENTION])?)
}

/// Requests the system to drop a folder's files from memory.
fn forget(folder: &Path) -> Result<()> {
    for file in fingerprint::files(folder, &[])? {
        let file = fs::File::open(&file).with_context(|| format!("cannot open {}", file.display()))?;
        file.sync_all().context("cannot write a file back")?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .context("cannot drop cached pages")?;
    }
    Ok(())
}
