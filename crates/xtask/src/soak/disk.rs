//! A data folder on a small file system that fills up while agents send. Ingest stops and is reported, queries continue, and ingest resumes
//! by itself when there is space. No acknowledged sample is lost.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;

use super::report::PartReport;
use super::{COLLECTOR, folder_of};
use crate::child;
use crate::layout::Layout;
use crate::measure::generator::{self, Fleet, Generator, damaged, number, start_ms};
use crate::measure::server::{Plan, Server};
use crate::measure::{build, folder};
use crate::progress::say;

/// The text of `/-/ready` while samples are refused.
const BLOCKED: &str = "accepts no samples";
/// The metric at that time.
const BLOCKED_METRIC: &str = "lockstep_store_ingest_blocked{reason=\"disk_full\"} 1";
/// How long the collector may take to notice a full disk, or a freed one; the timeouts of its senders are similar.
const NOTICE_WITHIN: Duration = Duration::from_secs(90);
/// How long the disk stays full: long enough for every agent to be refused.
const FULL_FOR: Duration = Duration::from_secs(10);
/// How long samples are sent before the disk fills up, in ticks.
const TICKS_BEFORE: u64 = 10;
const VERIFY_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The size of the test.
#[derive(Args)]
pub(crate) struct Options {
    /// Size of the file system.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Number of nodes that send, with 8 GPUs × 30 metrics each.
    #[arg(long, default_value_t = 20)]
    nodes: u64,
    /// Seconds at 1 Hz.
    #[arg(long, default_value_t = 90)]
    ticks: u64,
}

/// Fills the disk of a collector, and frees it.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let Options { mib, nodes, ticks } = options;
    let mut report = PartReport::new(
        "disk",
        format!("disk --mib {mib} --nodes {nodes} --ticks {ticks}"),
    );
    let disk = SmallDisk::mount(layout, *mib)?;
    build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    let mut collector = Server::start(layout, Plan::collector(layout, COLLECTOR, &disk.data(), &[])?)?;
    let fleet = Fleet::of_nodes(*nodes).with_exporter_names();
    let args = [format!("--ticks={ticks}"), "--mode=live".to_owned()];
    let limit = Duration::from_secs(*ticks) + VERIFY_LIMIT;
    let generator = Generator::new(layout, &collector, fleet, "agents", &args, limit)?;
    let outcome = thread::scope(|scope| {
        let sending = scope.spawn(|| generator.run());
        let filled = fill_and_free(&collector, &disk, &mut report);
        // Whatever happened, the generator can end only when there is space.
        disk.free();
        filled?;
        sending
            .join()
            .map_err(|_| anyhow!("the generator's thread panicked"))?
    })?;
    collector.check()?;
    let (refused, left) = (
        number(&outcome, "/refused")?,
        number(&outcome, "/unacknowledged")?,
    );
    report.check(
        left == 0.0,
        format!(
            "{} samples acknowledged in total, {left} batches not acknowledged; {refused} batches refused and sent again.",
            number(&outcome, "/samples")?
        ),
    );
    let args = [
        format!("--start-ms={}", start_ms(&outcome)?),
        format!("--ticks={ticks}"),
    ];
    let found = generator::run(layout, &mut collector, fleet, "verify", &args, VERIFY_LIMIT)?;
    let (expected, damaged) = (number(&found, "/expected")?, damaged(&found)?);
    report.check(
        expected > 0.0 && damaged == 0.0,
        format!("{expected} samples read back: {damaged} lost, changed, duplicated or unknown."),
    );
    drop(collector);
    Ok(report)
}

fn fill_and_free(collector: &Server, disk: &SmallDisk, report: &mut PartReport) -> Result<()> {
    thread::sleep(Duration::from_secs(TICKS_BEFORE));
    disk.fill()?;
    let took = until(|| is_blocked(collector))?;
    report.check(
        took.is_some(),
        match took {
            Some(took) => format!(
                "/-/ready reports the full disk after {:.1} s.",
                took.as_secs_f64()
            ),
            None => format!(
                "/-/ready does not report the full disk within {} s.",
                NOTICE_WITHIN.as_secs()
            ),
        },
    );
    let metrics = collector.address().get("/metrics")?.body;
    report.check(
        metrics.contains(BLOCKED_METRIC),
        format!("/metrics has `{BLOCKED_METRIC}`."),
    );
    let answer = collector
        .address()
        .get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")?;
    let answered = answer.status == 200 && answer.body.contains("\"value\"");
    report.check(answered, "A query is answered while the disk is full.");
    thread::sleep(FULL_FOR);
    disk.free();
    let took = until(|| Ok(!is_blocked(collector)?))?;
    report.check(
        took.is_some(),
        match took {
            Some(took) => format!(
                "After space was freed, it accepts samples within {:.1} s.",
                took.as_secs_f64()
            ),
            None => format!(
                "After space was freed, it accepts no samples within {} s.",
                NOTICE_WITHIN.as_secs()
            ),
        },
    );
    Ok(())
}

fn is_blocked(collector: &Server) -> Result<bool> {
    Ok(collector.address().get("/-/ready")?.body.contains(BLOCKED))
}

/// Waits for a condition. Returns how long it took, or `None` after the limit.
fn until(condition: impl Fn() -> Result<bool>) -> Result<Option<Duration>> {
    let began = Instant::now();
    while began.elapsed() < NOTICE_WITHIN {
        if condition()? {
            return Ok(Some(began.elapsed()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(None)
}

/// A small file system in memory, removed on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(layout: &Layout, mib: u64) -> Result<Self> {
        let folder = folder_of(layout, "disk");
        folder::empty(&folder)?;
        let size = format!("size={mib}m");
        child::output(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
                .arg(&folder),
        )
        .context(
            "cannot mount a file system to fill; run this as root, outside a container that forbids mounts",
        )?;
        say("disk", &format!("{mib} MiB at {}", folder.display()));
        Ok(Self(folder))
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Writes until the file system is full.
    fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler()).context("cannot make the file that fills the disk")?;
        let mut piece = vec![0_u8; 1 << 20];
        loop {
            match file.write(&piece) {
                Ok(0) => bail!("cannot write to the disk, and it reports no error"),
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
        // Already free if the file does not exist.
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
