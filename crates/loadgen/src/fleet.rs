//! The fleet, nodes × GPUs × metrics: its series, their labels, and the times of their samples.
//!
//! ```text
//! series  = (node × gpus + gpu) × metrics + metric
//! time_ms = start_ms + tick × 1,000 + the node's own offset (1 to 997 ms: scrapers spread their targets; no sample is on a whole
//!           second, where versions of PromQL disagree about the edges of windows)
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::signal::{Shape, Signal, mix};

/// The length of a tick.
pub const TICK_MS: i64 = 1_000;

/// Metrics with the names of a GPU exporter, and how they behave: a third constant, the rest random walks, ratios and counters.
const METRICS: [(&str, Shape); 30] = [
    ("DCGM_FI_DEV_GPU_TEMP", Shape::Temperature),
    ("DCGM_FI_DEV_POWER_USAGE", Shape::Power),
    ("DCGM_FI_DEV_FB_TOTAL", Shape::Constant),
    ("DCGM_FI_DEV_GPU_UTIL", Shape::Percent),
    ("DCGM_FI_PROF_SM_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Shape::Counter(420_000)),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Shape::Constant),
    ("DCGM_FI_DEV_SM_CLOCK", Shape::Clock),
    ("DCGM_FI_DEV_FB_USED", Shape::Plateau),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", Shape::Counter(90_000_000_000)),
    ("DCGM_FI_DEV_XID_ERRORS", Shape::Constant),
    ("DCGM_FI_DEV_MEMORY_TEMP", Shape::Temperature),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Shape::Percent),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Shape::Constant),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", Shape::Counter(4_000_000_000)),
    ("DCGM_FI_DEV_MEM_CLOCK", Shape::Constant),
    ("DCGM_FI_DEV_ENC_UTIL", Shape::Constant),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Shape::Constant),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", Shape::Counter(90_000_000_000)),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Shape::RareCounter),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", Shape::Power),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Shape::Constant),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Shape::Ratio(4)),
    ("DCGM_FI_DEV_FB_FREE", Shape::Plateau),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", Shape::Constant),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", Shape::Counter(4_000_000_000)),
    ("DCGM_FI_DEV_FAN_SPEED", Shape::Constant),
    ("DCGM_FI_PROF_SM_OCCUPANCY", Shape::Ratio(4)),
];

/// The size of the fleet, and its seed.
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
}

impl Fleet {
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

    /// Returns the name of a metric. After 30 metrics the names repeat with a number.
    #[must_use]
    pub fn metric_name(&self, metric: u32) -> String {
        let (name, _) = METRICS[metric as usize % METRICS.len()];
        match metric as usize / METRICS.len() {
            0 => name.to_owned(),
            round => format!("{name}_{round}"),
        }
    }

    /// Returns the metrics that are counters, except the rare ones.
    #[must_use]
    pub fn counters(&self) -> Vec<u32> {
        let counts = |metric: &u32| matches!(METRICS[*metric as usize % METRICS.len()].1, Shape::Counter(_));
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

    /// Returns the labels of a series, sorted by name.
    #[must_use]
    pub fn labels(&self, series: usize) -> Vec<(&'static str, String)> {
        let (node, gpu, metric) = self.place(series);
        let id = mix(self.seed ^ mix((u64::from(node) << 8) + u64::from(gpu)));
        vec![
            (
                "UUID",
                format!(
                    "GPU-{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
                    id as u32,
                    id as u16,
                    id >> 52,
                    id >> 40 & 0xfff,
                    id & 0xffff_ffff_ffff
                ),
            ),
            ("__name__", self.metric_name(metric)),
            ("device", format!("nvidia{gpu}")),
            ("gpu", gpu.to_string()),
            ("instance", format!("{}:9400", self.node_name(node))),
            ("job", "gpu-exporter".to_owned()),
            ("modelName", "NVIDIA H100 80GB HBM3".to_owned()),
            ("node", self.node_name(node)),
            ("pci_bus_id", format!("00000000:{:02X}:00.0", 0x1b + gpu * 8)),
        ]
    }

    /// Returns the values of a series.
    #[must_use]
    pub fn signal(&self, series: usize) -> Signal {
        let (_, _, metric) = self.place(series);
        let (_, shape) = METRICS[metric as usize % METRICS.len()];
        Signal::new(mix(self.seed) ^ series as u64, shape)
    }

    /// Returns the values of all series of a node.
    #[must_use]
    pub fn signals_of(&self, node: u32) -> Vec<Signal> {
        let first = node as usize * self.series_per_node();
        (first..first + self.series_per_node())
            .map(|series| self.signal(series))
            .collect()
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

    const FLEET: Fleet = Fleet {
        nodes: 3,
        gpus: 8,
        metrics: 45,
        seed: 1,
    };

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let names: BTreeSet<_> = (0..FLEET.series()).map(|series| FLEET.labels(series)).collect();
        assert_eq!(names.len(), 3 * 8 * 45);
    }

    #[test]
    fn labels_are_sorted_and_as_long_as_an_exporters() {
        for series in [0, 77, FLEET.series() - 1] {
            let labels = FLEET.labels(series);
            assert!(labels.is_sorted_by(|a, b| a.0 < b.0));
            let bytes: usize = labels
                .iter()
                .map(|(name, value)| name.len() + value.len() + 6)
                .sum();
            assert!((180..=300).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn a_third_is_constant() {
        let constant = METRICS
            .iter()
            .filter(|(_, shape)| *shape == Shape::Constant)
            .count();
        assert_eq!(constant * 3, METRICS.len());
    }

    #[test]
    fn no_sample_lies_on_a_whole_second() {
        assert!((0..5_000).all(|node| (1..=997).contains(&FLEET.offset_ms(node))));
    }
}
