//! The position of each rank of an attempt, read twice per second: its mid-step page, and the state of its process in the kernel.
//!
//! ```text
//! shim.reports ──started, exited──▶ ranks
//! page-N  ─────record─────▶ train_phase, train_phase_age_seconds, train_moves_total  while the probe writes
//! /proc/PID/stat ──state──▶ train_process_state                                      from the start of the rank to the end of the attempt
//! ```
//! Nothing is requested from the rank, so this also works for a stopped rank and for one that holds Python's interpreter lock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::ident::{Rank, RunId};
use domain::run::state::NodeReport;
use domain::series::Labels;
use domain::time::TimestampMs;
use shim::page::{Page, PageRecord};
use shim::{Folder, Owner, Process, Stat, files, read_from};

use crate::sample::Samples;
use crate::sample::series::series;

/// Interval between two readings.
const PERIOD: Duration = Duration::from_millis(500);
/// A rank that does not move is written at every second reading.
const WRITE_WITHIN: Duration = Duration::from_millis(900);
/// A process that waits for a disk is often in an uninterruptible sleep. One that hangs there is in it at each of this many readings.
const UNINTERRUPTIBLE_READINGS: u32 = 4;
const PAGE_SERIES: [&str; 3] = ["train_phase", "train_phase_age_seconds", "train_moves_total"];

/// The state of a rank's process. The numbers are the values of `train_process_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Alive = 0,
    Stopped = 1,
    Uninterruptible = 2,
    Ended = 3,
}

/// The ranks of one attempt on this node.
#[derive(Debug)]
pub(crate) struct Positions {
    run: RunId,
    ranks: BTreeMap<u32, RankPosition>,
    read: Option<Instant>,
    /// The offset up to which the shim's reports were read.
    offset: u64,
}

/// The position of one rank.
#[derive(Debug)]
struct RankPosition {
    process: Option<Process>,
    page: Option<Page>,
    /// Number of consecutive readings at which the process was in an uninterruptible sleep.
    uninterruptible: u32,
    /// The last reading that was written, and when.
    written: Option<(Instant, Reading)>,
    /// `train_process_state`; `page_series` are those of the page, in the order of `PAGE_SERIES`.
    state_series: Labels,
    page_series: [Labels; PAGE_SERIES.len()],
}

/// The result of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    condition: Condition,
    record: Option<PageRecord>,
}

impl Positions {
    pub(crate) fn new(run: RunId) -> Self {
        Self {
            run,
            ranks: BTreeMap::new(),
            read: None,
            offset: 0,
        }
    }

    /// Reads all ranks when a reading is due. Writes values that changed or were last written one second ago.
    pub(crate) fn tick(&mut self, folder: &Folder, now_ms: TimestampMs, samples: &Samples) {
        if self.read.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        self.read = Some(Instant::now());
        self.find_ranks(folder);
        for (rank, position) in &mut self.ranks {
            let reading = position.read(folder, *rank);
            position.write(reading, now_ms, samples);
        }
    }

    fn find_ranks(&mut self, folder: &Folder) {
        let Ok((entries, offset)) = read_from(&folder.file(files::SHIM_REPORTS), self.offset) else {
            return;
        };
        self.offset = offset;
        for entry in entries {
            match entry.report {
                NodeReport::RankStarted { rank, pid, .. } => {
                    let pid = i32::try_from(pid).unwrap_or(0);
                    let noted = Owner::read(folder).ranks.get(&rank.0).copied();
                    // `lockstep exec` does not record processes.
                    let process = noted
                        .filter(|noted| noted.pid == pid)
                        .or_else(|| Process::of(pid));
                    let position = RankPosition::new(&self.run, rank, process);
                    self.ranks.insert(rank.0, position);
                }
                NodeReport::RankExited(exit) => {
                    if let Some(position) = self.ranks.get_mut(&exit.rank.0) {
                        position.process = None;
                    }
                }
                _ => {}
            }
        }
    }
}

impl RankPosition {
    fn new(run: &RunId, Rank(rank): Rank, process: Option<Process>) -> Self {
        let rank = rank.to_string();
        let name = |metric: &str| series(metric, &[("run", run.as_str()), ("rank", &rank)]);
        Self {
            process,
            page: None,
            uninterruptible: 0,
            written: None,
            state_series: name("train_process_state"),
            page_series: PAGE_SERIES.map(name),
        }
    }

    fn read(&mut self, folder: &Folder, rank: u32) -> Reading {
        let condition = self.condition();
        if condition == Condition::Ended {
            return Reading {
                condition,
                record: None,
            };
        }
        if self.page.is_none() {
            self.page = Page::open(folder, rank);
        }
        let record = self.page.as_ref().and_then(Page::read);
        Reading { condition, record }
    }

    fn condition(&mut self) -> Condition {
        let stat = self
            .process
            .and_then(|process| Stat::read(process.pid).filter(|stat| stat.start == process.start));
        self.see(stat.map_or(b'X', |stat| stat.state))
    }

    /// Takes a state in the form of `/proc/PID/stat`.
    fn see(&mut self, state: u8) -> Condition {
        self.uninterruptible = if state == b'D' {
            self.uninterruptible + 1
        } else {
            0
        };
        match state {
            b'Z' | b'X' => Condition::Ended,
            b'T' | b't' => Condition::Stopped,
            _ if self.uninterruptible >= UNINTERRUPTIBLE_READINGS => Condition::Uninterruptible,
            _ => Condition::Alive,
        }
    }

    fn write(&mut self, reading: Reading, now_ms: TimestampMs, samples: &Samples) {
        let is_known = self
            .written
            .is_some_and(|(at, before)| before == reading && at.elapsed() < WRITE_WITHIN);
        if is_known {
            return;
        }
        let had_page = self.written.is_some_and(|(_, before)| before.record.is_some());
        self.written = Some((Instant::now(), reading));
        samples.push(&self.state_series, now_ms, f64::from(reading.condition as u8));
        if let Some(record) = reading.record {
            let values = page_values(record, monotonic_ns());
            for (series, value) in self.page_series.iter().zip(values) {
                samples.push(series, now_ms, value);
            }
        } else if had_page {
            self.page_series
                .iter()
                .for_each(|series| samples.end(series, now_ms));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and an age, far below 2^53")]
fn page_values(record: PageRecord, now_ns: u64) -> [f64; PAGE_SERIES.len()] {
    let age_s = now_ns.saturating_sub(record.since_ns) as f64 / 1e9;
    [f64::from(record.phase), age_s, record.moves() as f64]
}

/// The time of `CLOCK_MONOTONIC`, which the probe uses too.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::process::{Child, Command};

    use domain::run::state::RankExit;
    use domain::series::is_stale;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use shim::{Reports, SHIM_IDS_FROM};

    use super::*;

    struct Scene {
        _data: tempfile::TempDir,
        folder: Folder,
        reports: Reports,
        positions: Positions,
        samples: Samples,
        child: Child,
        now_ms: TimestampMs,
    }

    impl Scene {
        fn new() -> Self {
            let data = tempfile::tempdir().unwrap();
            let folder = Folder::at(data.path());
            let mut reports = Reports::open(&folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM).unwrap();
            let child = Command::new("sleep").arg("600").spawn().unwrap();
            let (rank, local_rank, pid) = (Rank(5), 1, child.id());
            let started = NodeReport::RankStarted {
                rank,
                local_rank,
                pid,
            };
            reports.add(1, started).unwrap();
            Self {
                _data: data,
                folder,
                reports,
                positions: Positions::new(RunId::new("r-1").unwrap()),
                samples: Samples::new(),
                child,
                now_ms: 1_000,
            }
        }

        /// Returns what the next reading writes, without the labels that all series have.
        fn read(&mut self) -> Vec<(String, f64)> {
            self.positions.read = None;
            self.now_ms += 500;
            self.positions.tick(&self.folder, self.now_ms, &self.samples);
            let written = self.samples.drain().into_iter().map(|sample| {
                assert_eq!(
                    (sample.series.get("run"), sample.series.get("rank")),
                    (Some("r-1"), Some("5"))
                );
                assert!(sample.at_ms >= self.now_ms || is_stale(sample.value));
                (sample.series.metric_name().unwrap().to_owned(), sample.value)
            });
            written.collect()
        }

        /// Like `read`, but after one second.
        fn read_later(&mut self) -> Vec<(String, f64)> {
            let position = self.positions.ranks.get_mut(&5).unwrap();
            let (at, reading) = position.written.unwrap();
            position.written = Some((at.checked_sub(WRITE_WITHIN).unwrap(), reading));
            self.read()
        }

        fn signal(&self, signal: Signal, awaited: WaitOptions) {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, signal).unwrap();
            waitpid(Some(pid), awaited).unwrap();
        }

        /// Makes these calls of the probe in a process of the rank.
        fn moves(&self, calls: &str) {
            shim::page::create(&self.folder, 5).unwrap();
            let inject = concat!(env!("CARGO_MANIFEST_DIR"), "/../torch-probe/inject");
            let code = format!(
                "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
                 from lockstep_probe.page import Page\n\
                 page = Page({{'LOCKSTEP_PROBE_SOCKET': sys.argv[2] + '/probe.sock', 'RANK': '5'}})\n\
                 page.batches = 30; page.reach(1); {calls}"
            );
            let done = Command::new("python3")
                .args(["-c", &code, inject])
                .arg(self.folder.path())
                .status()
                .unwrap();
            assert!(done.success());
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }

    fn state(value: f64) -> Vec<(String, f64)> {
        vec![("train_process_state".to_owned(), value)]
    }

    #[test]
    fn a_process_is_written_when_it_changes_and_once_per_second() {
        let mut scene = Scene::new();
        assert_eq!(scene.read(), state(0.0));
        assert_eq!(scene.read(), []);
        assert_eq!(scene.read_later(), state(0.0));
        scene.signal(Signal::STOP, WaitOptions::UNTRACED);
        assert_eq!(scene.read(), state(1.0));
        scene.signal(Signal::CONT, WaitOptions::CONTINUED);
        assert_eq!(scene.read(), state(0.0));
        scene.child.kill().unwrap();
        scene.child.wait().unwrap();
        assert_eq!(scene.read(), state(3.0));
        let exit = RankExit {
            rank: Rank(5),
            ..RankExit::default()
        };
        scene.reports.add(2, NodeReport::RankExited(exit)).unwrap();
        assert_eq!(scene.read(), []);
        assert_eq!(
            scene.read_later(),
            state(3.0),
            "it stays known until the attempt ends"
        );
    }

    #[test]
    fn a_page_is_reported_with_its_age_and_ends_with_the_rank() {
        let mut scene = Scene::new();
        scene.moves("page.stepped(9); page.begin_backward()");
        let written = scene.read();
        let names: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [&["train_process_state"][..], &PAGE_SERIES].concat());
        let values: Vec<f64> = written.iter().map(|(_, value)| *value).collect();
        assert_eq!((values[0], values[1], values[3]), (0.0, 7.0, 40.0));
        assert!(values[2] > 0.0 && values[2] < 60.0, "{values:?}");
        assert_eq!(scene.read(), []);
        scene.moves("page.enter(5)");
        assert_eq!(scene.read().len(), 4, "at once when the rank moves");
        scene.child.kill().unwrap();
        scene.child.wait().unwrap();
        let written = scene.read();
        let ended = written.iter().filter(|(_, value)| is_stale(*value)).count();
        assert_eq!((written[0].1, ended, written.len()), (3.0, 3, 4));
        assert_eq!(scene.read_later(), state(3.0));
    }

    #[test]
    fn an_uninterruptible_sleep_counts_when_it_is_seen_each_time() {
        let mut position = RankPosition::new(&RunId::new("r").unwrap(), Rank(0), None);
        for (n, (state, expected)) in [
            (b'D', Condition::Alive),
            (b'D', Condition::Alive),
            (b'S', Condition::Alive),
            (b'D', Condition::Alive),
            (b'D', Condition::Alive),
            (b'D', Condition::Alive),
            (b'D', Condition::Uninterruptible),
            (b'D', Condition::Uninterruptible),
            (b'T', Condition::Stopped),
            (b'D', Condition::Alive),
            (b'Z', Condition::Ended),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(position.see(state), expected, "{n}");
        }
    }
}
