//! Writes the `nccl_*` series of one run on this node.
//!
//! A datagram contains totals, so a lost datagram costs detail but does not make values wrong. Durations are sums: the mean between two
//! datagrams is the difference of the sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::diagnosis::arrival::{Arrival, Window};
use domain::ident::RunId;
use domain::run::spec::NPROC_MAX;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::sample::Samples;
use crate::sample::nccl::report::{ArrivalRecord, Report, Totals, known_function};
use crate::sample::series::{Family, series};

/// The maximum number of communicators of a rank with series: enough for data, tensor, pipeline and expert parallelism and their products.
/// With 12 functions and 5 metrics, a rank has at most a few hundred series. Further communicators are ignored.
const COMMS_MAX: usize = 16;

/// All collectives of a run on this node.
#[derive(Debug)]
pub(crate) struct NcclSeries {
    run: String,
    samples: Samples,
    ranks: BTreeMap<u32, RankComms>,
    /// The arrivals, by the communicator's hash.
    windows: BTreeMap<String, ArrivalMatching>,
}

#[derive(Debug, Default)]
struct RankComms {
    /// By the communicator's hash.
    comms: BTreeMap<String, CommSeries>,
    info: Option<Labels>,
}

/// One rank on one communicator.
#[derive(Debug)]
struct CommSeries {
    /// The value of the label `comm`.
    name: String,
    family: Family,
    /// The totals of the last report, by function.
    before: BTreeMap<&'static str, Totals>,
}

#[derive(Debug, Default)]
struct ArrivalMatching {
    window: Window,
    changed: bool,
    functions: BTreeMap<&'static str, Arc<str>>,
    /// The label `comm` of the last report. Ranks of one node use different names only if a datagram is wrong.
    name: String,
}

impl NcclSeries {
    pub(crate) fn new(run: &RunId, samples: Samples) -> Self {
        Self {
            run: run.to_string(),
            samples,
            ranks: BTreeMap::new(),
            windows: BTreeMap::new(),
        }
    }

    /// Returns true if a rank has reported.
    pub(crate) fn has_reports(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Adds a datagram.
    pub(crate) fn take(&mut self, report: &Report) {
        let at_ms = report.wall_ns / 1_000_000;
        if !self.ranks.contains_key(&report.rank) && self.ranks.len() >= NPROC_MAX as usize {
            return;
        }
        self.describe(report, at_ms);
        let samples = self.samples.clone();
        let Some(comm) = self.comm(report) else { return };
        let name = comm.name.clone();
        for totals in &report.functions {
            comm.write(totals, at_ms, &samples);
        }
        self.match_arrivals(report, name);
        if report.closed {
            self.close(report, at_ms);
        }
    }

    /// Computes the lateness of ranks from the arrivals so far. Called once per second.
    pub(crate) fn tick(&mut self, now_ms: TimestampMs) {
        for matching in self.windows.values_mut().filter(|matching| matching.changed) {
            matching.changed = false;
            let Some((measure, usual)) = matching.window.lateness() else {
                continue;
            };
            for late in usual {
                let rank = late.rank.to_string();
                let labels = [
                    ("run", self.run.as_str()),
                    ("rank", rank.as_str()),
                    ("comm", matching.name.as_str()),
                    ("by", measure.as_str()),
                ];
                let name = series("nccl_arrival_lateness_seconds", &labels);
                self.samples.push(&name, now_ms, late.seconds);
            }
        }
        for info in self.ranks.values().filter_map(|rank| rank.info.as_ref()) {
            self.samples.push(info, now_ms, 1.0);
        }
    }

    fn describe(&mut self, report: &Report, at_ms: TimestampMs) {
        let (rank, abi) = (report.rank.to_string(), report.abi.to_string());
        let labels = [
            ("run", self.run.as_str()),
            ("rank", rank.as_str()),
            ("version", report.nccl.as_deref().unwrap_or_default()),
            ("abi", abi.as_str()),
        ];
        let info = series("nccl_info", &labels);
        let dropped = series("nccl_events_dropped_total", &labels[..2]);
        self.samples.push(&dropped, at_ms, whole(report.lost()));
        let known = self.ranks.entry(report.rank).or_default();
        if known.info.as_ref() != Some(&info)
            && let Some(old) = known.info.replace(info)
        {
            self.samples.end(&old, at_ms);
        }
    }

    /// Returns the series of a rank's communicator, or `None` if the rank has too many communicators.
    fn comm(&mut self, report: &Report) -> Option<&mut CommSeries> {
        let comms = &mut self.ranks.get_mut(&report.rank)?.comms;
        if !comms.contains_key(&report.comm) {
            if comms.len() >= COMMS_MAX {
                return None;
            }
            let name = name_of(report, comms);
            let labels = vec![
                ("run", self.run.clone()),
                ("rank", report.rank.to_string()),
                ("comm", name.clone()),
            ];
            let comm = CommSeries {
                name,
                family: Family::new(labels),
                before: BTreeMap::new(),
            };
            comms.insert(report.comm.clone(), comm);
        }
        comms.get_mut(&report.comm)
    }

    fn match_arrivals(&mut self, report: &Report, name: String) {
        if report.arrivals.is_empty() {
            return;
        }
        let matching = self.windows.entry(report.comm.clone()).or_default();
        matching.name = name;
        for ArrivalRecord(function, sequence, at_ns, duration_ns) in &report.arrivals {
            let Some(function) = known_function(function) else {
                continue;
            };
            let arrival = Arrival {
                rank: report.rank,
                at_ns: *at_ns,
                duration_ns: Some(*duration_ns).filter(|ns| *ns > 0),
            };
            let function = matching
                .functions
                .entry(function)
                .or_insert_with(|| function.into());
            matching.window.add(function, *sequence, arrival);
            matching.changed = true;
        }
    }

    fn close(&mut self, report: &Report, at_ms: TimestampMs) {
        let closed = self
            .ranks
            .get_mut(&report.rank)
            .and_then(|rank| rank.comms.remove(&report.comm));
        for name in closed.into_iter().flat_map(|comm| comm.family.into_series()) {
            self.samples.end(&name, at_ms);
        }
        let used = |rank: &RankComms| rank.comms.contains_key(&report.comm);
        if !self.ranks.values().any(used)
            && let Some(mut matching) = self.windows.remove(&report.comm)
        {
            // Count the last arrivals of a short communicator too.
            matching.changed = true;
            let mut last = BTreeMap::from([(report.comm.clone(), matching)]);
            std::mem::swap(&mut self.windows, &mut last);
            self.tick(at_ms);
            self.windows = last;
        }
    }
}

/// Returns the framework's name of the communicator, or its hash if it has no name or the rank already uses the name.
fn name_of(report: &Report, comms: &BTreeMap<String, CommSeries>) -> String {
    let named = report.comm_name.as_deref().filter(|name| !name.is_empty());
    let taken = |name: &str| comms.values().any(|comm| comm.name == name);
    named
        .filter(|name| !taken(name))
        .unwrap_or(&report.comm)
        .to_owned()
}

impl CommSeries {
    fn write(&mut self, totals: &Totals, at_ms: TimestampMs, samples: &Samples) {
        let Some(function) = known_function(&totals.function) else {
            return;
        };
        let by = ("function", function);
        let out = &mut self.family.at(samples, at_ms);
        out.put_by("nccl_collectives_total", by, whole(totals.count));
        out.put_by("nccl_bytes_total", by, whole(totals.bytes));
        if let Some(sequence) = totals.sequence {
            out.put_by("nccl_sequence", by, whole(sequence));
        }
        let before = self.before.insert(function, totals.clone()).unwrap_or_default();
        let timed = totals.timed.saturating_sub(before.timed);
        let seconds = whole(totals.timed_ns.saturating_sub(before.timed_ns)) / 1e9;
        if timed == 0 || seconds <= 0.0 {
            return;
        }
        out.put_by("nccl_collective_seconds", by, seconds / whole(timed));
        let bus_bytes = totals.bus_bytes - before.bus_bytes;
        if bus_bytes > 0.0 {
            out.put_by("nccl_bus_bandwidth_bytes_per_second", by, bus_bytes / seconds);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn whole(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::path::Path;

    use domain::diagnosis::arrival::late_ranks;
    use domain::series::is_stale;

    use super::*;
    use crate::launch::probe::Record;

    /// The datagrams that the plugin's own tests wrote.
    fn golden(name: &str) -> Vec<Report> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-probe/testdata");
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        text.lines()
            .map(|line| match Record::parse(line.as_bytes()) {
                Some(Record::Nccl(report)) => *report,
                other => panic!("{line} is {other:?}"),
            })
            .collect()
    }

    fn nccl() -> (NcclSeries, Samples) {
        let samples = Samples::new();
        (
            NcclSeries::new(&RunId::new("ddp-1").unwrap(), samples.clone()),
            samples,
        )
    }

    fn latest(samples: &Samples) -> BTreeMap<String, f64> {
        let latest = samples.latest().into_iter();
        latest
            .map(|sample| (sample.series.to_string(), sample.value))
            .collect()
    }

    #[test]
    fn a_rank_of_each_version_becomes_series() {
        for report in golden("versions.jsonl") {
            let (mut nccl, samples) = nccl();
            let abi = report.abi;
            nccl.take(&Report {
                closed: false,
                ..report
            });
            let latest = latest(&samples);
            let comm = if abi < 4 { "0000000000c0ffee" } else { "dp" };
            let value = |metric: &str| {
                let name =
                    format!(r#"{metric}{{comm="{comm}", function="AllReduce", rank="3", run="ddp-1"}}"#);
                latest.get(&name).copied()
            };
            assert_eq!(value("nccl_collectives_total"), Some(3.0), "v{abi} {latest:?}");
            assert_eq!(value("nccl_bytes_total"), Some(4_194_368.0), "v{abi}");
            assert_eq!(value("nccl_sequence"), Some(2.0), "v{abi}");
            let timed = (abi >= 4).then_some(0.000_2);
            assert_eq!(value("nccl_collective_seconds"), timed, "v{abi}");
            // 7,340,032 bus bytes in 400 µs.
            let bandwidth = value("nccl_bus_bandwidth_bytes_per_second").map(|rate| (rate / 1e6).round());
            assert_eq!(bandwidth, (abi >= 4).then_some(18_350.0), "v{abi}");
            let sent =
                format!(r#"nccl_collectives_total{{comm="{comm}", function="Send", rank="3", run="ddp-1"}}"#);
            assert_eq!(latest.get(&sent), Some(&1.0));
        }
    }

    #[test]
    fn the_late_rank_of_64_is_named_from_the_plugins_own_datagrams() {
        let mut window = Window::default();
        let function: Arc<str> = "AllReduce".into();
        for report in golden("late-rank.jsonl") {
            for ArrivalRecord(_, sequence, at_ns, duration_ns) in &report.arrivals {
                let arrival = Arrival {
                    rank: report.rank,
                    at_ns: *at_ns,
                    duration_ns: Some(*duration_ns),
                };
                window.add(&function, *sequence, arrival);
            }
        }
        let (_, usual) = window.lateness().unwrap();
        let late = late_ranks(&usual);
        assert_eq!(late.iter().map(|late| late.rank).collect::<Vec<_>>(), [37]);
    }

    #[test]
    fn a_node_compares_its_own_ranks() {
        let (mut nccl, samples) = nccl();
        // The node with ranks 32 to 39.
        for report in golden("late-rank.jsonl").into_iter().skip(32).take(8) {
            nccl.take(&Report {
                closed: false,
                ..report
            });
        }
        nccl.tick(1_767_225_601_000);
        let lateness = |rank: u32| {
            let name = format!(
                r#"nccl_arrival_lateness_seconds{{by="kernel", comm="world", rank="{rank}", run="ddp-1"}}"#
            );
            latest(&samples)[&name]
        };
        assert!((0.002_5..=0.003).contains(&lateness(37)), "{}", lateness(37));
        assert!(
            (32..40)
                .filter(|rank| *rank != 37)
                .all(|rank| lateness(rank) < 0.000_3)
        );
    }

    #[test]
    fn times_are_computed_from_the_difference_to_the_last_datagram() {
        let (mut nccl, samples) = nccl();
        let report = |timed, timed_ns| Report {
            wall_ns: i64::try_from(timed_ns).unwrap(),
            comm: "1".into(),
            functions: vec![Totals {
                function: "AllReduce".into(),
                count: timed,
                timed,
                timed_ns,
                ..Totals::default()
            }],
            ..Report::default()
        };
        nccl.take(&report(10, 10_000_000_000));
        nccl.take(&report(12, 14_000_000_000));
        let seconds = latest(&samples)
            .into_iter()
            .find(|(name, _)| name.starts_with("nccl_collective_seconds"));
        assert_eq!(seconds.unwrap().1, 2.0);
    }

    #[test]
    fn an_ended_communicator_leaves_room_and_no_series() {
        let (mut nccl, samples) = nccl();
        let report = |n: usize, closed| Report {
            wall_ns: 1_000_000_000,
            comm: format!("{n:016x}"),
            // All have the same name: the first one uses it, the others use their hash.
            comm_name: Some("dp".into()),
            closed,
            functions: vec![Totals {
                function: "AllReduce".into(),
                count: 1,
                ..Totals::default()
            }],
            ..Report::default()
        };
        let comms = || {
            let mut all: Vec<String> = samples
                .latest()
                .iter()
                .filter(|sample| sample.series.metric_name() == Some("nccl_collectives_total"))
                .filter_map(|sample| sample.series.get("comm").map(str::to_owned))
                .collect();
            all.sort();
            all
        };
        (0..20).for_each(|n| nccl.take(&report(n, false)));
        assert_eq!(comms().len(), COMMS_MAX);
        assert!(comms().contains(&"dp".to_owned()) && comms().contains(&"0000000000000001".to_owned()));
        nccl.take(&report(1, true));
        assert!(!comms().contains(&"0000000000000001".to_owned()));
        let ended = samples
            .drain()
            .into_iter()
            .filter(|sample| is_stale(sample.value));
        let mut ended: Vec<String> = ended.map(|sample| sample.series.to_string()).collect();
        ended.sort();
        let labels = r#"comm="0000000000000001", function="AllReduce", rank="0", run="ddp-1""#;
        assert_eq!(
            ended,
            ["nccl_bytes_total", "nccl_collectives_total"].map(|metric| format!("{metric}{{{labels}}}"))
        );
        nccl.take(&report(19, false));
        assert_eq!(comms().len(), COMMS_MAX);
    }

    #[test]
    fn unknown_functions_are_ignored() {
        let (mut nccl, samples) = nccl();
        nccl.take(&Report {
            comm: "1".into(),
            functions: vec![Totals {
                function: "rm -rf".into(),
                count: 1,
                ..Totals::default()
            }],
            arrivals: vec![ArrivalRecord("rm -rf".into(), 1, 1, 1)],
            ..Report::default()
        });
        assert!(!latest(&samples).keys().any(|name| name.contains("rm -rf")));
    }
}
