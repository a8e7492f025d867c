//! Remote write to each server in turn, then the merge, the disk, and the reads.

use std::time::Duration;

use anyhow::{Result, bail};

use super::Scale;
use crate::bench::database::{Database, Retention, RunningDatabase};
use crate::bench::report::Measured;
use crate::bench::table::Row;
use crate::layout::Layout;
use crate::measure::generator::{self, CONNECTIONS, REQUEST, number, start_ms};
use crate::measure::{folder, process};
use crate::progress::say;

/// The slowest of the three servers took 130 s for the full run's 27.6 M samples on two cores.
const FEED_LIMIT: Duration = Duration::from_secs(1_800);
const READ_LIMIT: Duration = Duration::from_secs(600);
/// The name in `loadgen`, and the text of a row.
const SHAPES: [(&str, &str); 5] = [
    ("metric", "1 metric × all GPUs, 15 s step"),
    ("gpu", "1 GPU × all metrics, 15 s step"),
    ("series", "1 series, 1 s step"),
    ("raw-series", "1 series, all samples"),
    ("raw-gpu", "1 GPU × all metrics, all samples"),
];

/// The results of one server.
struct IngestResult {
    start_ms: i64,
    samples: f64,
    seconds: f64,
    feed_cpu_s: f64,
    feed_peak_mib: f64,
    merge_cpu_s: f64,
    merge: &'static str,
    peak_mib: f64,
    disk_bytes: f64,
    write_ahead_bytes: f64,
}

pub(super) fn measure(layout: &Layout, scale: &Scale, reads: bool) -> Result<Measured> {
    let mut rows = rows(scale);
    let (mut shapes, mut notes) = (Reads::new(scale), Vec::new());
    for database in Database::ALL {
        let mut server = database.start(layout, Retention::Default)?;
        let ingested = feed(layout, scale, &mut server)?;
        notes.push(format!("{}: merge = {}.", database.name(), ingested.merge));
        for (row, value) in rows.iter_mut().zip(ingested.figures()) {
            row.values.insert(database, value);
        }
        if reads {
            shapes.read(layout, scale, &mut server, ingested.start_ms)?;
        }
    }
    rows.extend(shapes.rows);
    notes.extend(shapes.notes);
    notes.push("Remote write: 4 connections, 10,000 samples per request, one sample per series, as vmagent sends on two cores.".to_owned());
    notes.push(
        "Bytes per sample: disk blocks of all files in the data folder; for Prometheus, of the snapshot."
            .to_owned(),
    );
    Ok(Measured { rows, notes })
}

fn rows(scale: &Scale) -> Vec<Row> {
    let size = format!(
        "{:.1} M samples",
        (scale.fleet.series() * scale.ticks) as f64 / 1e6
    );
    vec![
        Row::new(format!("remote write, {size}: CPU-s per million")).target(0.33),
        Row::new("… with the merge: CPU-s per million"),
        Row::new("… million samples per second, at full speed"),
        Row::new("… peak memory while feeding, MiB").target(1.0),
        Row::new("… peak memory with the merge, MiB"),
        Row::new("… bytes per sample after the merge").target(0.95),
        Row::new("… of which write-ahead"),
    ]
}

impl IngestResult {
    /// In the order of [`rows`].
    fn figures(&self) -> [f64; 7] {
        let millions = self.samples / 1e6;
        [
            self.feed_cpu_s / millions,
            (self.feed_cpu_s + self.merge_cpu_s) / millions,
            millions / self.seconds,
            self.feed_peak_mib,
            self.peak_mib,
            self.disk_bytes / self.samples,
            self.write_ahead_bytes / self.samples,
        ]
    }
}

fn feed(layout: &Layout, scale: &Scale, server: &mut RunningDatabase) -> Result<IngestResult> {
    let pid = server.server.pid()?;
    say(
        server.name(),
        &format!("receives {} series × {} ticks", scale.fleet.series(), scale.ticks),
    );
    let args = [
        format!("--ticks={}", scale.ticks),
        format!("--server-pid={pid}"),
        CONNECTIONS.to_owned(),
        REQUEST.to_owned(),
    ];
    let outcome = generator::run(
        layout,
        &mut server.server,
        scale.fleet,
        "remote-write",
        &args,
        FEED_LIMIT,
    )?;
    let (samples, refused) = (number(&outcome, "/samples")?, number(&outcome, "/refused")?);
    if refused > 0.0 {
        bail!(
            "{} refused {refused} requests: {}",
            server.name(),
            outcome["first_refusal"]
        );
    }
    let fed_cpu_s = process::quiet(pid, server.name())?;
    let feed_peak_mib = process::peak_mib(pid)?;
    let merge = server.merge()?;
    let merged_cpu_s = process::quiet(pid, server.name())?;
    server.server.check()?;
    let (disk_bytes, write_ahead_bytes) = on_disk(server)?;
    let ingested = IngestResult {
        start_ms: start_ms(&outcome)?,
        samples,
        seconds: number(&outcome, "/seconds")?,
        feed_cpu_s: fed_cpu_s - number(&outcome, "/server_cpu_s/0")?,
        feed_peak_mib,
        merge_cpu_s: merged_cpu_s - fed_cpu_s,
        merge,
        peak_mib: process::peak_mib(pid)?,
        disk_bytes: disk_bytes as f64,
        write_ahead_bytes: write_ahead_bytes as f64,
    };
    let [cpu, _, speed, peak, _, bytes, _] = ingested.figures();
    say(
        server.name(),
        &format!(
            "{cpu:.2} CPU-s per million ({:.2} of the generator), {speed:.2} M/s, {peak:.0} MiB, {bytes:.2} bytes per sample",
            number(&outcome, "/cpu_s")? / (samples / 1e6)
        ),
    );
    Ok(ingested)
}

/// Returns all bytes, and those of the write-ahead log among them.
fn on_disk(server: &RunningDatabase) -> Result<(u64, u64)> {
    let data = server.data();
    match server.database {
        Database::Prometheus => Ok((folder::bytes(&data.join("snapshots"), |_| true)?, 0)),
        Database::VictoriaMetrics => Ok((folder::bytes(&data, |_| true)?, 0)),
        Database::Lockstep => {
            let is_write_ahead = |file: &std::path::Path| {
                file.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("wal-"))
            };
            Ok((
                folder::bytes(&data, |_| true)?,
                folder::bytes(&data, is_write_ahead)?,
            ))
        }
    }
}

/// Latencies of every shape, and whether the answers had the same size.
struct Reads {
    rows: Vec<Row>,
    notes: Vec<String>,
    samples: [Option<f64>; SHAPES.len()],
}

impl Reads {
    fn new(scale: &Scale) -> Self {
        Self {
            rows: Vec::new(),
            notes: vec![format!(
                "Reads: {} of each shape, one at a time, each for another metric or GPU; caches of answers are off.",
                scale.repeats
            )],
            samples: [None; SHAPES.len()],
        }
    }

    fn read(
        &mut self,
        layout: &Layout,
        scale: &Scale,
        server: &mut RunningDatabase,
        start_ms: i64,
    ) -> Result<()> {
        for (at, (shape, _)) in SHAPES.into_iter().enumerate() {
            let args = [
                format!("--shape={shape}"),
                format!("--start-ms={start_ms}"),
                format!("--ticks={}", scale.ticks),
                format!("--repeats={}", scale.repeats),
            ];
            let outcome = generator::run(layout, &mut server.server, scale.fleet, "read", &args, READ_LIMIT)?;
            let range_s = number(&outcome, "/range_s")?;
            let latency = ["/latency/p50_ms", "/latency/p99_ms"].map(|pointer| number(&outcome, pointer));
            self.compare(at, server.database, number(&outcome, "/samples")?);
            for (nth, value) in latency.into_iter().enumerate() {
                self.row(at * 2 + nth, range_s)
                    .values
                    .insert(server.database, value?);
            }
        }
        Ok(())
    }

    fn row(&mut self, at: usize, range_s: f64) -> &mut Row {
        while self.rows.len() <= at {
            let next = self.rows.len();
            let what = format!("read {}, {:.0} min", SHAPES[next / 2].1, range_s / 60.0);
            let row = if next.is_multiple_of(2) {
                Row::new(format!("{what}: p50 ms")).target(0.5)
            } else {
                Row::new("… p99 ms").target(0.5)
            };
            self.rows.push(row);
        }
        &mut self.rows[at]
    }

    /// Marks shapes whose answers differ in size: a shorter answer is not a faster one.
    fn compare(&mut self, at: usize, database: Database, samples: f64) {
        let first = *self.samples[at].get_or_insert(samples);
        if (samples - first).abs() > 0.5 {
            let note = format!(
                "{} answered {samples} samples for {:?}, the first server {first}.",
                database.name(),
                SHAPES[at].1
            );
            say("bench", &note);
            self.notes.push(note);
        }
    }
}
