//! How long a collector takes from its start to being ready, on 30 days of 8,000 series at 15 s.
//!
//! The store is made through the store's own API by an example program of the `store` crate, once: 1.4 billion samples take some
//! minutes, so the folder is kept until `--fresh`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use super::report::Seen;
use super::{COLLECTOR, folder_of};
use crate::child::Child;
use crate::fingerprint;
use crate::layout::Layout;
use crate::measure::server::{Plan, Server};
use crate::measure::{build, folder};
use crate::progress::say;

/// What a start may take.
const READY_MAX: Duration = Duration::from_secs(2);
/// Starts that are timed; the first finds nothing of the folder in memory.
const STARTS: usize = 5;
/// Making the store on slow cores.
const FILL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// Longer than the data reaches back, so that no start drops any.
const RETENTION: &str = "--retention=400d";

/// How large a store.
#[derive(Args)]
pub(crate) struct Options {
    /// Series.
    #[arg(long, default_value_t = 8_000)]
    series: u64,
    /// Days.
    #[arg(long, default_value_t = 30)]
    days: u64,
    /// Seconds between two samples of a series.
    #[arg(long, default_value_t = 15)]
    step_s: u64,
    /// Makes the store anew instead of using the last one.
    #[arg(long)]
    fresh: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            series: 8_000,
            days: 30,
            step_s: 15,
            fresh: false,
        }
    }
}

/// Makes the store if need be, and times starts.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<Seen> {
    let Options {
        series, days, step_s, ..
    } = options;
    let mut seen = Seen::new(
        "start",
        format!("start --series {series} --days {days} --step-s {step_s}"),
    );
    // Both, though one would do: alone it would be built with other features than for all other measurements.
    build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    let data = filled(layout, options)?;
    let bytes = folder::bytes(&data, |_| true)?;
    let samples = series * (days * 86_400 / step_s);
    seen.note(format!(
        "{series} series, {days} days at {step_s} s: {samples} samples in {:.2} GiB, {:.2} bytes a sample with everything beside them.",
        bytes as f64 / f64::from(1 << 30),
        bytes as f64 / samples as f64
    ));
    let took = starts(layout, &data)?;
    let words: Vec<_> = took
        .iter()
        .map(|took| format!("{:.2} s", took.as_secs_f64()))
        .collect();
    let longest = took.iter().max().copied().unwrap_or(Duration::MAX);
    seen.must(
        longest <= READY_MAX,
        format!(
            "From its start to ready, first with nothing of the folder in memory: {}.",
            words.join(", ")
        ),
    );
    Ok(seen)
}

/// The folder of an earlier run that was made in the same way, else a new one.
fn filled(layout: &Layout, options: &Options) -> Result<PathBuf> {
    let name = format!("start-{}-{}-{}", options.series, options.days, options.step_s);
    let marker = folder_of(layout, &format!("{name}.made"));
    let data = folder_of(layout, &name);
    if marker.exists() && data.exists() && !options.fresh {
        say("start", &format!("uses {} of an earlier run", data.display()));
        return Ok(data);
    }
    build::release(layout, &["--package", "store", "--example", "fill"])?;
    folder::empty(&data)?;
    fs::remove_file(&marker).ok();
    say("start", "makes the store");
    Child::new(
        layout,
        "soak-fill",
        build::program(layout, "examples/fill"),
        FILL_LIMIT,
    )
    .args([data.as_os_str()])
    .args([options.series, options.days, options.step_s].map(|n| n.to_string()))
    .succeed()?;
    fs::write(&marker, "").context("cannot note that the store is made")?;
    Ok(data)
}

fn starts(layout: &Layout, data: &Path) -> Result<Vec<Duration>> {
    // The first one makes what belongs to a collector beside the store.
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

/// Asks the system to drop what it has of a folder's files in memory.
fn forget(folder: &Path) -> Result<()> {
    for file in fingerprint::files(folder, &[])? {
        let file = fs::File::open(&file).with_context(|| format!("cannot open {}", file.display()))?;
        file.sync_all().context("cannot write a file back")?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .context("cannot advise the system")?;
    }
    Ok(())
}
