//! The host resources that the ranks of an attempt use, read from `/proc` once per second. They help to find out why a rank is slow.
//!
//! ```text
//! /proc/PID/stat                 processor time, major faults, resident memory, start time
//! /proc/PID/task/*/schedstat     time that a thread was ready to run but had no processor
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use domain::ident::RunId;
use domain::run::state::NodeReport;
use domain::time::TimestampMs;
use shim::Entry;

use crate::sample::Samples;
use crate::sample::series::Family;

/// Linux reports times to user space in hundredths of a second on every supported architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;
const NANOSECONDS_PER_SECOND: f64 = 1e9;
/// Maximum number of threads per rank that are read. A training process has one or two hundred; each costs one file per second.
const THREADS_MAX: usize = 256;

/// The ranks of one attempt on this node.
#[derive(Debug)]
pub(super) struct RankUsage {
    root: PathBuf,
    run: RunId,
    ranks: BTreeMap<u32, RankProcess>,
}

#[derive(Debug)]
struct RankProcess {
    pid: u32,
    /// The start time in `stat`: another process with the same id has another one.
    start: Option<u64>,
    /// Each living thread's run delay at the last reading.
    threads: HashMap<u32, u64>,
    /// The sum over all threads, including those that have ended.
    run_delay_ns: u64,
    family: Family,
}

/// The values of a process in `stat`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    major_faults: f64,
    cpu_s: f64,
    start: u64,
    resident_pages: f64,
}

impl RankUsage {
    /// Reads `/proc` below `root`.
    pub(super) fn new(root: &Path, run: &RunId) -> Self {
        Self {
            root: root.to_owned(),
            run: run.clone(),
            ranks: BTreeMap::new(),
        }
    }

    /// Takes the attempt's reports: which ranks have started and which have ended.
    pub(super) fn note(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.report {
                NodeReport::RankStarted { rank, pid, .. } => self.add(rank.0, *pid),
                NodeReport::RankExited(exit) => _ = self.ranks.remove(&exit.rank.0),
                _ => {}
            }
        }
    }

    /// Returns the process ids of the living ranks.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.ranks.values().map(|process| process.pid).collect()
    }

    /// Reads each living rank once.
    pub(super) fn tick(&mut self, now_ms: TimestampMs, samples: &Samples) {
        let page_bytes = f64::from(u32::try_from(rustix::param::page_size()).unwrap_or(4_096));
        for process in self.ranks.values_mut() {
            let folder = self.root.join("proc").join(process.pid.to_string());
            let Some(stat) = read_stat(&folder).filter(|stat| process.is_same(stat)) else {
                continue;
            };
            let delay_s = process.run_delay_s(&folder);
            let out = &mut process.family.at(samples, now_ms);
            out.put("train_cpu_seconds_total", stat.cpu_s);
            out.put("train_major_faults_total", stat.major_faults);
            out.put("train_host_memory_bytes", stat.resident_pages * page_bytes);
            if let Some(delay_s) = delay_s {
                out.put("train_run_delay_seconds_total", delay_s);
            }
        }
    }

    fn add(&mut self, rank: u32, pid: u32) {
        if self.ranks.get(&rank).is_some_and(|known| known.pid == pid) {
            return;
        }
        let labels = vec![("run", self.run.to_string()), ("rank", rank.to_string())];
        let process = RankProcess {
            pid,
            start: None,
            threads: HashMap::new(),
            run_delay_ns: 0,
            family: Family::new(labels),
        };
        self.ranks.insert(rank, process);
    }
}

impl RankProcess {
    fn is_same(&mut self, stat: &Stat) -> bool {
        *self.start.get_or_insert(stat.start) == stat.start
    }

    /// Returns the total run delay. It increases when a thread waits, and does not decrease when a thread ends. `None` if the kernel has no
    /// such statistics.
    fn run_delay_s(&mut self, folder: &Path) -> Option<f64> {
        let tasks = std::fs::read_dir(folder.join("task")).ok()?;
        let numbers = tasks
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let seen: HashMap<u32, u64> = numbers
            .take(THREADS_MAX)
            .filter_map(|thread| Some((thread, run_delay_ns(folder, thread)?)))
            .collect();
        if seen.is_empty() {
            return None;
        }
        for (thread, delay_ns) in &seen {
            let before_ns = self.threads.get(thread).copied().unwrap_or(0);
            self.run_delay_ns += delay_ns.saturating_sub(before_ns);
        }
        self.threads = seen;
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a process's life")]
        let nanoseconds = self.run_delay_ns as f64;
        Some(nanoseconds / NANOSECONDS_PER_SECOND)
    }
}

/// Parses `RUN_NS RUN_DELAY_NS TIMESLICES`.
fn run_delay_ns(folder: &Path, thread: u32) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join(format!("task/{thread}/schedstat"))).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn read_stat(folder: &Path) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(folder.join("stat")).ok()?)
}

/// Parses `PID (NAME) STATE PPID …`, see proc(5). The name may contain blanks and parentheses, so fields are counted after it, from the
/// third.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(Stat {
        major_faults: number(12)?,
        cpu_s: (number(14)? + number(15)?) / TICKS_PER_SECOND,
        start: fields.get(22 - 3)?.parse().ok()?,
        resident_pages: number(24)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::ident::Rank;
    use domain::run::state::RankExit;

    use super::*;

    /// A `/proc` with one process, whose values are in its files.
    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn has(&self, start: u64, ticks: u64, threads: &[(u32, u64)]) {
            let folder = self.0.path().join("proc/42");
            let _none_before = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            let stat = format!(
                "42 (python (train) 3) S 1 42 42 0 -1 4194304 900 0 7 0 {ticks} 50 3 4 20 0 9 0 {start} 123456 25 0 0 0"
            );
            std::fs::write(folder.join("stat"), stat).unwrap();
            for (thread, delay_ns) in threads {
                let task = folder.join(format!("task/{thread}"));
                std::fs::create_dir_all(&task).unwrap();
                std::fs::write(task.join("schedstat"), format!("1000 {delay_ns} 3\n")).unwrap();
            }
        }
    }

    fn started(rank: u32, pid: u32) -> Entry {
        let report = NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank: 0,
            pid,
        };
        entry(report)
    }

    fn entry(report: NodeReport) -> Entry {
        Entry {
            id: 1,
            at_ms: 1,
            report,
        }
    }

    fn told(usage: &mut RankUsage, now_ms: TimestampMs) -> Vec<String> {
        let samples = Samples::new();
        usage.tick(now_ms, &samples);
        let mut told: Vec<String> = samples
            .latest()
            .into_iter()
            .map(|sample| format!("{} {}", sample.series, sample.value))
            .collect();
        told.sort();
        told
    }

    #[test]
    fn a_rank_s_processor_time_delay_faults_and_memory_are_read_below_the_root() {
        let proc = Proc::new();
        proc.has(7, 250, &[(42, 1_500_000_000), (43, 500_000_000)]);
        let mut usage = RankUsage::new(proc.0.path(), &RunId::new("r").unwrap());
        assert!(told(&mut usage, 1).is_empty());
        usage.note(&[started(3, 42)]);
        let page_bytes = rustix::param::page_size();
        assert_eq!(
            told(&mut usage, 2),
            [
                r#"train_cpu_seconds_total{rank="3", run="r"} 3"#.to_owned(),
                format!(
                    r#"train_host_memory_bytes{{rank="3", run="r"}} {}"#,
                    25 * page_bytes
                ),
                r#"train_major_faults_total{rank="3", run="r"} 7"#.to_owned(),
                r#"train_run_delay_seconds_total{rank="3", run="r"} 2"#.to_owned(),
            ]
        );
    }

    #[test]
    fn the_delay_of_a_thread_that_has_ended_stays_counted() {
        let proc = Proc::new();
        let mut usage = RankUsage::new(proc.0.path(), &RunId::new("r").unwrap());
        usage.note(&[started(0, 42)]);
        let mut delay_s = |threads: &[(u32, u64)]| {
            proc.has(7, 1, threads);
            told(&mut usage, 1)
                .pop()
                .unwrap()
                .rsplit(' ')
                .next()
                .unwrap()
                .to_owned()
        };
        assert_eq!(delay_s(&[(42, 1_000_000_000), (43, 2_000_000_000)]), "3");
        assert_eq!(delay_s(&[(42, 1_500_000_000)]), "3.5");
        assert_eq!(delay_s(&[(42, 1_500_000_000), (43, 250_000_000)]), "3.75");
    }

    #[test]
    fn another_process_with_the_number_of_a_rank_is_not_the_rank() {
        let proc = Proc::new();
        let mut usage = RankUsage::new(proc.0.path(), &RunId::new("r").unwrap());
        usage.note(&[started(0, 42)]);
        proc.has(7, 1, &[(42, 1)]);
        assert_eq!(told(&mut usage, 1).len(), 4);
        proc.has(8, 1, &[(42, 1)]);
        assert!(told(&mut usage, 2).is_empty());
        let exit = RankExit {
            rank: Rank(0),
            ..RankExit::default()
        };
        usage.note(&[started(0, 42), entry(NodeReport::RankExited(exit))]);
        proc.has(7, 1, &[(42, 1)]);
        assert!(told(&mut usage, 3).is_empty(), "it has ended");
    }
}
