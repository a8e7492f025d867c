//! One GPU as a line: converts samples to values, and sorts the lines.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use clap::ValueEnum;
use domain::series::Labels;
use serde::Serialize;

/// The metrics that a line uses.
pub(super) const METRICS: [&str; 18] = [
    "gpu_info",
    "gpu_up",
    "gpu_utilization_ratio",
    "gpu_sm_active_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_power_watts",
    "gpu_power_limit_watts",
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_throttle",
    "gpu_processes",
    "gpu_assignment_info",
    "link_utilization_ratio",
    "lockstep_agent_simulated",
];

/// The result of one read.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) samples: Vec<(Labels, f64)>,
    /// A description of what is simulated, if anything is.
    pub(super) simulated: Option<String>,
}

/// One GPU. Values that were not read are absent.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) gpu: u32,
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) utilization_ratio: Option<f64>,
    pub(super) sm_active_ratio: Option<f64>,
    pub(super) tensor_active_ratio: Option<f64>,
    pub(super) dram_active_ratio: Option<f64>,
    pub(super) memory_used_bytes: Option<f64>,
    pub(super) memory_total_bytes: Option<f64>,
    pub(super) power_watts: Option<f64>,
    pub(super) power_limit_watts: Option<f64>,
    pub(super) temperature_celsius: Option<f64>,
    pub(super) memory_temperature_celsius: Option<f64>,
    pub(super) sm_clock_hertz: Option<f64>,
    pub(super) nvlink_utilization_ratio: Option<f64>,
    pub(super) pcie_utilization_ratio: Option<f64>,
    pub(super) processes: Option<f64>,
    /// Reasons for lowered clocks.
    pub(super) throttle: Vec<String>,
    /// Runs on this GPU, as `run/rank`.
    pub(super) runs: Vec<String>,
}

/// Returns one row per GPU, in order of node and GPU index.
pub(super) fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let mut rows: BTreeMap<(&str, u32), Row> = BTreeMap::new();
    for (labels, value) in &snapshot.samples {
        let (Some(metric), Some(gpu)) = (labels.metric_name(), labels.get("gpu")) else {
            continue;
        };
        let (Ok(gpu), node) = (gpu.parse(), labels.get("node").unwrap_or_default()) else {
            continue;
        };
        let row = rows.entry((node, gpu)).or_insert_with(|| Row {
            node: node.to_owned(),
            gpu,
            ..Row::default()
        });
        row.take(metric, labels, *value);
    }
    rows.into_values().collect()
}

impl Row {
    fn take(&mut self, metric: &str, labels: &Labels, value: f64) {
        let label = |name| labels.get(name).unwrap_or_default();
        let field = match metric {
            "gpu_utilization_ratio" => &mut self.utilization_ratio,
            "gpu_sm_active_ratio" => &mut self.sm_active_ratio,
            "gpu_tensor_active_ratio" => &mut self.tensor_active_ratio,
            "gpu_dram_active_ratio" => &mut self.dram_active_ratio,
            "gpu_memory_used_bytes" => &mut self.memory_used_bytes,
            "gpu_memory_total_bytes" => &mut self.memory_total_bytes,
            "gpu_power_watts" => &mut self.power_watts,
            "gpu_power_limit_watts" => &mut self.power_limit_watts,
            "gpu_temperature_celsius" => &mut self.temperature_celsius,
            "gpu_memory_temperature_celsius" => &mut self.memory_temperature_celsius,
            "gpu_sm_clock_hertz" => &mut self.sm_clock_hertz,
            "gpu_processes" => &mut self.processes,
            "link_utilization_ratio" if label("link") == "nvlink" => &mut self.nvlink_utilization_ratio,
            "link_utilization_ratio" if label("link") == "pcie" => &mut self.pcie_utilization_ratio,
            _ => return self.take_words(metric, labels, value),
        };
        *field = Some(value).filter(|value| value.is_finite());
    }

    fn take_words(&mut self, metric: &str, labels: &Labels, value: f64) {
        let label = |name| labels.get(name).unwrap_or_default();
        match metric {
            "gpu_info" => label("name").clone_into(&mut self.name),
            "gpu_up" => self.up = value != 0.0,
            "gpu_throttle" if value != 0.0 => self.throttle.push(label("reason").to_owned()),
            "gpu_assignment_info" => self.runs.push(format!("{}/{}", label("run"), label("rank"))),
            _ => {}
        }
    }

    /// Returns the best measure of how busy the GPU is, and true if it is only the coarse utilization.
    pub(super) fn busy(&self) -> (Option<f64>, bool) {
        match self.sm_active_ratio {
            Some(active) => (Some(active), false),
            None => (self.utilization_ratio, self.utilization_ratio.is_some()),
        }
    }

    pub(super) fn memory_ratio(&self) -> Option<f64> {
        Some(self.memory_used_bytes? / self.memory_total_bytes.filter(|total| *total > 0.0)?)
    }
}

/// What the lines are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SortBy {
    /// By node and GPU index.
    Place,
    /// By SM activity.
    Sm,
    /// By used memory.
    Memory,
    Power,
    Temperature,
    /// By NVLink utilization.
    Nvlink,
    /// By PCIe utilization.
    Pcie,
}

impl SortBy {
    /// Sorts by value: highest first, rows without a value last. Rows with equal values keep their order, by node and GPU index.
    pub(super) fn sort(self, rows: &mut [Row]) {
        let value = |row: &Row| match self {
            Self::Place => None,
            Self::Sm => row.busy().0,
            Self::Memory => row.memory_ratio(),
            Self::Power => row.power_watts,
            Self::Temperature => row.temperature_celsius,
            Self::Nvlink => row.nvlink_utilization_ratio,
            Self::Pcie => row.pcie_utilization_ratio,
        };
        rows.sort_by(|a, b| match (value(a), value(b)) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::metrics_page::samples;

    const PAGE: &str = "gpu_info{gpu=\"0\",name=\"NVIDIA H100\",node=\"n1\"} 1
gpu_up{gpu=\"0\",node=\"n1\"} 1
gpu_up{gpu=\"10\",node=\"n1\"} 0
gpu_up{gpu=\"2\",node=\"n1\"} 1
gpu_sm_active_ratio{gpu=\"0\",node=\"n1\"} 0.5
gpu_utilization_ratio{gpu=\"0\",node=\"n1\"} 0.9
gpu_utilization_ratio{gpu=\"2\",node=\"n1\"} 0.7
gpu_power_watts{gpu=\"2\",node=\"n1\"} NaN
gpu_memory_used_bytes{gpu=\"0\",node=\"n1\"} 1
gpu_memory_total_bytes{gpu=\"0\",node=\"n1\"} 4
gpu_throttle{gpu=\"0\",node=\"n1\",reason=\"hw_slowdown\"} 1
gpu_throttle{gpu=\"0\",node=\"n1\",reason=\"sync_boost\"} 0
gpu_assignment_info{gpu=\"0\",node=\"n1\",rank=\"3\",run=\"ddp-1\"} 1
link_utilization_ratio{gpu=\"0\",link=\"nvlink\",node=\"n1\"} 0.25
link_utilization_ratio{link=\"eth\",node=\"n1\"} 0.5
node_load1{node=\"n1\"} 3
";

    fn example() -> Vec<Row> {
        rows(&Snapshot {
            samples: samples(PAGE),
            simulated: None,
        })
    }

    fn order(by: SortBy) -> Vec<u32> {
        let mut rows = example();
        by.sort(&mut rows);
        rows.iter().map(|row| row.gpu).collect()
    }

    #[test]
    fn samples_become_values_of_their_gpu() {
        let rows = example();
        let first = &rows[0];
        assert_eq!(
            (first.name.as_str(), first.up, rows[2].up),
            ("NVIDIA H100", true, false)
        );
        assert_eq!(
            (first.busy(), rows[1].busy()),
            ((Some(0.5), false), (Some(0.7), true))
        );
        assert_eq!(
            (first.memory_ratio(), first.nvlink_utilization_ratio),
            (Some(0.25), Some(0.25))
        );
        assert_eq!(
            (first.throttle.join(","), first.runs.join(",")),
            ("hw_slowdown".into(), "ddp-1/3".into())
        );
        assert_eq!(rows[1].power_watts, None, "NaN is not a value");
    }

    #[test]
    fn lines_are_sorted_with_the_unknown_last() {
        assert_eq!(order(SortBy::Place), [0, 2, 10]);
        assert_eq!(order(SortBy::Sm), [2, 0, 10]);
        assert_eq!(order(SortBy::Memory), [0, 2, 10]);
    }
}
