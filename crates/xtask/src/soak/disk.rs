//! A data folder on a small file system that fills up while agents send: ingest stops and says so, queries go on, and with the
//! space all comes back by itself, with nothing lost that was acknowledged.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;

use super::report::Seen;
use super::{COLLECTOR, folder_of};
use crate::child;
use crate::layout::Layout;
use crate::measure::generator::{self, Fleet, Generator, damaged, number, start_ms};
use crate::measure::server::{Plan, Server};
use crate::measure::{build, folder};
use crate::progress::say;

/// What `/-/ready` says while samples are refused.
const BLOCKED: &str = "takes no samples";
/// What the metrics say then.
const BLOCKED_METRIC: &str = "lockstep_store_ingest_blocked{reason=\"disk_full\"} 1";
/// How long the collector may take to notice a full disk, or a freed one; its senders' patience is of that size.
const NOTICE_WITHIN: Duration = Duration::from_secs(90);
/// How long the disk stays full: long enough for every agent to be refused.
const FULL_FOR: Duration = Duration::from_secs(10);
/// How long samples are sent before the disk fills up, in ticks.
const TICKS_BEFORE: u64 = 10;
const VERIFY_LIMIT: Duration = Duration::from_secs(10 * 60);

/// How large.
#[derive(Args)]
pub(crate) struct Options {
    /// Size of the file system.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Nodes that send, of 8 GPUs × 30 metrics.
    #[arg(long, default_value_t = 20)]
    nodes: u64,
    /// Seconds at 1 Hz.
    #[arg(long, default_value_t = 90)]
    ticks: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mib: 256,
            nodes: 20,
            ticks: 90,
        }
    }
}

/// Fills a disk under a collector, and frees it.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<Seen> {
    let Options { mib, nodes, ticks } = options;
    let mut seen = Seen::new(
        "disk",
        format!("disk --mib {mib} --nodes {nodes} --ticks {ticks}"),
    );
    let disk = SmallDisk::mount(layout, *mib)?;
    build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    let mut collector = Server::start(layout, Plan::collector(layout, COLLECTOR, &disk.data(), &[])?)?;
    let fleet = Fleet::of_nodes(*nodes);
    let args = [format!("--ticks={ticks}"), "--mode=live".to_owned()];
    let limit = Duration::from_secs(*ticks) + VERIFY_LIMIT;
    let generator = Generator::new(layout, &collector, fleet, "agents", &args, limit)?;
    let outcome = thread::scope(|scope| {
        let sending = scope.spawn(|| generator.run());
        let seen = fill_and_free(&collector, &disk, &mut seen);
        // Whatever happened, the generator can only end when there is room.
        disk.free();
        seen?;
        sending
            .join()
            .map_err(|_| anyhow!("the generator's thread panicked"))?
    })?;
    collector.check()?;
    let (refused, left) = (
        number(&outcome, "/refused")?,
        number(&outcome, "/unacknowledged")?,
    );
    seen.must(
        left == 0.0,
        format!(
            "{} samples acknowledged in the end, {left} batches never; {refused} refused meanwhile and sent again.",
            number(&outcome, "/samples")?
        ),
    );
    let args = [
        format!("--start-ms={}", start_ms(&outcome)?),
        format!("--ticks={ticks}"),
    ];
    let found = generator::run(layout, &mut collector, fleet, "verify", &args, VERIFY_LIMIT)?;
    let (expected, damaged) = (number(&found, "/expected")?, damaged(&found)?);
    seen.must(
        expected > 0.0 && damaged == 0.0,
        format!("{expected} samples read back: {damaged} lost, changed, doubled or strange."),
    );
    drop(collector);
    Ok(seen)
}

fn fill_and_free(collector: &Server, disk: &SmallDisk, seen: &mut Seen) -> Result<()> {
    thread::sleep(Duration::from_secs(TICKS_BEFORE));
    disk.fill()?;
    let took = until(|| is_blocked(collector))?;
    seen.must(
        took.is_some(),
        match took {
            Some(took) => format!(
                "With the disk full, /-/ready says so after {:.1} s.",
                took.as_secs_f64()
            ),
            None => format!(
                "{} s after the disk was full, /-/ready does not say so.",
                NOTICE_WITHIN.as_secs()
            ),
        },
    );
    let metrics = collector.address().get("/metrics")?.body;
    seen.must(
        metrics.contains(BLOCKED_METRIC),
        format!("/metrics has `{BLOCKED_METRIC}`."),
    );
    let answer = collector
        .address()
        .get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")?;
    let answered = answer.status == 200 && answer.body.contains("\"value\"");
    seen.must(answered, "A query is answered meanwhile.");
    thread::sleep(FULL_FOR);
    disk.free();
    let took = until(|| Ok(!is_blocked(collector)?))?;
    seen.must(
        took.is_some(),
        match took {
            Some(took) => format!(
                "With space again, it takes samples after {:.1} s.",
                took.as_secs_f64()
            ),
            None => format!(
                "{} s after there was space again, it still takes no samples.",
                NOTICE_WITHIN.as_secs()
            ),
        },
    );
    Ok(())
}

fn is_blocked(collector: &Server) -> Result<bool> {
    Ok(collector.address().get("/-/ready")?.body.contains(BLOCKED))
}

/// Waits for a condition; how long it took, or nothing when it did not come.
fn until(is_so: impl Fn() -> Result<bool>) -> Result<Option<Duration>> {
    let began = Instant::now();
    while began.elapsed() < NOTICE_WITHIN {
        if is_so()? {
            return Ok(Some(began.elapsed()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(None)
}

/// A small file system in memory, gone at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(layout: &Layout, mib: u64) -> Result<Self> {
        let folder = folder_of(layout, "disk");
        folder::empty(&folder)?;
        let size = format!("size={mib}m");
        child::output(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder))
            .context("no file system can be mounted here, so no disk can be filled; run this as root, outside a container that forbids it")?;
        say("disk", &format!("{mib} MiB at {}", folder.display()));
        Ok(Self(folder))
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Writes until nothing more goes in.
    fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler()).context("cannot make the file that fills the disk")?;
        let mut piece = vec![0_u8; 1 << 20];
        loop {
            match file.write(&piece) {
                Ok(0) => bail!("the disk takes nothing and does not say why"),
                Ok(_) => {}
                // The last megabyte in smaller pieces.
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull && piece.len() > 4_096 => {
                    piece.truncate(piece.len() / 2);
                }
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("cannot fill the disk"),
            }
        }
    }

    fn free(&self) {
        // Free already when it is not there.
        fs::remove_file(self.filler()).ok();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = child::output(Command::new("umount").arg("--lazy").arg::<&Path>(&self.0)) {
            say("disk", &format!("{} stays mounted: {error:#}", self.0.display()));
        }
    }
}
