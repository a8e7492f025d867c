//! The fleet, nodes × GPUs × metrics: its series, their labels, and the times of their samples.
//!
//! ```text
//! series  = (node × gpus + gpu) × metrics + metric
//! time_ms = start_ms + tick × 1,000 + the node's own offset (1 to 997 ms: scrapers spread their targets; no sample is on a whole
//!           second, where versions of PromQL disagree about the edges of windows)
//! rank    = node of the run × gpus + gpu, with Lockstep's own names: one rank on each GPU, in runs of equally many nodes
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use domain::noise::mix;
use domain::topology::{Gpu, Inventory};

use crate::exporter;
use crate::healthy::{GPU_MEMORY_BYTES, HealthySignal, NVLINKS, POWER_LIMIT_W};
use crate::layout::{self, Label};
use crate::signal::{Shape, Signal};

/// The length of a tick.
pub const TICK_MS: i64 = 1_000;

const GPU_NAME: &str = "NVIDIA H100 80GB HBM3";

/// The names of the series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// Those of a GPU exporter, with values that are hard to store.
    Dcgm,
    /// Lockstep's own, with values of a healthy training: rules and analysers read them.
    Lockstep,
}

/// The size of the fleet, its names, and its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Fleet {
    /// Number of nodes.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: u32,
    /// GPUs per node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: u32,
    /// Metrics per GPU.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub metrics: u32,
    /// The seed of all values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Names of the series.
    #[arg(long, value_enum, default_value = "lockstep")]
    pub names: Names,
    /// Number of training runs among which the nodes are divided, with Lockstep's own names.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
}

/// The values of a series.
#[derive(Debug, Clone, Copy)]
pub enum SeriesSignal {
    /// With the names of an exporter.
    Exporter(Signal),
    /// With Lockstep's own names.
    Healthy(HealthySignal),
}

impl SeriesSignal {
    /// Returns the value at a tick.
    #[must_use]
    pub fn at(&self, tick: u64) -> f64 {
        match self {
            Self::Exporter(signal) => signal.at(tick),
            Self::Healthy(signal) => signal.at(tick),
        }
    }
}

impl Fleet {
    /// Checks that there are enough metrics.
    ///
    /// # Errors
    /// Fails if the fleet has more metrics than there are with Lockstep's own names.
    pub fn check(&self) -> Result<()> {
        let most = match self.names {
            Names::Dcgm => usize::MAX,
            Names::Lockstep => layout::count(),
        };
        ensure!(
            self.metrics as usize <= most,
            "there are {most} series per GPU with Lockstep's own names, not {}; set --metrics or --names=dcgm",
            self.metrics
        );
        Ok(())
    }

    /// Checks that the series have the names of an exporter, which the caller's queries contain.
    ///
    /// # Errors
    /// Fails if they have other names.
    pub fn check_exporter(&self) -> Result<()> {
        ensure!(
            self.names == Names::Dcgm,
            "the queries are about the metrics of a GPU exporter; set --names=dcgm, here and where the samples are sent"
        );
        Ok(())
    }

    /// Returns the number of all series.
    #[must_use]
    pub fn series(&self) -> usize {
        self.nodes as usize * self.series_per_node()
    }

    /// Returns the number of series of one node. Node `n` has those from `n` times this number on.
    #[must_use]
    pub fn series_per_node(&self) -> usize {
        (self.gpus * self.metrics) as usize
    }

    /// Returns the name of a node.
    #[must_use]
    pub fn node_name(&self, node: u32) -> String {
        format!("gpu-node-{node:05}")
    }

    /// Returns the name of an exporter's metric. After 30 metrics the names repeat with a number.
    #[must_use]
    pub fn metric_name(&self, metric: u32) -> String {
        exporter::name(metric)
    }

    /// Returns the exporter's metrics that are counters, except the rare ones.
    #[must_use]
    pub fn counters(&self) -> Vec<u32> {
        let counts = |metric: &u32| matches!(exporter::shape(*metric), Shape::Counter(_));
        (0..self.metrics).filter(counts).collect()
    }

    /// Returns the time of a node's samples at a tick.
    #[must_use]
    pub fn time_ms(&self, start_ms: i64, node: u32, tick: u64) -> i64 {
        start_ms + tick as i64 * TICK_MS + self.offset_ms(node)
    }

    /// Returns the offset of a node within the second.
    #[must_use]
    pub fn offset_ms(&self, node: u32) -> i64 {
        1 + (mix(self.seed ^ (u64::from(node) << 20)) % 997) as i64
    }

    /// Returns the id of the run on a node.
    #[must_use]
    pub fn run_id(&self, node: u32) -> String {
        format!("loadgen-{}", self.run_index(node) + 1)
    }

    /// Returns the rank on a GPU.
    #[must_use]
    pub fn rank(&self, node: u32, gpu: u32) -> u32 {
        node % self.nodes_per_run() * self.gpus + gpu
    }

    /// Returns the labels of a series, sorted by name.
    #[must_use]
    pub fn labels(&self, series: usize) -> Vec<(&'static str, String)> {
        let (node, gpu, metric) = self.place(series);
        match self.names {
            Names::Dcgm => self.exporter_labels(node, gpu, metric),
            Names::Lockstep => self.own_labels(node, gpu, metric),
        }
    }

    /// Returns a PromQL selector of all series of a node, and of no series that a server adds.
    #[must_use]
    pub fn selector(&self, node: u32) -> String {
        let name = self.node_name(node);
        match self.names {
            Names::Dcgm => format!(r#"{{node="{name}",job="gpu-exporter"}}"#),
            Names::Lockstep => {
                let names: Vec<_> = layout::names(self.metrics, self.gpus).into_iter().collect();
                format!(r#"{{node="{name}",__name__=~"{}"}}"#, names.join("|"))
            }
        }
    }

    /// Returns the values of a series.
    #[must_use]
    pub fn signal(&self, series: usize) -> SeriesSignal {
        let (node, gpu, metric) = self.place(series);
        match self.names {
            Names::Dcgm => {
                let key = mix(self.seed) ^ series as u64;
                SeriesSignal::Exporter(Signal::new(key, exporter::shape(metric)))
            }
            Names::Lockstep => {
                let key = mix(mix(self.seed) ^ (u64::from(node) << 8 | u64::from(gpu)));
                let run_key = mix(mix(self.seed) ^ (1 << 63 | u64::from(self.run_index(node))));
                let quantity = layout::series(metric, gpu).quantity;
                SeriesSignal::Healthy(HealthySignal::new(key, run_key, quantity))
            }
        }
    }

    /// Returns the values of all series of a node.
    #[must_use]
    pub fn signals_of(&self, node: u32) -> Vec<SeriesSignal> {
        let first = node as usize * self.series_per_node();
        (first..first + self.series_per_node())
            .map(|series| self.signal(series))
            .collect()
    }

    /// Returns what the agent of a node reports about it. An exporter's node has no GPUs there.
    #[must_use]
    pub fn inventory(&self, node: u32) -> Inventory {
        let gpus = match self.names {
            Names::Dcgm => 0..0,
            Names::Lockstep => 0..self.gpus,
        };
        Inventory {
            hostname: self.node_name(node),
            simulated: Some("loadgen".to_owned()),
            gpus: gpus.map(|gpu| self.gpu(node, gpu)).collect(),
            ..Inventory::default()
        }
    }

    /// Returns node, GPU and metric of a series.
    #[must_use]
    pub fn place(&self, series: usize) -> (u32, u32, u32) {
        let (metrics, gpus) = (self.metrics as usize, self.gpus as usize);
        let gpu = series / metrics;
        (
            (gpu / gpus) as u32,
            (gpu % gpus) as u32,
            (series % metrics) as u32,
        )
    }

    fn exporter_labels(&self, node: u32, gpu: u32, metric: u32) -> Vec<(&'static str, String)> {
        vec![
            ("UUID", self.uuid(node, gpu)),
            ("__name__", self.metric_name(metric)),
            ("device", format!("nvidia{gpu}")),
            ("gpu", gpu.to_string()),
            ("instance", format!("{}:9400", self.node_name(node))),
            ("job", "gpu-exporter".to_owned()),
            ("modelName", GPU_NAME.to_owned()),
            ("node", self.node_name(node)),
            ("pci_bus_id", pci_bus_id(gpu)),
        ]
    }

    fn own_labels(&self, node: u32, gpu: u32, metric: u32) -> Vec<(&'static str, String)> {
        let template = layout::series(metric, gpu);
        let value = |label: Label| match label {
            Label::Gpu => gpu.to_string(),
            Label::Device => format!("cuda:{gpu}"),
            Label::Interface => format!("eth{gpu}"),
            Label::Rank => self.rank(node, gpu).to_string(),
            Label::Run => self.run_id(node),
            Label::Text(text) => text.to_owned(),
        };
        let own = template.labels.iter().map(|(name, label)| (*name, value(*label)));
        let mut labels: Vec<_> = own.collect();
        labels.push(("__name__", template.name.to_owned()));
        labels.push(("node", self.node_name(node)));
        labels.sort_unstable();
        labels
    }

    fn gpu(&self, node: u32, gpu: u32) -> Gpu {
        Gpu {
            index: gpu,
            uuid: self.uuid(node, gpu),
            name: GPU_NAME.to_owned(),
            pci_bus_id: pci_bus_id(gpu),
            memory_total_bytes: GPU_MEMORY_BYTES,
            power_limit_watts: POWER_LIMIT_W,
            nvlinks: NVLINKS,
            gpm: true,
            ..Gpu::default()
        }
    }

    fn uuid(&self, node: u32, gpu: u32) -> String {
        let id = mix(self.seed ^ mix((u64::from(node) << 8) + u64::from(gpu)));
        format!(
            "GPU-{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            id as u32,
            id as u16,
            id >> 52,
            id >> 40 & 0xfff,
            id & 0xffff_ffff_ffff
        )
    }

    fn run_index(&self, node: u32) -> u32 {
        node / self.nodes_per_run()
    }

    fn nodes_per_run(&self) -> u32 {
        self.nodes.div_ceil(self.runs)
    }
}

fn pci_bus_id(gpu: u32) -> String {
    format!("00000000:{:02X}:00.0", 0x1b + gpu * 8)
}

/// Returns the clock of the machine in milliseconds since the epoch.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const EXPORTER: Fleet = Fleet {
        nodes: 3,
        gpus: 8,
        metrics: 45,
        seed: 1,
        names: Names::Dcgm,
        runs: 1,
    };
    const OWN: Fleet = Fleet {
        names: Names::Lockstep,
        ..EXPORTER
    };

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let of_many_gpus = Fleet { gpus: 20, ..OWN };
        for fleet in [EXPORTER, OWN, of_many_gpus] {
            let names: BTreeSet<_> = (0..fleet.series()).map(|series| fleet.labels(series)).collect();
            assert_eq!(names.len(), fleet.series());
        }
    }

    #[test]
    fn labels_are_sorted_and_as_long_as_an_exporters() {
        for series in [0, 77, EXPORTER.series() - 1] {
            let labels = EXPORTER.labels(series);
            assert!(labels.is_sorted_by(|a, b| a.0 < b.0));
            assert!(OWN.labels(series).is_sorted_by(|a, b| a.0 < b.0));
            let bytes: usize = labels
                .iter()
                .map(|(name, value)| name.len() + value.len() + 6)
                .sum();
            assert!((180..=300).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn no_sample_lies_on_a_whole_second() {
        assert!((0..5_000).all(|node| (1..=997).contains(&EXPORTER.offset_ms(node))));
    }

    #[test]
    fn a_thousand_nodes_have_240_000_series_and_8_000_ranks() {
        let fleet = Fleet {
            nodes: 1_000,
            metrics: 30,
            ..OWN
        };
        assert_eq!(fleet.series(), 240_000);
        let ranks: BTreeSet<u32> = (0..1_000)
            .flat_map(|node| (0..8).map(move |gpu| fleet.rank(node, gpu)))
            .collect();
        assert_eq!(ranks, (0..8_000).collect::<BTreeSet<u32>>());
    }

    #[test]
    fn runs_divide_the_nodes_and_each_has_a_rank_0() {
        let fleet = Fleet {
            nodes: 5,
            runs: 2,
            ..OWN
        };
        let first_ranks: Vec<_> = (0..5)
            .map(|node| (fleet.run_id(node), fleet.rank(node, 0)))
            .collect();
        let expected: [(&str, u32); 5] = [
            ("loadgen-1", 0),
            ("loadgen-1", 8),
            ("loadgen-1", 16),
            ("loadgen-2", 0),
            ("loadgen-2", 8),
        ];
        assert_eq!(first_ranks, expected.map(|(run, rank)| (run.to_owned(), rank)));
    }

    #[test]
    fn values_depend_on_the_seed_alone() {
        let column = |fleet: Fleet| -> Vec<u64> {
            let signals = fleet.signals_of(1);
            signals.iter().map(|signal| signal.at(60).to_bits()).collect()
        };
        for fleet in [EXPORTER, OWN] {
            assert_eq!(column(fleet), column(fleet));
            assert_ne!(column(fleet), column(Fleet { seed: 2, ..fleet }));
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_with_the_flags_to_change() {
        assert!(
            OWN.check().is_ok()
                && Fleet {
                    metrics: 300,
                    ..EXPORTER
                }
                .check()
                .is_ok()
        );
        let refused = Fleet { metrics: 300, ..OWN }.check();
        let text = refused.expect_err("so many do not exist").to_string();
        assert!(text.contains("--metrics") && text.contains("--names"), "{text}");
        assert!(EXPORTER.check_exporter().is_ok() && OWN.check_exporter().is_err());
    }

    #[test]
    fn a_selector_contains_all_names_of_a_node() {
        let selector = OWN.selector(1);
        for series in OWN.series_per_node()..2 * OWN.series_per_node() {
            let labels = OWN.labels(series);
            let name = labels.iter().find(|(label, _)| *label == "__name__");
            let (_, name) = name.expect("a name");
            assert!(selector.contains(name.as_str()), "{name}");
        }
    }
}
